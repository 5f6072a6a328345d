"""What a file of text is: UTF-8, with a byte order mark or without, as plain text or as rows.

Files are read as the library ``datasets`` reads them. What is not text is refused, in words that
name the place and what to do, and never read as something else.
"""

import codecs
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

FORMATS = (".jsonl", ".json", ".parquet", ".txt", ".py")
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
# What files begin with that are not text themselves, and what to do. A longer mark comes first.
BEGINNINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
POINTER = "version https://git-lfs.github.com/spec/"
AT_ONCE = 1 << 20  # bytes that are looked through at once


class NotTextError(ValueError):
    """What a file holds is not what is read from it: what is wrong where, and what to do."""


def format_of(url: str) -> str:
    """Return the suffix, but for that of a compression: ``.jsonl`` of ``a/train.jsonl.gz``."""
    return Path(without_compression(url)).suffix


def without_compression(url: str) -> str:
    """Return a file's name, but for the suffix of a compression: ``train.txt`` of
    ``train.txt.xz``.
    """
    return str(Path(url).with_suffix("")) if Path(url).suffix in COMPRESSED else url


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """Open a file anywhere that fsspec reads, also a compressed one; one that was cut short
    raises.
    """
    import fsspec

    if not url.endswith(".zst"):
        with fsspec.open(url, "rb", compression="infer") as file:
            yield file
        return
    import pyarrow  # fsspec's reader takes the end of a file for that of its text

    with fsspec.open(url, "rb") as file, pyarrow.CompressedInputStream(file, "zstd") as stream:
        yield io.BufferedReader(stream)


def lines(url: str) -> Iterator[str]:
    """Yield the lines of a file (:func:`opened`).

    Raises:
        NotTextError: it is not UTF-8.
    """
    try:
        with opened(url) as file:
            for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig")):
                if number == 0 and "\0" in line[:2]:
                    raise NotTextError(_other_encoding(0, "UTF-16"))
                if number == 0 and line.startswith(POINTER):
                    raise NotTextError(
                        "it is a pointer of Git LFS to the file; `git lfs pull` fetches that."
                    )
                yield line
    except UnicodeDecodeError as error:
        raise NotTextError(_not_utf8(url)) from error


def rows(url: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .parquet, or the objects of a .jsonl or .json: one a line, or all in an
    array.

    Raises:
        NotTextError: a line is not JSON, or what it holds is no object.
    """
    if format_of(url) == ".parquet":
        yield from _parquet_rows(url)
        return
    first = True
    for number, line in enumerate(lines(url), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            if first and format_of(url) == ".json":  # an array or an object over many lines
                yield from _objects(_whole(url), "the file")
                return
            raise _not_json(error, number) from error
        first = False
        yield from _objects(value, f"line {number}")


def _whole(url: str) -> Any:
    """Read a .json that holds one object or array."""
    try:
        return json.loads("".join(lines(url)))
    except json.JSONDecodeError as error:
        raise _not_json(error, error.lineno) from error


def _not_json(error: json.JSONDecodeError, line: int) -> NotTextError:
    """Explain where a file is not JSON."""
    why = f"{error.msg}, column {error.colno}"
    if error.msg == "Extra data":
        why += ": objects are one a line, or in one array"
    return NotTextError(
        f"line {line} is not JSON ({why}); correct it, or fetch the file again if it was cut short."
    )


def text_in(row: dict[str, Any], field: str, advice: str) -> str | None:
    """Return the text that a row has in a field; None where it is null or NaN. Halves of letters,
    which cannot be written as UTF-8, are replaced.

    Raises:
        NotTextError: there is no such field, or no text in it; ``advice`` says what to do.
    """
    if field not in row:
        raise NotTextError(f"a row has no field {field!r}; {advice}")
    value = row[field]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str):
        kind = type(value).__name__
        raise NotTextError(f"a row's {field!r} is {value!r:.60}, of type {kind}, no text; {advice}")
    return as_utf8(value)


def as_utf8(text: str) -> str:
    """Replace halves of letters, which cannot be written as UTF-8.

    >>> as_utf8("caf\\u00e9 \\ud83d") == "caf\\u00e9 ?"
    True
    """
    return text.encode("utf-8", "replace").decode()


def why(error: Exception) -> str:
    """Explain why a file could not be read to its end, and what to do."""
    if isinstance(error, NotTextError):
        return str(error)
    if isinstance(error, OSError) and error.errno:  # as permission denied
        return f"{error}."
    return f"{error!r}. Fetch the file again, or remove it."


def _parquet_rows(url: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .parquet, a batch in memory."""
    import fsspec
    from pyarrow import parquet

    with fsspec.open(url, "rb") as file:
        for batch in parquet.ParquetFile(file).iter_batches(1024):
            yield from batch.to_pylist()


def _objects(value: Any, place: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that a piece of JSON is: itself, or those of an array."""
    for row in value if isinstance(value, list) else [value]:
        if not isinstance(row, dict):
            raise NotTextError(
                f'{place} holds {json.dumps(row)[:60]}, no object as {{"text": "…"}}; write an '
                "object a line."
            )
        yield row


def _not_utf8(url: str) -> str:
    """Explain where a file stops being UTF-8, and what it may be instead."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    end = 0
    begins = b""
    with opened(url) as file:
        while True:
            piece = file.read(AT_ONCE)
            begins = begins or piece[:8]
            end += len(piece)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                place = end - len(error.object) + error.start
                break
    for mark, encoding in BEGINNINGS.items():
        if begins.startswith(mark):
            return _other_encoding(0, encoding)
    for mark, suffix in PACKED.items():
        if begins.startswith(mark):
            return f"it is compressed; let its name end in {suffix}."
    return _other_encoding(place, "LATIN1", ends=not piece)


def _other_encoding(place: int, encoding: str, ends: bool = False) -> str:
    """Explain that a byte is not UTF-8, and how to convert the file."""
    cut = " It ends there: fetch the file again if it was cut short." if ends else ""
    return (
        f"its byte {place} is not UTF-8.{cut} If it is {encoding}, as it may be, "
        f"`iconv -f {encoding} -t UTF-8 <file> > <new file>` writes it as UTF-8."
    )
