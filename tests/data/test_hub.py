"""The hub's own client code against a small hub on this machine: what is read, what is asked for,
and what is told.
"""

import functools
import gzip
import hashlib
import io
import json
import os
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from huggingface_hub import HfFileSystem, constants
from omegaconf import OmegaConf

from tape_exp.data import builtin, scrolls
from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.data.tokens import tokenise
from tape_exp.models import llama
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError

PAGE = 3  # entries of a listing; the hub gives 1000
TRAIN = [f"document {i}: Ünïcode 漢字,\nand a second line" for i in range(12)]
HELD_OUT = ["held out", "and this too"]


class Hub(ThreadingHTTPServer):
    """Repositories that are served as huggingface.co serves them, and a list of the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Repository: commit: path: content; the last is main.
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        # Repository or its files: status and X-Error-Code.
        self.refused: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """Add a commit; returns its forty digits."""
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits.setdefault(repository, {})[sha] = files
        return sha

    def stop(self) -> None:
        """Answer no more."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that reading needs."""

    server: Hub

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        url = urlsplit(self.path)
        api = re.fullmatch(
            r"/api/((?:datasets|models)/[^/]+/[^/]+)/(revision|tree)/([^/]+)/?(.*)", url.path
        )
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path)
        if api:
            repository, what, revision, path = api.groups()
            self.answer_api(repository, what, revision, unquote(path), parse_qs(url.query))
        elif file:
            kind, name, revision, path = file.groups()
            self.answer_file(f"{kind or 'models/'}{name}", revision, unquote(path))
        else:
            self.send(200 if url.path == "/" else 404)

    do_HEAD = do_GET  # noqa: N815

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files, or None where the answer is that there are none."""
        commits = self.server.commits.get(repository)
        if repository in self.server.refused or commits is None:
            self.refuse(*self.server.refused.get(repository, (404, "RepoNotFound")))
            return None
        sha = list(commits)[-1] if revision == "main" else revision
        if sha not in commits:
            self.refuse(404, "RevisionNotFound")
            return None
        return sha, commits[sha]

    def answer_api(
        self, repository: str, what: str, revision: str, path: str, query: dict[str, list[str]]
    ) -> None:
        found = self.find(repository, revision)
        if found is None:
            return
        sha, files = found
        if what == "revision":
            told = {"id": repository.split("/", 1)[1], "sha": sha, "siblings": []}
            self.send(200, json.dumps(told).encode())
            return
        entries: dict[str, dict] = {}
        prefix = f"{path}/" if path else ""
        for name, content in files.items():
            below = name.removeprefix(prefix).split("/")
            if not name.startswith(prefix):
                continue
            for depth in range(1, len(below)):
                folder = prefix + "/".join(below[:depth])
                entries[folder] = {"type": "directory", "path": folder, "oid": sha, "size": 0}
            oid = hashlib.sha1(content).hexdigest()
            entries[name] = {"type": "file", "path": name, "oid": oid, "size": len(content)}
        if path and not entries:
            self.refuse(404, "EntryNotFound")
            return
        if query["recursive"] != ["true"]:
            entries = {n: e for n, e in entries.items() if "/" not in n.removeprefix(prefix)}
        cursor = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[cursor : cursor + PAGE]
        following = re.sub(r"&cursor=\d+", "", self.path) + f"&cursor={cursor + PAGE}"
        more = {"Link": f'<{self.server.url}{following}>; rel="next"'}
        self.send(200, json.dumps(page).encode(), more if cursor + PAGE < len(entries) else {})

    def answer_file(self, repository: str, revision: str, path: str) -> None:
        found = self.find(repository, revision)
        if found is None:
            return
        if f"{repository} files" in self.server.refused:
            self.refuse(*self.server.refused[f"{repository} files"])
            return
        sha, files = found
        if path not in files:
            self.refuse(404, "EntryNotFound")
            return
        content = files[path]
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": sha,
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self.send(200, content, headers)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.send(206, content[first : last + 1], headers)

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b'{"error": "no"}', {"X-Error-Code": code} if code else {})

    def send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that this process takes for huggingface.co, with nothing in the cache."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    for name in [
        n for n in os.environ if n.lower().endswith("_proxy") or n.startswith(("HF_", "HUGGING"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    huggingface_hub.close_session()
    yield hub
    hub.stop()
    huggingface_hub.close_session()
    HfFileSystem.clear_instance_cache()


def lines(documents: list[str], **fields) -> bytes:
    return "".join(json.dumps({"text": d, **fields}) + "\n" for d in documents).encode()


def table(documents: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": documents, "url": documents}), file, row_group_size=2)
    return file.getvalue()


def pile(documents: list[str]) -> bytes:
    """The documents between those of another part of the Pile."""
    rows = (
        lines([d], meta={"pile_set_name": "Github"})
        + lines(["a book"], meta={"pile_set_name": "Books3"})
        for d in documents
    )
    return zstandard.compress(b"".join(rows))


def zipped(documents: list[str]) -> bytes:
    return gzip.compress(lines(documents))


REPOSITORIES = {
    "allenai/c4": {
        **{f"en/c4-train.0000{i}-of-4.json.gz": zipped(TRAIN[3 * i : 3 * i + 3]) for i in range(4)},
        **{f"en/c4-validation.0000{i}-of-2.json.gz": zipped([HELD_OUT[i]]) for i in range(2)},
        "realnewslike/c4-train.00000-of-1.json.gz": zipped(["other"]),
        "README.md": b"# C4",
    },
    "emozilla/pg19": {
        **{f"data/train-0000{i}-of-3.parquet": table(TRAIN[4 * i : 4 * i + 4]) for i in range(3)},
        "data/validation-00000-of-1.parquet": table(HELD_OUT),
        "data/test-00000-of-1.parquet": table(["other"]),
    },
    "monology/pile-uncopyrighted": {
        **{f"train/0{i}.jsonl.zst": pile(TRAIN[6 * i : 6 * i + 6]) for i in range(2)},
        "val.jsonl.zst": pile(HELD_OUT),
        "test.jsonl.zst": pile(["other"]),
    },
}
CORPORA = {"c4": "allenai/c4", "pg19": "emozilla/pg19", "github": "monology/pile-uncopyrighted"}


@functools.cache
def settings(name: str) -> dict:
    """What ``conf/text`` says of a corpus."""
    return OmegaConf.to_container(
        compose_config(["task=c4", f"text@task.text={name}"]).task.text, resolve=True
    )


def corpus(name: str, **options) -> Text:
    """A corpus of ``conf/text``, from the hub."""
    return Text(**{**settings(name), "source": "hub", **options})


def publish(hub: Hub, repository: str = "allenai/c4") -> str:
    """Commit the repository's files, the last first."""
    return hub.commit(f"datasets/{repository}", dict(reversed(REPOSITORIES[repository].items())))


