"""Files that are whole or absent."""

import hashlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a temporary file next to ``path``, then rename it: readers see the old file or the new
    one, never half of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def flush_to_disk(path: Path) -> None:
    """Return when the content of a file is on the disk, and not only in the system's memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
