"""Text sources: every format gives the same documents, bad rows are named and counted, and errors
say what to change.
"""

import gzip
import io
import json
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tape_exp.data import text as text_module
from tape_exp.data.text import Text
from tape_exp.settings.errors import ConfigError

DOCUMENTS = [
    "A first document.\nIt has two lines.",
    "Ünïcode — ≥ 3 bytes: 漢字",
    'A third, "quoted" \\ one.',
    "last",
]


def parquet(documents: list[str]) -> bytes:
    file = io.BytesIO()
    columns = {"text": documents, "number": list(range(len(documents)))}
    pq.write_table(pa.table(columns), file, row_group_size=2)
    return file.getvalue()


def write(folder: Path, name: str, documents: list[str]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(
        json.dumps({"text": d, "meta": {"set": "odd" if i % 2 else "even"}}) + "\n"
        for i, d in enumerate(documents)
    )
    if name.endswith(".parquet"):
        path.write_bytes(parquet(documents))
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


def read(text: Text, split: str = "train") -> list[str]:
    return list(text.documents(split))


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


def test_long_plain_text_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "LONGEST", 100)
    lines = [f"line {i} of a long file\n" for i in range(40)]
    (tmp_path / "train.txt").write_text("".join(lines))
    pieces = read(local(tmp_path))
    assert "".join(pieces) == "".join(lines)
    assert len(pieces) > 5
    assert all(piece.endswith("\n") and len(piece) < 150 for piece in pieces)


def test_copies_in_hidden_folders_are_no_text(tmp_path):
    for place in ("train", "train/.ipynb_checkpoints"):
        (tmp_path / place).mkdir()
        write(tmp_path / place, "part.jsonl", DOCUMENTS)
    assert read(local(tmp_path)) == DOCUMENTS


def test_rows_are_chosen_by_a_field(tmp_path):
    write(tmp_path, "train.jsonl", DOCUMENTS)
    assert read(local(tmp_path, where={"meta.set": "odd"})) == DOCUMENTS[1::2]


@pytest.mark.parametrize(
    ("row", "told"), [('{"text": "cut', "JSONDecodeError"), ('{"body": "x"}', "text")]
)
def test_a_broken_row_is_told(row, told, tmp_path):
    rows = [json.dumps({"text": text}) for text in ("good", "", None)]
    (tmp_path / "train.jsonl").write_text("\n".join([*rows, "", row, rows[0]]) + "\n")
    with pytest.raises(
        ConfigError, match=rf"train.jsonl cannot be read after 1 documents: .*{told}"
    ):
        read(local(tmp_path))


@pytest.mark.slow
def test_builtin_text_is_split_without_overlap():
    for kind in ("code", "english"):
        text = Text("set", builtin=kind)
        if kind == "code":  # by their files, since to read them all takes long
            documents = {split: set(text.urls(split)) for split in ("train", "validation", "test")}
        else:
            documents = {s: set(read(text, s)) for s in ("train", "validation", "test")}
        assert len(documents["train"]) > 8 * len(documents["validation"]) > 0
        assert sum(map(len, islice(text.documents("test"), 20))) > 10_000
        assert not documents["train"] & documents["validation"]
        assert not documents["train"] & documents["test"]


def test_fingerprint_follows_the_files(tmp_path):
    write(tmp_path, "train.jsonl", DOCUMENTS)
    before = local(tmp_path).fingerprint("train")
    assert before == local(tmp_path / "train.jsonl").fingerprint("train")
    assert before != local(tmp_path, where={"meta.set": "odd"}).fingerprint("train")
    write(tmp_path, "train.jsonl", DOCUMENTS[::-1])
    assert before != local(tmp_path).fingerprint("train")


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "txt", "txt.gz"])
def test_bytes_that_are_not_utf8_and_halves_of_characters_are_replaced(suffix, tmp_path):
    line = b'{"text": "caf\xe9 \\ud800"}\n'
    content = gzip.compress(line) if suffix.endswith("gz") else line
    (tmp_path / f"train.{suffix}").write_bytes(content)
    expected = "caf\ufffd ?" if "jsonl" in suffix else line.decode(errors="replace")
    assert read(local(tmp_path)) == [expected]