def read(text: Text, split: str = "train") -> list[str]:
    return list(text.documents(split))


@pytest.mark.parametrize("name", CORPORA)
def test_corpora_are_read_as_they_were_written(hub, name):
    publish(hub, CORPORA[name])
    assert read(corpus(name)) == TRAIN
    assert read(corpus(name), "validation") == HELD_OUT
    assert read(corpus(name), "test") == (HELD_OUT if name == "c4" else ["other"])


def test_a_hub_that_goes_away_is_told(hub, monkeypatch):
    publish(hub)
    monkeypatch.setattr("time.sleep", lambda _: None)
    stream = corpus("c4").documents("train")
    assert [next(stream) for _ in range(3)] == TRAIN[:3]
    hub.stop()
    with pytest.raises(ConfigError, match=r"00001-of-4.json.gz cannot be read after 0 .*reached"):
        next(stream)


def test_fingerprint_follows_the_commit(hub):
    first = publish(hub)
    before = corpus("c4").fingerprint("train")
    second = hub.commit("datasets/allenai/c4", {"en/c4-train.00000-of-1.json.gz": zipped(["new"])})
    after = corpus("c4").fingerprint("train")
    assert before != after
    hub.requests.clear()
    assert [corpus("c4", revision=sha).fingerprint("train") for sha in (first, second)] == [
        before,
        after,
    ]
    assert hub.requests == []
    assert read(corpus("c4", revision=first)) == TRAIN
    assert read(corpus("c4")) == ["new"]


def test_cached_tokens_of_a_commit_need_no_hub(hub, tmp_path):
    text = corpus("c4", revision=publish(hub))
    tokenizer = Tokenization("byte").make(text, tmp_path)
    tokens = tokenise(text, "train", tokenizer, tmp_path)
    assert tokenizer.decode(tokens[:]) == "".join(TRAIN)
    hub.stop()
    assert tokenise(text, "train", tokenizer, tmp_path)[:].tolist() == tokens[:].tolist()
    with pytest.raises(ConfigError, match="cannot be reached"):
        tokenise(text, "validation", tokenizer, tmp_path)
    with pytest.raises(ConfigError, match="cannot be reached"):
        tokenise(corpus("c4"), "train", tokenizer, tmp_path)  # main may be another commit by now


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"files": {"train": ["fr/*.json.gz"]}}, r"has no file like .*Set files\.train"),
        ({"repository": "a/b/c"}, "text c4: the hub .*a/b/c"),
        ({"revision": 40 * "0"}, "text c4: the hub .*0000"),
    ],
)
def test_wrong_settings_are_told(hub, tmp_path, options, told):
    publish(hub)
    text = corpus("c4", **options)
    with pytest.raises(ConfigError, match=told):
        tokenise(text, "train", Tokenization("byte").make(text, tmp_path), tmp_path)


def test_tokenizer_is_fetched_once(hub, tmp_path):
    made = Tokenization("byte").make(corpus("c4"), tmp_path)
    hub.commit("models/meta-llama/Llama-2-7b-hf", {"tokenizer.json": made.save().encode()})
    llama = Tokenization("hub", path="meta-llama/Llama-2-7b-hf")
    assert llama.make(corpus("c4"), tmp_path).fingerprint == made.fingerprint
    hub.stop()
    assert llama.make(corpus("c4"), tmp_path).fingerprint == made.fingerprint


