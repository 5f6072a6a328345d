"""A split as one row of token ids in one file, written once and memory-mapped."""

import logging
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock

from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import open_atomically, short_hash
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
AT_ONCE = 256  # documents that are tokenised together


class Tokens:
    """Token ids of a split, BOS before each document: up to ``limit`` of the file of
    :func:`tokenise`, whose suffix is its dtype. ``tokens[a:b]`` reads from disk.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        dtype = np.dtype(path.suffix[1:])
        ids = np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
        self._ids = ids[:limit]
        self._documents = path.with_suffix(".npz")

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, range_: slice) -> np.ndarray:
        return self._ids[range_].astype(np.int64)

    def blocks(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Read (len(starts), length) ids, one row from each start on; a row beyond the last id
        raises IndexError.
        """
        return self._ids[starts[:, None] + np.arange(length)].astype(np.int64)

    def fingerprint(self) -> str:
        """Hash the ids: all up to a million, the first and last beyond."""
        ends = self[: 1 << 19].tobytes() + self[-(1 << 19) :].tobytes()
        return short_hash([str(len(self)), ends])

    def bytes(self, decode: Callable[[np.ndarray], str]) -> int:
        """Count the UTF-8 bytes of the tokens' text; of a document cut by the limit, of its
        beginning.
        """
        tokens, sizes = np.load(self._documents)["sizes"].T
        ends = np.cumsum(tokens)
        complete = int(np.searchsorted(ends, len(self), "right"))  # documents
        cut = self[int(ends[complete - 1]) if complete else 0 :]
        return int(sizes[:complete].sum()) + len(decode(cut).encode())


def tokenise(
    text: Text, split: str, tokenizer: Tokenizer, cache: Path, needed: int | None = None
) -> Tokens:
    """Read the split's tokens from the cache, tokenised first where they are not there yet; the
    corpus is read no further than to the ``needed`` ones.

    The cache is keyed by the fingerprints of text and tokenizer and the token before a document.
    The file is whole or absent, and several processes wait for the one that writes.
    """
    name = f"{text.name}-{split}-{text.fingerprint(split)}-{tokenizer.fingerprint}-{tokenizer.bos}"
    path = cache / "tokens" / f"{name}.{np.dtype(tokenizer.dtype).name}"
    if not _covers(path, needed):
        with FileLock(path.with_suffix(".lock")):
            if not _covers(path, needed):  # another process may have made it meanwhile
                _write(path, text, split, tokenizer, needed)
    tokens = Tokens(path, needed)
    if not len(tokens):
        raise ConfigError(
            f"text {text.name}: its split {split} holds no document; set its path, files, column "
            "or where."
        )
    return tokens


def _covers(path: Path, needed: int | None) -> bool:
    """Say whether the file is there, and has all tokens or as many as are needed."""
    if not path.with_suffix(".npz").exists():
        return False
    enough = needed is not None and len(Tokens(path)) >= needed
    return enough or bool(np.load(path.with_suffix(".npz"))["whole"])


def _write(path: Path, text: Text, split: str, tokenizer: Tokenizer, needed: int | None) -> None:
    """Write the ids, and last the tokens and bytes of each document and whether these are all."""
    log.info("Tokenising %s %s.", text.label, split)
    began = time.monotonic()
    total = 0
    sizes = []
    whole = True
    bos = np.array([tokenizer.bos], dtype=tokenizer.dtype).tobytes()
    documents = text.documents(split)
    with open_atomically(path) as file:
        for batch in iter(lambda: list(islice(documents, AT_ONCE)), []):
            for document, ids in zip(batch, tokenizer.encode_documents(batch), strict=True):
                file.write(bos + ids.tobytes())
                sizes.append((len(ids) + 1, len(document.encode())))
                total += len(ids) + 1
            if needed is not None and total >= needed:
                whole = False
                break
        path.with_suffix(".npz").unlink(missing_ok=True)  # it is of the file that goes now
    array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    with open_atomically(path.with_suffix(".npz")) as file:
        np.savez(file, sizes=array, whole=whole)
    megabytes = array[:, 1].sum() / 1e6
    seconds = max(time.monotonic() - began, 1e-9)
    log.info("%.2f M tokens, %.1f MB, %.2f MB/s.", total / 1e6, megabytes, megabytes / seconds)
