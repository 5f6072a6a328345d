"""Text that is no text: every source of documents meets it."""

import bz2
import gzip
import json
import lzma
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import zstandard

from tests.campaign.files import Attempt, corpus, text_words
from tests.campaign.server import Commands
from tests.campaign.world import take_away

MOST_MEGABYTES = 1500  # of a process that reads a bomb; Python with torch has 400
BOMB = 3 << 30


def line(text: object, **more: object) -> bytes:
    return json.dumps({"text": text, **more}, ensure_ascii=False).encode() + b"\n"


GOOD = b"".join(
    line("the angle of a token turns " * 40, meta={"pile_set_name": "Github"}) for _ in range(30)
)


def contents(generator: random.Random) -> dict[str, bytes]:
    """Name -> what stands in a file of text."""
    noise = generator.randbytes(200_000)
    return {
        "empty": b"",
        "noise": noise,
        "zeros": bytes(100_000),
        "good, then noise": GOOD + noise,
        "invalid UTF-8": GOOD.replace(b"angle", b"ang\xff\xfele"),
        "CRLF": GOOD.replace(b"\n", b"\r\n"),
        "byte order mark": b"\xef\xbb\xbf" + GOOD,
        "no text field": b'{"content": "x"}\n' * 50,
        "text is a number": line(7) * 50,
        "text is null": line(None) * 50,
        "text is nested": line({"text": "x"}) * 50,
        "one-token documents": line("a") * 500,
        "empty documents": line("") * 500,
        "a list a line": b'["text", "x"]\n' * 50,
        "deep nesting": b"[" * 200_000 + b"\n" + GOOD,
        "one endless line": b"x" * (20 << 20),
        "NUL bytes": line("a\0b" * 400) * 50,
        "surrogates": b'{"text": "\\ud800 x"}\n' * 50,
        "controls": line("\x1b[31m\r\u2028\x85" * 100) * 50,
        "NaN": b'{"text": NaN}\n' * 50,
        "good": GOOD,
    }


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".jsonl.gz": gzip.compress,
    ".jsonl.zst": zstandard.compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.bz2": bz2.compress,
    ".txt": bytes,
    ".parquet": bytes,
    ".json": bytes,
}


def bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Small files that are 3 GB long: one line without an end, and one of zeros."""
    block = b"x" * (1 << 20)
    packed = {
        ".jsonl.gz": partial(gzip.open, mode="wb", compresslevel=1),
        ".jsonl.zst": partial(zstandard.open, mode="wb"),
        ".jsonl.xz": partial(lzma.open, mode="wb", preset=0),
    }
    for suffix, opened in packed.items():
        path = folder / f"train{suffix}"
        with opened(path) as file:
            for _ in range(512 if suffix == ".jsonl.xz" else BOMB >> 20):
                file.write(block)
        yield f"bomb{suffix}", path


def cases(folder: Path, generator: random.Random) -> Iterator[str]:
    """Make one bad training text after the other in a folder whose other splits are good."""
    for name, content in contents(generator).items():
        for suffix, pack in PACK.items():
            fresh(folder)
            packed = pack(content)
            (folder / f"train{suffix}").write_bytes(packed)
            yield f"{name}{suffix}"
            if len(packed) > 50 and suffix not in (".jsonl", ".txt", ".json"):
                (folder / f"train{suffix}").write_bytes(packed[: len(packed) // 2])
                yield f"{name}{suffix}, cut short"
    fresh(folder)
    for name, path in bombs(folder):
        yield name
        path.unlink()
    for name, make in places(folder).items():
        fresh(folder)
        make()
        yield name


def places(folder: Path) -> dict[str, Callable[[], object]]:
    """Name -> what makes a place that is no file of text."""
    train = folder / "train.jsonl"
    return {
        "a link to itself": lambda: train.symlink_to(train),
        "a folder that holds itself": lambda: (folder / "train").symlink_to(folder),
        "a link to nothing": lambda: train.symlink_to(folder / "nothing"),
        "no permission": lambda: (train.write_bytes(GOOD), train.chmod(0)),
        "a folder": lambda: train.mkdir(),
        "a pipe": lambda: os.mkfifo(train),
        "nothing": lambda: None,
    }


def fresh(folder: Path) -> None:
    """Validation and test as they should be, and no training text."""
    take_away(folder)
    corpus(folder)
    (folder / "train.jsonl").unlink()


def attempts(do: Commands, world: Path, seed: int) -> Iterator[Attempt]:
    """Train on each text, with a byte tokenizer and with a BPE that is trained on it."""
    folder, generator = world / "bad", random.Random(seed)
    folder.mkdir(exist_ok=True)
    corpus(world / "corpus")
    for name in cases(folder, generator):
        for kind in ("byte", "bpe"):
            take_away(world / "out")
            words = [w for w in text_words(folder) if "tokenizer" not in w]
            words += [f"task.tokenizer.kind={kind}", "runs=out/runs", "cache=out/cache"]
            words += ["task.tokenizer.vocab=300"] if kind == "bpe" else []
            words[words.index(f"task.tests.github.path={folder}")] = (
                f"task.tests.github.path={world / 'corpus'}"
            )
            outcome = do("run", *words, limit=180)
            bad = "too much memory" if outcome.megabytes > MOST_MEGABYTES else ""
            if outcome.verdict == "sentence" and "train" not in outcome.sentence:
                bad = "names no file"
            yield f"{name}, {kind}", outcome, bad