LLAMA = "meta-llama/Llama-2-7b-hf"
SCROLLS = "datasets/tau/scrolls"
LLAMA_CONFIG = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
LLAMA_CONFIG |= {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 10}
PARTS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
LLAMA_FILES = {
    "config.json": json.dumps(LLAMA_CONFIG).encode(),
    "model.safetensors.index.json": json.dumps(PARTS).encode(),
    "model-1.safetensors": b"1",
    "model-2.safetensors": b"2",
    "tokenizer.json": Tokenization("byte").make(None, Path("cache")).save().encode(),
    "tokenizer_config.json": b'{"bos_token": "<s>", "eos_token": "</s>"}',
    "pytorch_model.bin": b"not wanted",
    "original/consolidated.safetensors": b"not wanted",
}


def test_llama_is_fetched_once(hub):
    hub.commit(f"models/{LLAMA}", LLAMA_FILES)
    folder = llama.fetch(LLAMA, f"checkpoint={LLAMA}")
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == set(LLAMA_FILES) - {"pytorch_model.bin", "original/consolidated.safetensors"}
    assert llama.read_config(folder).width == 8
    (folder / "model-2.safetensors").unlink()  # as a download that was killed leaves it
    assert llama.fetch(LLAMA, f"checkpoint={LLAMA}") == folder
    assert (folder / "model-2.safetensors").read_bytes() == b"2"
    hub.stop()
    assert llama.fetch(LLAMA, f"checkpoint={LLAMA}") == folder
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=rf"checkpoint={LLAMA}: the hub at .* cannot be reached.*needs no network"
    ):
        llama.fetch(LLAMA, f"checkpoint={LLAMA}")


def test_another_model_is_refused_before_its_weights_are_fetched(hub):
    hub.commit(f"models/{LLAMA}", LLAMA_FILES | {"config.json": b'{"model_type": "gemma"}'})
    with pytest.raises(ConfigError, match="model_type is gemma"):
        llama.fetch(LLAMA, f"checkpoint={LLAMA}")
    assert not any("safetensors" in request for request in hub.requests)
    with pytest.raises(ConfigError, match=r"checkpoint=a/b/c: .*a/b/c"):
        llama.fetch("a/b/c", "checkpoint=a/b/c")


def scrolls_zip(dataset: str, folder: str = "") -> bytes:
    """The zip of a SCROLLS set, with the generated rows."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "validation", "test"):
            rows = builtin.scrolls_rows(dataset, split)
            archive.writestr(
                f"{folder}{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
            )
        archive.writestr(f"__MACOSX/{folder}._train.jsonl", b"\0\5")
    return file.getvalue()


def test_scrolls_is_read_from_its_zips(hub):
    zips = {f"{d}.zip": scrolls_zip(d, f"{d}/") for d in ("qasper", "gov_report")}
    first = hub.commit("datasets/tau/scrolls", zips)
    hub.commit("datasets/tau/scrolls", {"qasper.zip": scrolls_zip("qasper", "qasper/")})
    for dataset in ("qasper", "gov_report"):
        for split in ("train", "validation"):
            found = scrolls.read(dataset, split, "hub", revision=first)
            assert found == scrolls.read(dataset, split)
    for dataset, revision in (("gov_report", "main"), ("qasper", 40 * "0")):
        with pytest.raises(ConfigError, match=rf"SCROLLS {dataset}: .*scale\.text=local"):
            scrolls.read(dataset, "train", "hub", revision=revision)


READERS = {  # a repository, whoever reads it, and what is told instead
    "datasets/allenai/c4": (lambda _: read(corpus("c4")), r"text\.path=<a folder"),
    f"models/{LLAMA}": (lambda _: llama.fetch(LLAMA, "checkpoint=x"), "checkpoint=<a folder"),
    f"models/{LLAMA} files": (
        lambda folder: Tokenization("hub", path=LLAMA).make(corpus("c4"), folder),
        r"task\.tokenizer\.kind=bpe",
    ),
    SCROLLS: (lambda _: scrolls.read("qasper", "train", "hub"), r"task\.path"),
}


@pytest.mark.parametrize("repository", READERS)
def test_a_refusal_is_told(hub, tmp_path, repository):
    publish(hub)
    hub.commit(f"models/{LLAMA}", LLAMA_FILES)
    hub.commit(SCROLLS, {"qasper.zip": scrolls_zip("qasper", "qasper/")})
    reads, instead = READERS[repository]
    for answer, told in (
        ((404, "RepoNotFound"), r"the hub refuses it \("),
        ((403, "GatedRepo"), r"the hub refuses it \("),
        ((400, ""), r"the hub cannot give it \("),
    ):
        hub.refused[repository] = answer
        HfFileSystem.clear_instance_cache()
        with pytest.raises(ConfigError, match=f"{told}.*{instead}"):
            reads(tmp_path)
