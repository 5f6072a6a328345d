"""Files that are whole or absent, and files that grow by a line at a time."""

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file and rename it to ``path`` at the end: readers never see half a file. A
    killed process leaves it, ``.<name>.<digits>.partial``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:  # with the permissions that the umask leaves
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        # That of a full disk names no file, and nobody knows the temporary one.
        if error.errno is None or error.filename not in (None, temporary, str(temporary)):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is whole or absent."""
    with open_atomically(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of every line of a file with a JSON object on each; None for a
    line that is damaged, as the last one is where the disk was full or the machine was lost.
    """
    for number, line in enumerate(path.read_text("utf-8", "replace").split("\n"), 1):
        if line.strip():
            yield number, parsed(line)


def finish_last_line(path: Path) -> None:
    """End a file of JSON lines with a whole line, so that the next one can be appended: what was
    left of an unfinished one is cut off. Whoever else appends to the file must wait meanwhile.
    """
    with path.open("rb+") as file:
        if not file.seek(0, os.SEEK_END):
            return
        file.seek(-1, os.SEEK_END)
        if file.read() == b"\n":
            return
        file.seek(0)
        whole, newline, rest = file.read().rpartition(b"\n")
        if parsed(rest) is None:
            file.truncate(len(whole) + len(newline))
        else:  # only its end is missing
            file.write(b"\n")


def parsed(line: str | bytes) -> Any:
    """Return the object in a line; None where it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_hash(parts: Iterable[str | bytes]) -> str:
    """Return the first sixteen digits of the SHA-256 of parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:16]


def zip_is_sound(path: Path) -> bool:
    """Say whether every file in a zip, such as a checkpoint of torch's, has its right CRC."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except OSError:  # it cannot be read, and may be whole
        raise
    except Exception:  # a broken zip raises almost anything
        return False
