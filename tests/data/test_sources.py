"""Text sources: every format gives the same documents, bad rows are named and counted, and errors
say what to change.
"""

import gzip
import json
import logging
import subprocess
import sys
import urllib.error
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tape_exp.data import sources
from tape_exp.data.sources import Skipped, Text
from tape_exp.settings.errors import ConfigError

DOCUMENTS = [
    "A first document.\nIt has two lines.",
    "Ünïcode — ≥ 3 bytes: 漢字",
    'A third, "quoted" \\ one.',
    "last",
]


def write(folder: Path, name: str, documents: list[str]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(
        json.dumps({"text": d, "meta": {"set": "odd" if i % 2 else "even"}}) + "\n"
        for i, d in enumerate(documents)
    )
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"text": documents, "number": list(range(len(documents)))}), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".zst"):
        path.write_bytes(zstandard.compress(lines.encode()))
    elif name.endswith(".jsonl"):
        path.write_text(lines)
    else:
        for i, document in enumerate(documents):
            path.with_name(f"{path.stem}{i}.txt").write_text(document)


def local(folder: Path, **options) -> Text:
    return Text("set", source="local", path=str(folder), **options)


def read(text: Text, split: str = "train", **options) -> list[str]:
    return [document for _, document in text.documents(split, **options)]


@pytest.mark.parametrize(
    "name",
    [
        "train.jsonl",
        "train.jsonl.gz",
        "train.jsonl.zst",
        "train.parquet",
        "train/part.json.gz",
        "train.txt",
    ],
)
def test_every_format_gives_the_same_documents(name, tmp_path):
    write(tmp_path, name, DOCUMENTS)
    assert read(local(tmp_path)) == DOCUMENTS


def test_layout_of_the_hub_is_read_from_a_folder(tmp_path):
    write(tmp_path, "en/c4-train.00000-of-2.json.gz", DOCUMENTS[:2])
    write(tmp_path, "en/c4-train.00001-of-2.json.gz", DOCUMENTS[2:])
    write(tmp_path, "en/c4-validation.00000-of-1.json.gz", ["other"])
    text = local(
        tmp_path, files={"train": ["en/c4-train.*.json.gz"], "validation": ["en/c4-validation.*"]}
    )
    assert read(text) == DOCUMENTS
    assert read(text, "validation") == ["other"]


def test_a_stream_goes_on_where_it_stood(tmp_path):
    write(tmp_path, "train-a.jsonl", DOCUMENTS)
    write(tmp_path, "train-b.parquet", DOCUMENTS)
    write(tmp_path, "train-c.txt", DOCUMENTS)
    text = local(tmp_path)
    whole = list(text.documents("train"))
    assert [d for _, d in whole] == 3 * DOCUMENTS
    for stopped, (place, _) in enumerate(whole):
        assert list(text.documents("train", place)) == whole[stopped + 1 :]


def test_long_plain_text_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST", 100)
    lines = [f"line {i} of a long file\n" for i in range(40)]
    (tmp_path / "train.txt").write_text("".join(lines))
    text = local(tmp_path)
    pieces = list(text.documents("train"))
    assert "".join(d for _, d in pieces) == "".join(lines)
    assert len(pieces) > 5
    assert all(d.endswith("\n") and len(d) < 150 for _, d in pieces)
    assert list(text.documents("train", pieces[2][0])) == pieces[3:]


def test_copies_in_hidden_folders_are_no_text(tmp_path):
    for place in ("train", "train/.ipynb_checkpoints"):
        (tmp_path / place).mkdir()
        write(tmp_path / place, "part.jsonl", DOCUMENTS)
    assert read(local(tmp_path)) == DOCUMENTS


def test_rows_are_chosen_by_a_field(tmp_path):
    write(tmp_path, "train.jsonl", DOCUMENTS)
    assert read(local(tmp_path, where={"meta.set": "odd"})) == DOCUMENTS[1::2]


