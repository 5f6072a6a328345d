"""A corpus as one row of token ids on disk: written once, memory-mapped, cut without padding."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.data.cache import writing_cache
from tape_exp.data.sources import Place, Skipped, Text
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import file_lock, flush_to_disk, parse_json, sha256, write_atomically
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
SHARD = 1 << 24  # tokens of a file, or a little more: it ends with a document
AT_ONCE = 1 << 20  # characters that are tokenised at once


class Tokens:
    """Token ids of a corpus, BOS before each document, in memory-mapped files. ``tokens[a:b]``
    reads from disk.

    Args:
        folder: with the files of :func:`tokenise`.
        shards: the indices of its files, as :func:`intact_shards` gives them.
        limit: use as many tokens only, whatever more is there.
    """

    def __init__(
        self, folder: Path, shards: Sequence[dict[str, Any]], limit: int | None = None
    ) -> None:
        self._ends = np.cumsum([shard["tokens"] for shard in shards])
        self._maps = [_map(folder, shard) for shard in shards]
        self._sizes = [folder / shard["sizes"] for shard in shards]
        total = int(self._ends[-1]) if shards else 0
        self.length = total if limit is None else min(limit, total)
        self.facts = {
            key: sum(shard[key] for shard in shards)
            for key in ("tokens", "documents", "bytes", "skipped")
        }

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> np.ndarray:
        """Ids of a slice, int64."""
        start, stop, _ = part.indices(self.length)
        pieces = []
        for number in range(int(np.searchsorted(self._ends, start, "right")), len(self._maps)):
            begin = int(self._ends[number]) - len(self._maps[number])
            if begin >= stop:
                break
            pieces.append(self._maps[number][max(start - begin, 0) : stop - begin])
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, dtype=np.int64)

    def blocks(self, starts: np.ndarray, length: int) -> np.ndarray:
        """(len(starts), length) ids, one row from each start on."""
        return np.stack([self[start : start + length] for start in map(int, starts)])

    def fingerprint(self) -> str:
        """A hash of the ids: of all up to a million, of the first and last beyond."""
        ends = self[: 1 << 19].tobytes() + self[max(self.length - (1 << 19), 0) :].tobytes()
        return hashlib.sha256(str(self.length).encode() + ends).hexdigest()[:16]

    def bytes(self, decode: Callable[[np.ndarray], str]) -> int:
        """UTF-8 bytes of the tokens' text; of a document cut by the limit, of its beginning."""
        total, position = 0, 0
        for sizes in map(np.load, self._sizes):
            for tokens, size in sizes:
                if position + tokens > self.length:
                    return total + len(decode(self[position : self.length]).encode())
                total, position = total + int(size), position + int(tokens)
        return total


def tokenise(
    text: Text, split: str, tokenizer: Tokenizer, cache: Path, needed: int | None = None
) -> Tokens:
    """The split's tokens from the cache, tokenised first where they are not there yet.

    The cache is keyed by the fingerprints of text and tokenizer and the token before a document. A
    file is finished or absent: what was killed goes on after the last one, and several processes
    wait for the one that writes. From the first file on whose content is not what its index says,
    the corpus is tokenised again.

    Args:
        needed: tokens that are used; the corpus is read no further.

    Raises:
        ConfigError: the split is empty, the cache cannot be written, or what
            :meth:`Text.documents` raises.
    """
    key = f"{text.name}-{split}-{text.fingerprint(split)}-{tokenizer.fingerprint}"
    if tokenizer.bos:  # which its fingerprint leaves out; 0 is that of our own tokenizers
        key += f"-{tokenizer.bos}"
    folder = cache / "tokens" / key
    done = _Done(intact_shards(folder))
    if not done.covers(needed):
        with writing_cache(cache), file_lock(folder / ".lock"):
            done = _Done(intact_shards(folder))
            if not done.covers(needed):
                _extend(folder, done, text, split, tokenizer, needed)
    tokens = Tokens(folder, done.shards, needed)
    if not len(tokens):
        raise ConfigError(
            f"text {text.name}: its split {split} holds no document. Set its path, files, column "
            "or where."
        )
    if tokens.facts["skipped"]:
        rows, kept = tokens.facts["skipped"], tokens.facts["documents"]
        log.warning(
            "text %s, %s: %d rows were skipped, %d documents are used.",
            text.name,
            split,
            rows,
            kept,
        )
    return tokens


def intact_shards(folder: Path) -> list[dict[str, Any]]:
    """What the index says of each finished file, in order, up to the first damaged one.

    A file is damaged if its size or SHA-256 is not that of its index: a disk may lose what a
    machine had not yet written when it failed, and the zeros in its place are tokens like others.
    """
    shards: list[dict[str, Any]] = []
    for index in sorted(folder.glob("[0-9]*.json")):
        try:
            shard = parse_json(index.read_text())
            named = {f"{len(shards):05d}.bin", f"{len(shards):05d}.npy"}  # none before is missing
            damaged = [name for name in named if not _is_intact(folder, name, shard)]
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            damaged = [index.name]
        if damaged:
            log.warning("%s is damaged: tokenising again from there.", folder / damaged[0])
            break
        shards.append(shard)
    return shards


