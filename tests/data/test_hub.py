"""The hub's own client code against a small hub: what is read, what is asked for, what is told."""

import gzip
import hashlib
import io
import json
import os
import re
import zipfile
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub
import pytest
import zstandard
from omegaconf import OmegaConf

from tape_exp.data import scrolls
from tape_exp.data.builtin.scrolls import scrolls_rows
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.data.tokens import tokenise
from tape_exp.models import llama
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tests.data.test_text import parquet

_library = huggingface_hub.errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0]
httpx = import_module(_library)  # or httpx2, as the hub's client has it

TRAIN = [f"document {i}: Ünïcode 漢字,\nand a second line" for i in range(12)]
HELD_OUT = ["held out", "and this too"]


class Hub:
    """Repositories as huggingface.co answers for them, and a list of the requests."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}  # repository: commit: path: file
        self.refused: dict[str, tuple[int, str]] = {}  # repository, or its files: status and code
        self.requests: list[str] = []
        self.stopped = False

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """Add a commit, which becomes main; returns its forty digits."""
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits.setdefault(repository, {})[sha] = files
        return sha

    def stop(self) -> None:
        """Answer no more."""
        self.stopped = True

    def __call__(self, request):
        """The part of the hub's HTTP interface that reading needs."""
        if self.stopped:
            raise httpx.ConnectError("no route", request=request)
        self.requests.append(path := unquote(request.url.path))
        if path == "/":
            return httpx.Response(200)
        api = re.fullmatch(r"/api/(\w+/[^/]+/[^/]+)/(?:revision|tree)/([^/]+)/?(.*)", path)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            repository, revision, inner = api.groups()
        elif file:
            kind, name, revision, inner = file.groups()
            repository = f"{kind or 'models/'}{name}"
        else:
            return refusal(404)
        commits = self.commits.get(repository)
        if commits is None or repository in self.refused:
            return refusal(*self.refused.get(repository, (404, "RepoNotFound")))
        sha = list(commits)[-1] if revision == "main" else revision
        if sha not in commits:
            return refusal(404, "RevisionNotFound")
        if file:
            if f"{repository} files" in self.refused:
                return refusal(*self.refused[f"{repository} files"])
            return content(request, sha, commits[sha].get(inner))
        if "/tree/" in path:
            recursive = request.url.params.get("recursive", "").lower() == "true"
            return listing(sha, commits[sha], inner, recursive)
        return httpx.Response(
            200, json={"id": repository.split("/", 1)[1], "sha": sha, "siblings": []}
        )


def refusal(status: int, code: str = ""):
    return httpx.Response(status, json={"error": "no"}, headers={"X-Error-Code": code})


def listing(sha: str, files: dict[str, bytes], folder: str, recursive: bool):
    entries: dict[str, dict] = {}
    prefix = f"{folder}/" if folder else ""
    for name in (name for name in files if name.startswith(prefix)):
        parts = name.removeprefix(prefix).split("/")
        for depth in range(1, len(parts)):
            inner = prefix + "/".join(parts[:depth])
            entries[inner] = {"type": "directory", "path": inner, "oid": sha, "size": 0}
        oid = hashlib.sha1(files[name]).hexdigest()
        entries[name] = {"type": "file", "path": name, "oid": oid, "size": len(files[name])}
    if folder and not entries:
        return refusal(404, "EntryNotFound")
    wanted = [e for n, e in entries.items() if recursive or "/" not in n.removeprefix(prefix)]
    return httpx.Response(200, json=wanted)


def content(request, sha: str, file: bytes | None):
    """A file, or a range of its bytes."""
    if file is None:
        return refusal(404, "EntryNotFound")
    headers = {"ETag": f'"{hashlib.sha1(file).hexdigest()}"', "X-Repo-Commit": sha}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    first, last = (int(asked[1]), int(asked[2] or len(file)) + 1) if asked else (0, len(file))
    last = min(last, len(file))
    if asked:
        headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(file)}"
    return httpx.Response(206 if asked else 200, content=file[first:last], headers=headers)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that this process takes for huggingface.co, with nothing in the cache."""
    import datasets
    from huggingface_hub import constants

    for name in [n for n in os.environ if n.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    hub, usual = Hub(), huggingface_hub.utils._http.default_client_factory
    transport = httpx.MockTransport(hub)
    make = partial(httpx.Client, transport=transport, follow_redirects=True)
    huggingface_hub.set_client_factory(make)
    yield hub
    huggingface_hub.set_client_factory(usual)
    huggingface_hub.HfFileSystem.clear_instance_cache()


def lines(documents: list[str], **fields) -> bytes:
    return "".join(json.dumps({"text": d, **fields}) + "\n" for d in documents).encode()


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
        **{f"data/train-0000{i}-of-3.parquet": parquet(TRAIN[4 * i : 4 * i + 4]) for i in range(3)},
        "data/validation-00000-of-1.parquet": parquet(HELD_OUT),
        "data/test-00000-of-1.parquet": parquet(["other"]),
    },
    "monology/pile-uncopyrighted": {
        **{f"train/0{i}.jsonl.zst": pile(TRAIN[6 * i : 6 * i + 6]) for i in range(2)},
        "val.jsonl.zst": pile(HELD_OUT),
        "test.jsonl.zst": pile(["other"]),
    },
}
CORPORA = {"c4": "allenai/c4", "pg19": "emozilla/pg19", "github": "monology/pile-uncopyrighted"}


@cache
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


def scrolls_zip(dataset: str, folder: str = "") -> bytes:
    """The zip of a SCROLLS set, with the generated rows."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "validation", "test"):
            rows = scrolls_rows(dataset, split)
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
