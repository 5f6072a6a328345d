"""Files that are whole or absent."""

import hashlib
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
    except OSError as error:  # of a full disk it names no file, and nobody knows the temporary
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is whole or absent."""
    with open_atomically(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_hash(parts: Iterable[str | bytes]) -> str:
    """The first sixteen digits of the SHA-256 of parts, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:16]


def zip_is_sound(path: Path) -> bool:
    """Whether every file in a zip, such as a checkpoint of torch's, has the CRC that it should."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except OSError:  # it cannot be read, and may be whole
        raise
    except Exception:  # a broken zip raises almost anything
        return False