def _is_intact(folder: Path, name: str, shard: dict[str, Any]) -> bool:
    path = folder / name
    return path.stat().st_size == shard["size"][name] and sha256(path) == shard["sha256"][name]


def _map(folder: Path, shard: dict[str, Any]) -> np.ndarray:
    """A file's ids; one of the length 0, which ends a corpus, cannot be mapped."""
    dtype = np.dtype(shard["dtype"])
    return np.memmap(folder / shard["file"], dtype, "r") if shard["tokens"] else np.zeros(0, dtype)


class _Done:
    """How far the finished files of a folder reach."""

    def __init__(self, shards: list[dict[str, Any]]) -> None:
        self.shards = shards
        self.tokens = sum(shard["tokens"] for shard in shards)
        self.next: Place = tuple(shards[-1]["next"]) if shards else (0, 0)
        self.whole = bool(shards) and shards[-1]["last"]

    def covers(self, needed: int | None) -> bool:
        """Whether there is as much as is needed."""
        return self.whole or (needed is not None and self.tokens >= needed)


def _extend(
    folder: Path, done: _Done, text: Text, split: str, tokenizer: Tokenizer, needed: int | None
) -> None:
    """Write the files that are missing, and add their indices to ``done``."""
    for old in folder.glob(".[0-9]*"):  # a killed process left it
        old.unlink()
    for old in folder.glob("[0-9]*"):  # a damaged file, or one after it
        if int(old.stem) >= len(done.shards):
            old.unlink()
    progress = _Progress(f"{text.told} {split}")
    skipped = Skipped()
    batches = _batches(text.documents(split, done.next, skipped))
    number, total, last = len(done.shards), done.tokens, False
    while not last and (needed is None or total < needed):
        began, left_out = total, skipped.rows
        temporary = folder / f".{number:05d}.{os.getpid()}"
        sizes: list[tuple[int, int]] = []
        place = done.next
        try:
            with open(temporary, "wb") as file:
                while total - began < SHARD and (needed is None or total < needed):
                    batch = next(batches, None)
                    if batch is None:
                        last = True
                        break
                    place, documents = batch
                    for document, ids in zip(documents, tokenizer.encode(documents), strict=True):
                        file.write(
                            np.array([tokenizer.bos], dtype=tokenizer.dtype).tobytes()
                            + ids.tobytes()
                        )
                        sizes.append((len(ids) + 1, len(document.encode())))
                        total += len(ids) + 1
                    progress.add(sum(size for _, size in sizes[-len(documents) :]), total)
            array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
            with open(temporary.with_suffix(".npy"), "wb") as file:
                np.save(file, array)
            facts: dict[str, Any] = {
                "file": f"{number:05d}.bin",
                "sizes": f"{number:05d}.npy",
                "dtype": np.dtype(tokenizer.dtype).name,
                "tokens": total - began,
                "documents": len(sizes),
                "bytes": sum(size for _, size in sizes),
                "skipped": skipped.rows - left_out,
                "next": place,
                "last": last,
            }
            parts = {facts["file"]: temporary, facts["sizes"]: temporary.with_suffix(".npy")}
            for part in parts.values():
                flush_to_disk(part)
            facts["size"] = {name: part.stat().st_size for name, part in parts.items()}
            facts["sha256"] = {name: sha256(part) for name, part in parts.items()}
            for name, part in parts.items():
                os.replace(part, folder / name)
            write_atomically(folder / f"{number:05d}.json", json.dumps(facts) + "\n")
            done.shards.append(facts)
        finally:
            temporary.unlink(missing_ok=True)
            temporary.with_suffix(".npy").unlink(missing_ok=True)
        done.next, number = place, number + 1
    progress.finish(total)


def _batches(documents: Iterator[tuple[Place, str]]) -> Iterator[tuple[Place, list[str]]]:
    """Documents of about :data:`AT_ONCE` characters together, with the place after the last."""
    held: list[str] = []
    size = 0
    place: Place = (0, 0)
    for place, document in documents:
        # A NUL or a lone surrogate is no text; what cannot be written as UTF-8 is replaced.
        held.append(document.encode("utf-8", "replace").decode())
        size += len(document)
        if size >= AT_ONCE:
            yield place, held
            held, size = [], 0
    if held:
        yield place, held


class _Progress:
    """A line every ten seconds, and one at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.bytes = 0
        self.began = self.last = time.monotonic()

    def add(self, size: int, tokens: int) -> None:
        """Count what more has been read."""
        self.bytes += size
        if time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            self.finish(tokens)

    def finish(self, tokens: int) -> None:
        """Say how far it is."""
        megabytes, seconds = self.bytes / 1e6, max(time.monotonic() - self.began, 1e-9)
        log.info(
            "Tokenised %s: %.1f MB, %.2f M tokens, %.2f MB/s.",
            self.what,
            megabytes,
            tokens / 1e6,
            megabytes / seconds,
        )