def test_broken_lines_are_named_skipped_and_counted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tape_exp"), "propagate", True)
    rows = [
        json.dumps({"text": "good"}),
        '{"text": "cut',
        "",
        json.dumps({"body": "no text"}),
        json.dumps(["list"]),
    ]
    (tmp_path / "train.jsonl").write_text(
        "\n".join([*rows, json.dumps({"text": "also good"})]) + "\n"
    )
    skipped = Skipped()
    with caplog.at_level(logging.WARNING, "tape_exp"):
        assert [d for _, d in local(tmp_path).documents("train", skipped=skipped)] == [
            "good",
            "also good",
        ]
    assert skipped.rows == 3
    told = caplog.text
    assert "train.jsonl line 2 is not JSON" in told
    assert "line 4 has no text in its field 'text' (it has: body)" in told
    assert "line 5" in told
    assert len({message for message in caplog.messages if "skipped." in message}) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 99),
        ("train.jsonl.xz", b"\xfd7zXZ\0" + b"\xff" * 99),
        ("train.jsonl.zst", b"(\xb5/\xfd" + b"\xff" * 99),
        ("train.jsonl.bz2", b"BZh9" + b"\xff" * 99),
        ("train.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1"),
        ("train.jsonl", b"x" * 9999),
        ("train.jsonl.gz", gzip.compress(b"x" * 9999, mtime=0)),
    ],
)
def test_broken_content_names_the_file(tmp_path, monkeypatch, name, content):
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name} cannot be read beyond row 0: .* Fetch the fi"):
        read(local(tmp_path))


def test_a_compressed_text_of_one_line_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST", 1000)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"x" * 9999))
    pieces = read(local(tmp_path))
    assert "".join(pieces) == "x" * 9999
    assert max(map(len, pieces)) <= 2000


def test_a_deeply_nested_line_is_skipped(tmp_path):
    deep = '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / "train.jsonl").write_text(f'{deep}\n{{"text": "good"}}\n')
    skipped = Skipped()
    assert read(local(tmp_path), skipped=skipped) == ["good"]
    assert skipped.rows == 1


def test_a_damaged_file_is_named(tmp_path):
    write(tmp_path, "train.jsonl.gz", [d * 400 for d in DOCUMENTS])
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        ConfigError, match=r"train\.jsonl\.gz cannot be read beyond row \d: .* Fetch the file again"
    ):
        read(local(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: Text("set", source="local"), "source=local needs a path"),
        (lambda f: local(f / "nowhere"), "nowhere does not exist"),
        (lambda f: local(f), r"no file of the split train in .* \(there is: notes\.md\)"),
        (
            lambda f: local(f / "notes.md"),
            r"text is read from \.jsonl, \.json, \.parquet, \.txt files",
        ),
        (lambda f: Text("set", source="hub"), "source=hub needs repository"),
    ],
)
def test_wrong_sources_say_what_to_do(make, message, tmp_path):
    (tmp_path / "notes.md").write_text("no text")
    with pytest.raises(ConfigError, match=message):
        read(make(tmp_path))
    with pytest.raises(ConfigError, match=r"text\.source=remote is not known"):
        Text("set", source="remote")


