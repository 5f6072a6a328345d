"""The lines of files of any length, also compressed ones, within a bounded memory."""

import codecs
import io
import threading
from collections.abc import Iterator
from typing import Any

COUNTED = "tape_exp.counted"  # how errors of decoding are handled: as "replace", and counted


class _Replaced(threading.local):
    number = 0


_replaced = _Replaced()


def _count(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    end = error.end
    _replaced.number += end - error.start
    return "\ufffd", end


codecs.register_error(COUNTED, _count)


def replaced() -> int:
    """How many bytes this thread has read as U+FFFD so far, in all files."""
    return _replaced.number


class _Reads(io.RawIOBase):
    """A file through its ``read`` only: what ``datasets`` opens asks a hub again there."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer or a part of it."""
        content = self.file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def lines(url: str, longest: int, cut: bool = False) -> Iterator[str]:
    """The lines of a file, also of a compressed one, with their ends.

    Args:
        longest: characters of a line.
        cut: cut a longer one.

    Raises:
        ValueError: a line is longer and may not be cut.
    """
    from datasets import StreamingDownloadManager
    from datasets.utils.file_utils import xopen

    place = StreamingDownloadManager().download_and_extract(url)
    with (
        xopen(place, "rb") as file,
        io.BufferedReader(_Reads(file), 1 << 20) as buffered,
        io.TextIOWrapper(buffered, encoding="utf-8", errors=COUNTED) as text,
    ):
        while line := text.readline(longest):
            if len(line) == longest and not cut:
                raise ValueError(f"a line has more than {longest} characters")
            yield line


def pieces(url: str, longest: int) -> Iterator[str]:
    """A file as documents of ``longest`` characters or so, cut at the ends of its lines."""
    piece, length = [], 0
    for line in lines(url, longest, cut=True):
        piece.append(line)
        length += len(line)
        if length > longest:
            yield "".join(piece)
            piece, length = [], 0
    if piece:
        yield "".join(piece)
