"""A split as one row of token ids in one file, written once and memory-mapped."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import file_lock, open_atomically, write_atomically
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
AT_ONCE = 1 << 20  # characters that are tokenised at once


class Tokens:
    """Token ids of a split, BOS before each document. ``tokens[a:b]`` reads from disk.

    Args:
        path: the file of :func:`tokenise`.
        limit: use as many tokens only, whatever more is there.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.facts: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        total = self.facts["tokens"]
        dtype = np.dtype(self.facts["dtype"])
        self._ids = np.memmap(path, dtype, "r") if total else np.zeros(0, dtype)
        self._sizes = path.with_suffix(".npy")
        self.length = total if limit is None else min(limit, total)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> np.ndarray:
        """Ids of a slice, int64."""
        start, stop, _ = part.indices(self.length)
        return self._ids[start:stop].astype(np.int64)

    def blocks(self, starts: np.ndarray, length: int) -> np.ndarray:
        """(len(starts), length) ids, one row from each start on."""
        return self._ids[starts[:, None] + np.arange(length)].astype(np.int64)

    def fingerprint(self) -> str:
        """A hash of the ids: of all up to a million, of the first and last beyond."""
        ends = self[: 1 << 19].tobytes() + self[max(self.length - (1 << 19), 0) :].tobytes()
        return hashlib.sha256(str(self.length).encode() + ends).hexdigest()[:16]

    def bytes(self, decode: Callable[[np.ndarray], str]) -> int:
        """UTF-8 bytes of the tokens' text; of a document cut by the limit, of its beginning."""
        tokens, sizes = np.load(self._sizes).T
        ends = np.cumsum(tokens)
        whole = int(np.searchsorted(ends, self.length, "right"))
        rest = self[int(ends[whole - 1]) if whole else 0 : self.length]
        return int(sizes[:whole].sum()) + len(decode(rest).encode())


def tokenise(
    text: Text, split: str, tokenizer: Tokenizer, cache: Path, needed: int | None = None
) -> Tokens:
    """The split's tokens from the cache, tokenised first where they are not there yet.

    The cache is keyed by the fingerprints of text and tokenizer and the token before a document.
    The file is whole or absent, and several processes wait for the one that writes.

    Args:
        needed: tokens that are used; the corpus is read no further.

    Raises:
        ConfigError: the split is empty, or what :meth:`Text.documents` raises.
    """
    name = f"{text.name}-{split}-{text.fingerprint(split)}-{tokenizer.fingerprint}-{tokenizer.bos}"
    path = cache / "tokens" / f"{name}.bin"
    if not _covers(path, needed):
        with file_lock(path.with_suffix(".lock")):
            if not _covers(path, needed):  # another process may have made it meanwhile
                _write(path, text, split, tokenizer, needed)
    tokens = Tokens(path, needed)
    if not len(tokens):
        raise ConfigError(
            f"text {text.name}: its split {split} holds no document. Set its path, files, column "
            "or where."
        )
    return tokens


def _covers(path: Path, needed: int | None) -> bool:
    """Whether the file is there, and has all tokens or as many as are needed."""
    if not path.with_suffix(".json").exists():
        return False
    facts = json.loads(path.with_suffix(".json").read_text())
    return facts["whole"] or (needed is not None and facts["tokens"] >= needed)


def _write(path: Path, text: Text, split: str, tokenizer: Tokenizer, needed: int | None) -> None:
    """Write the ids, the tokens and bytes of each document, and last what they are together."""
    log.info("Tokenising %s %s.", text.label, split)
    began, total, sizes, whole = time.monotonic(), 0, [], True
    bos = np.array([tokenizer.bos], dtype=tokenizer.dtype).tobytes()
    with open_atomically(path) as file:
        for batch in _batches(text.documents(split)):
            for document, ids in zip(batch, tokenizer.encode(batch), strict=True):
                file.write(bos + ids.tobytes())
                sizes.append((len(ids) + 1, len(document.encode())))
                total += len(ids) + 1
            if needed is not None and total >= needed:
                whole = False
                break
        path.with_suffix(".json").unlink(missing_ok=True)  # it is of the file that goes now
    array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    np.save(path.with_suffix(".npy"), array)
    dtype, read = np.dtype(tokenizer.dtype).name, int(array[:, 1].sum())
    facts = {"dtype": dtype, "tokens": total, "documents": len(sizes), "bytes": read}
    write_atomically(path.with_suffix(".json"), json.dumps(facts | {"whole": whole}) + "\n")
    megabytes, seconds = read / 1e6, max(time.monotonic() - began, 1e-9)
    log.info("%.2f M tokens, %.1f MB, %.2f MB/s.", total / 1e6, megabytes, megabytes / seconds)


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    """Documents of about :data:`AT_ONCE` characters together."""
    held: list[str] = []
    size = 0
    for document in documents:
        held.append(document)
        size += len(document)
        if size >= AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held