def test_without_a_network_the_hub_says_so_at_once(monkeypatch):
    def refuse(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    text = Text("c4", source="hub", repository="allenai/c4", files={"train": ["en/*.json.gz"]})
    with pytest.raises(
        ConfigError, match=r"cannot be reached .*scale\.text=local.*scale\.text=builtin"
    ):
        read(text)


def test_builtin_text_is_split_without_overlap():
    for kind in ("code", "english"):
        text = Text("set", builtin=kind)
        documents = {split: set(read(text, split)) for split in ("train", "validation", "test")}
        sizes = {split: sum(map(len, held)) for split, held in documents.items()}
        assert sizes["train"] > 8 * sizes["validation"] > 0
        assert sizes["test"] > 10_000
        assert not documents["train"] & documents["validation"]
        assert not documents["train"] & documents["test"]


def test_fingerprint_follows_content_and_not_place(tmp_path):
    for name, documents in (("a", DOCUMENTS), ("b", DOCUMENTS), ("c", DOCUMENTS[::-1])):
        write(tmp_path / name, "train.jsonl", documents)
    a, b, c = (local(tmp_path / name).fingerprint("train") for name in "abc")
    assert a == b != c
    assert local(tmp_path / "a", where={"meta.set": "odd"}).fingerprint("train") != a


def test_memory_stays_flat(tmp_path):
    """Once its buffers are filled, reading three times as much takes no more memory."""
    line = json.dumps({"text": "some words of text " * 200}) + "\n"
    for megabytes in (32, 96):
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        with (folder / "train.jsonl").open("w") as file:
            for _ in range((megabytes << 20) // len(line)):
                file.write(line)
    program = (
        "import resource, sys\nfrom tape_exp.data.sources import Text\n"
        "n = sum(1 for _ in Text('set', source='local', path=sys.argv[1]).documents('train'))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    )
    found = {}
    for megabytes in (32, 96):
        command = [sys.executable, "-c", program, str(tmp_path / str(megabytes))]
        rows, peak = map(
            int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        )
        assert rows == (megabytes << 20) // len(line)
        found[megabytes] = peak
    assert found[96] - found[32] < 20


def test_half_of_a_character_is_skipped_and_bytes_of_another_encoding_are_told(tmp_path, caplog):
    rows = [json.dumps({"text": "good"}), '{"text": "\\ud800 half"}']
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "validation.txt").write_bytes(b"caf\xe9 and th\xe9, \xef\xbf\xbd is UTF-8")
    skipped = Skipped()
    with caplog.at_level(logging.WARNING, "tape_exp"):
        assert [d for _, d in local(tmp_path).documents("train", skipped=skipped)] == ["good"]
        read = "".join(d for _, d in local(tmp_path).documents("validation"))
    assert skipped.rows == 1
    assert "train.jsonl line 2 holds half of a character" in caplog.text
    assert read == "caf\ufffd and th\ufffd, \ufffd is UTF-8"
    (told,) = [message for message in caplog.messages if "not all UTF-8" in message]
    assert "validation.txt is not all UTF-8 (bytes that are read as U+FFFD: 2)" in told


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "txt", "txt.gz"])
def test_bytes_that_are_not_utf8_are_counted_for_each_file(suffix, tmp_path, monkeypatch, caplog):
    """Also where a character is cut by a buffer's end, and where two files are read in turn."""
    monkeypatch.setattr(sources, "LONGEST", 100)
    line = b'{"text": "' + "漢é".encode() * 3 + b' \xff\xe6\xbc \xe9"}\n'
    for name in "ab":
        content = (line if name == "a" else line.replace(b"\xff", b"")) * 5001
        (tmp_path / f"train-{name}.{suffix}").write_bytes(
            gzip.compress(content) if suffix.endswith("gz") else content
        )
    files = [local(tmp_path / f"train-{name}.{suffix}") for name in "ab"]
    streams = [text.documents("train") for text in files]
    pairs = list(zip_longest(*streams))
    assert len(pairs) > 100
    wanted = line.decode(errors="replace")
    first = "".join(own[1] for own, _ in pairs if own is not None)
    assert first.count(json.loads(wanted)["text"]) == 5001
    told = [message for message in caplog.messages if "not all UTF-8" in message]
    for name, count in {"a": 4, "b": 3}.items():
        (one,) = [message for message in told if f"train-{name}.{suffix} is" in message]
        assert f"U+FFFD: {count * 5001})" in one


def test_of_small_files_that_are_read_together_the_wrong_ones_are_named(tmp_path, caplog):
    contents = {"a": b"caf\xe9", "b": b"", "c": "café".encode(), "d": b"\xff\xfe", "e": b"e"}
    for name, content in contents.items():
        (tmp_path / f"train-{name}.txt").write_bytes(content)
    places = [place for place, _ in local(tmp_path).documents("train")]
    told = [message for message in caplog.messages if "not all UTF-8" in message]
    assert len(told) == 2
    assert "train-a.txt is not all UTF-8 (bytes that are read as U+FFFD: 1)" in told[0]
    assert "train-d.txt is not all UTF-8 (bytes that are read as U+FFFD: 2)" in told[1]
    caplog.clear()
    assert [d for _, d in local(tmp_path).documents("train", places[2])] == ["e"]
