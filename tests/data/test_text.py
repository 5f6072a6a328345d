"""Text sources: every format gives the same documents, bad rows are named and counted, and errors
say what to change.
"""

import dataclasses
import gzip
import io
import json
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tape_exp.data import text as text_module
from tape_exp.data.text import Text
from tape_exp.settings.construct import validate
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


GOOD = [{"text": "one"}, {"text": ""}, {"text": None}, {"text": "zwei ü"}]
ROWS = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in GOOD)
FILES = {  # what a file may be, as people's tools write it
    "marked.jsonl": ROWS.encode("utf-8-sig"),
    "windows.jsonl": ROWS.replace("\n", "\r\n").encode(),
    "blank.jsonl": b"\n" + ROWS.replace("\n", "\n\n").encode(),
    "array.json": json.dumps(GOOD).encode(),
    "printed.json": json.dumps(GOOD, indent=2).encode(),
    "object.json": json.dumps(GOOD[0], indent=2).encode(),
    "nan.jsonl": (ROWS + '{"text": NaN}\n').encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_that_datasets_reads(name, tmp_path):
    datasets = pytest.importorskip("datasets")
    path = tmp_path / name
    path.write_bytes(FILES[name])
    theirs = datasets.load_dataset("json", data_files=str(path), split="train", streaming=True)
    assert read(local(path)) == [row["text"] for row in theirs if row["text"]]


NUMBER, BYTES = '{"text": 5}', pa.table({"text": [b"a"]})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
PACKED = zstandard.compress(ROWS.encode())
BROKEN = {  # and what it may not be: the content, and what is told of it
    "utf16.txt": ("text".encode("utf-16"), r"byte 0 is not UTF-8\. .*iconv -f UTF-16 -t UTF-8"),
    "bare16.txt": ("text".encode("utf-16-le"), r"byte 0 is not UTF-8\. .*iconv -f UTF-16"),
    "utf16.jsonl": (ROWS.encode("utf-16"), "byte 0 is not UTF-8.*iconv -f UTF-16"),
    "utf32.txt": ("text".encode("utf-32"), r"byte 0 is not UTF-8\. .*iconv -f UTF-32"),
    "packed.jsonl": (gzip.compress(ROWS.encode()), "it is compressed; let its name end in .gz"),
    "pointer.txt": (POINTER, "a pointer of Git LFS to the file; `git lfs pull` fetches"),
    "pointer.jsonl": (POINTER, "a pointer of Git LFS"),
    "latin.txt": ("a\ncafé!".encode("latin-1"), "byte 5 is not UTF-8.*iconv -f LATIN1"),
    "latin.jsonl": (ROWS.encode("latin-1"), f"byte {ROWS.index('ü')} is not UTF-8.*-f LATIN1"),
    "latin.txt.gz": (gzip.compress("café!".encode("latin-1")), "byte 3 is not UTF-8"),
    "cut.txt": ("aé".encode()[:-1], "byte 1 is not UTF-8. It ends there: fetch the file again"),
    "cut.jsonl": (ROWS.encode()[:-9], "documents: line 4 is not JSON .*; correct it"),
    "cut.jsonl.gz": (gzip.compress(ROWS.encode())[:-9], "EOFError.*Fetch the file again"),
    "cut.txt.zst": (PACKED[:-9], "Truncated.*Fetch the file again"),
    "cut_array.json": (b'[\n{"text": "a"},\n{"te', "line 3 is not JSON .*; correct it"),
    "cut_or_joined.json": (b'{"text": "a"}{"text": "b"}', "Extra data.*objects are one a line, or"),
    "cut.parquet": (b"PAR1", "Fetch the file again, or remove it"),
    "number.jsonl": ((ROWS + NUMBER).encode(), "'text' is 5, of type int, no text; column="),
    "list.jsonl": (b'{"text": ["a"]}', r"'text' is \['a'\], of type list, no text; column="),
    "bytes.parquet": (BYTES, "'text' is b'a', of type bytes, no text; column="),
    "field.jsonl": (b'{"body": "x"}', "no field 'text'; column= of this text"),
    "texts.json": (b'["one", "two"]', 'line 1 holds "one", no object as .*write an object a line'),
    "value.jsonl": (b"5", "line 1 holds 5, no object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_text_is_refused_with_its_place_and_a_way_out(name, tmp_path):
    (content, told), path = BROKEN[name], tmp_path / name
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name} cannot be read after \d .*{told}") as error:
        read(local(path))
    assert "\n" not in str(error.value)
    fetched = "etch the file" in str(error.value)
    assert fetched == name.startswith("cut"), "it helps nowhere else"


def test_frames_of_zstandard_are_one_file(tmp_path):
    packed = [zstandard.compress(f'{{"text": "{word}"}}\n'.encode()) for word in "abc"]
    (tmp_path / "train.jsonl.zst").write_bytes(b"".join(packed))
    assert read(local(tmp_path)) == ["a", "b", "c"]


def test_every_file_is_read_once(tmp_path):
    """Of patterns that meet, of folders behind links; a packed copy is refused."""
    write(tmp_path, "elsewhere/part.jsonl", ["linked"])
    write(tmp_path, "text/train/own.jsonl", ["own"])
    (tmp_path / "text/train/more").symlink_to(tmp_path / "elsewhere")
    text = local(tmp_path / "text")
    assert sorted(read(text)) == ["linked", "own"]
    both = dataclasses.replace(text, files={"train": ["train/*.jsonl", "**/*.jsonl"]})
    assert sorted(read(both)) == ["linked", "own"]
    write(tmp_path, "text/train/own.jsonl.gz", ["own"])
    with pytest.raises(ConfigError, match=r"own.jsonl and .*own.jsonl.gz would be read twice; rem"):
        read(text)


@pytest.mark.parametrize(
    ("key", "value", "kept"), [("n", 3, "a"), ("ok", False, "b"), ("x", 1.5, "b")]
)
def test_rows_are_chosen_by_numbers_too(key, value, kept, tmp_path):
    rows = [{"text": "a", "n": 3, "ok": True, "x": 1}, {"text": "b", "n": 4, "ok": False, "x": 1.5}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"name": "own", "source": "local", "path": str(tmp_path), "where": {key: value}}
    assert read(validate(Text, settings, "task.text")) == [kept]


def test_a_row_is_chosen_by_a_field_that_it_has(tmp_path):
    write(tmp_path, "train.jsonl", DOCUMENTS)
    with pytest.raises(ConfigError, match=r"no field 'meta\.kind', by which where= of this text"):
        read(local(tmp_path, where={"meta.kind": "odd"}))


@pytest.mark.long
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


@pytest.mark.parametrize(("kind", "same"), [("english", False), ("both", False), ("code", True)])
def test_fingerprint_of_built_in_text_follows_the_reference_of_this_python(kind, same, monkeypatch):
    text = Text("set", builtin=kind)
    splits = ("train", "validation", "test")
    before = [text.fingerprint(split) for split in splits]
    assert before == [text.fingerprint(split) for split in splits]
    others = {name: f"{topic} In another version." for name, topic in topics.items()}
    monkeypatch.setattr("pydoc_data.topics.topics", others)
    after = [text.fingerprint(split) for split in splits]
    assert [one == other for one, other in zip(before, after, strict=True)] == [same] * 3


@pytest.mark.parametrize("suffix", ["txt", "txt.gz", "jsonl", "jsonl.gz"])
def test_a_byte_order_mark_is_no_text_and_halves_of_letters_are_replaced(suffix, tmp_path):
    line = b'\xef\xbb\xbf{"text": "\xc3\xa9 \\ud800"}\n'
    content = gzip.compress(line) if suffix.endswith("gz") else line
    (tmp_path / f"train.{suffix}").write_bytes(content)
    expected = "é ?" if "jsonl" in suffix else line.decode("utf-8-sig")
    assert read(local(tmp_path)) == [expected]
