"""Files that grow by a line at a time, with what a full disk or a lost machine leaves of them."""

import errno
import json
import os
from pathlib import Path

import pytest

from tape_exp.machine.files import finish_last_line, open_atomically, read_jsonl

ROWS = [{"step": 1, "text": "a\u2028b\x85c"}, {"step": 2, "text": "é"}]


@pytest.mark.parametrize("whole", [[], ROWS[:1], ROWS])
def test_a_file_cut_at_any_byte_keeps_its_whole_lines_and_grows(whole, tmp_path):
    path, last, new = tmp_path / "rows.jsonl", {"step": 3, "text": "Ω"}, {"step": 4}
    before = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in whole).encode()
    line = (json.dumps(last, ensure_ascii=False) + "\n").encode()
    for length in range(len(line) + 1):
        path.write_bytes(before + line[:length])
        kept = [*whole, *([last] if length >= len(line) - 1 else [])]
        assert [row for _, row in read_jsonl(path) if row is not None] == kept, length
        finish_last_line(path)
        with path.open("a") as file:
            file.write(json.dumps(new) + "\n")
        assert list(read_jsonl(path)) == list(enumerate([*kept, new], 1)), length


@pytest.mark.parametrize(
    "line", ["{", "<<<<<<< HEAD", "[1]", "3", "null", '{"step": 1}{"step": 2}']
)
def test_a_damaged_line_is_numbered(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n\n{{"step": 3}}\n')
    assert list(read_jsonl(path)) == [(1, {"step": 0}), (2, None), (4, {"step": 3})]


def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def opens_another(file):
    Path("/nope").read_bytes()


def takes_its_name(file):
    Path(file.name).with_name("whole").mkdir()


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (full, "No space left on device: '{path}'"),
        (takes_its_name, "Is a directory: '{path}'"),
        (opens_another, "No such file or directory: '/nope'"),
    ],
)
def test_an_error_names_the_file_that_it_is_of(fails, told, tmp_path):
    path = tmp_path / "whole"
    with pytest.raises(OSError, match=told.format(path=path)), open_atomically(path) as file:
        fails(file)
    assert not path.is_file()
    assert not list(tmp_path.glob(".*"))
