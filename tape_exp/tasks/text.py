"""What the language tasks share: a corpus, its tokenizer, and the perplexity of a model on it."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp import weights
from tape_exp.config import Arch, ConfigError, Optim, one_of
from tape_exp.data import tokenizers
from tape_exp.data.packing import Tokens, tokenise
from tape_exp.data.sources import Text
from tape_exp.data.tokenizers import Tokenization, Tokenizer
from tape_exp.seeding import RowSampler
from tape_exp.tasks.base import IGNORE, Batch, Task, share, sum_over_processes


class TextTask(Task):
    """A task on text: :meth:`prepare_data` makes the tokenizer, which gives ``arch`` its vocabulary.

    Args:
        text: the corpus.
        tokenizer: how it is cut; where the run begins from a checkpoint, the checkpoint's own tokenizer is used.
        train_length: T, the tokens that the model is trained on at once.
        longest: the longest sequence that it sees at all.
    """

    tokenizer: Tokenizer

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        train_length: int,
        longest: int,
    ) -> None:
        if train_length < 1:
            raise ConfigError(f"task.train_length={train_length} must be at least 1.")
        sized = dataclasses.replace(arch, train_length=train_length, max_length=max(longest, train_length))
        super().__init__(sized, optim, seed)
        self.text, self.tokenization, self.train_length = text, tokenizer, train_length
        self._prepared = False

    def prepare_data(self) -> None:
        """Make the tokenizer and whatever :meth:`prepare` needs; the second call does nothing."""
        if self._prepared:
            return
        kept = weights.companion(self.checkpoint, "tokenizer.json") if self.checkpoint else None
        if kept is not None:
            self.tokenizer = tokenizers.load(kept, self.tokenization.bos, self.tokenization.eos)
        else:
            self.tokenizer = self.tokenization.make(self.text, self.cache)
        self.arch = dataclasses.replace(self.arch, vocab=self.tokenizer.vocab)
        self.prepare()
        self._prepared = True

    def prepare(self) -> None:
        """Tokenise what the task reads."""

    def tokens(self, text: Text, split: str, needed: int | None = None) -> Tokens:
        """A split's tokens, from the cache where they are there."""
        return tokenise(text, split, self.tokenizer, self.cache, needed)

    def assets(self) -> dict[str, str]:
        """The tokenizer, kept with the run so that later tasks can begin from its checkpoint."""
        return {"tokenizer.json": self.tokenizer.save()}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands and what it is a stream of, for the checkpoint."""
        return super().state_dict() | {"tokenizer": self.tokenizer.fingerprint, "data": self.fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse to go on with other tokens. Raises :class:`ConfigError`."""
        if state["tokenizer"] != self.tokenizer.fingerprint:
            raise ConfigError(
                "the checkpoint was trained with another tokenizer than task.tokenizer now gives (has the corpus or the "
                "tokenizer.json changed?). Restore it, or train afresh in another folder: runs=<folder>."
            )
        if state["data"] != self.fingerprint():
            raise ConfigError(
                "the checkpoint was trained on other text than task.text now holds. Restore the files, or train afresh in "
                "another folder: runs=<folder>."
            )


class Analysis(TextTask):
    """Looks into a trained model on a sample text; nothing is trained.

    Args:
        layers: of interest, counted from 1; those that the model lacks are left out.
        split: of ``text``, whose first tokens are the sample.
        rows, length: of the sample; null: the trained length.
        extra: tokens that the analysis puts in front.
    """

    trains = False

    def __init__(
        self,
        arch: Arch,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        train_length: int,
        layers: tuple[int, ...],
        split: str,
        rows: int,
        length: int | None,
        extra: int = 0,
    ) -> None:
        self.length = train_length if length is None else length
        for key, value in (("rows", rows), ("length", self.length)):
            if value < 1:
                raise ConfigError(f"task.{key}={value} must be at least 1.")
        self.layers = [layer for layer in layers if 1 <= layer <= arch.layers]
        if not self.layers:
            raise ConfigError(f"task.layers={list(layers)} names no layer of a model with task.arch.layers={arch.layers}.")
        optim = Optim(batch=1, max_steps=1, lr=1e-4)
        super().__init__(arch, optim, seed, text, tokenizer, train_length, self.length + extra)
        self.split, self.rows = split, rows

    def prepare(self) -> None:
        """Take the sample."""
        needed = self.rows * self.length
        tokens = self.tokens(self.text, self.split, needed)
        if len(tokens) < needed:
            raise ConfigError(
                f"text {self.text.name}: its split {self.split} has {len(tokens)} tokens, fewer than task.rows={self.rows} "
                f"times {self.length}. Set task.rows={max(len(tokens) // self.length, 1)}, or a smaller task.length."
            )
        self.sample = torch.from_numpy(tokens[:]).view(self.rows, self.length)

    def train_batch(self, first: int, count: int) -> Batch:
        """Nothing is trained."""
        raise ConfigError("this task trains nothing.")

    def validation_batches(self) -> list[Batch]:
        """None."""
        return []

    def fingerprint(self) -> str:
        """A hash of the sample."""
        return hashlib.sha256(self.sample.numpy().tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Windows:
    """How a long row of tokens is shown to a model and scored.

    Args:
        lengths: context lengths, each evaluated over the same tokens.
        stride: tokens from one window's beginning to the next; null: the length, blocks that do not overlap.
        score: of each window ``all`` tokens, or only those that are ``new``: not in a window before.
        tokens: how many of the set are scored, from its beginning; null: all.
        tokens_per_batch: of one forward pass.
    """

    lengths: tuple[int, ...] = (1024,)
    stride: int | None = None
    score: str = "all"
    tokens: int | None = None
    tokens_per_batch: int = 8192

    def __post_init__(self) -> None:
        one_of("task.windows.score", self.score, ("all", "new"))
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"task.windows.lengths={list(self.lengths)} must name at least one length, each at least 1.")
        if self.stride is not None and not 1 <= self.stride <= min(self.lengths):
            raise ConfigError(
                f"task.windows.stride={self.stride} must be between 1 and the shortest length, {min(self.lengths)}: "
                "a longer one would leave tokens out."
            )
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"task.windows.tokens={self.tokens} must be at least 1, or null for all.")

    @property
    def needed(self) -> int | None:
        """Tokens that are read: the first is not scored."""
        return None if self.tokens is None else self.tokens + 1


def perplexity(
    model: Callable[..., Tensor],
    tokens: Tokens,
    decode: Callable[[np.ndarray], str],
    windows: Windows,
    name: str,
    progress: Callable[..., Any],
    limit: int | None = None,
) -> dict[str, float]:
    """Token-weighted perplexity exp(Σ nll / n) at each length, with its bootstrap standard error, and bits per byte.

    Every token but the first is scored, given those before it in its window; blocks that do not overlap give each the
    context of its place in the block. Bits per byte, Σ nll / (ln 2 · bytes) scaled to all tokens where windows overlap, does
    not depend on the tokenizer. ``<name>/unigram_perplexity`` is exp of the entropy of the set's own token counts: no model
    that ignores the context does better.

    Args:
        model: a decoder, which scores ``labels_BT``.
        limit: stop after as many batches of each length.

    Returns:
        ``<name>/perplexity@<length>``, ``<name>/perplexity@<length>_stderr``, ``<name>/bits_per_byte@<length>``, …

    Raises:
        ConfigError: the set is shorter than two tokens.
    """
    if len(tokens) < 2:
        raise ConfigError(f"text {name}: {len(tokens)} tokens are too few to score. Give it more text.")
    metrics = {f"{name}/tokens": float(len(tokens) - 1), f"{name}/unigram_perplexity": unigram_perplexity(tokens)}
    bytes_per_token = tokens.bytes(decode) / len(tokens)
    for length in windows.lengths:
        nll, count = score(model, tokens, windows, length, f"{name} at {length}", progress, limit)
        mean = float(nll.sum() / count.sum())
        metrics[f"{name}/perplexity@{length}"] = math.exp(min(mean, 700))
        metrics[f"{name}/perplexity@{length}_stderr"] = bootstrap(*_independent(nll, count, windows, length))
        metrics[f"{name}/bits_per_byte@{length}"] = mean / math.log(2) / bytes_per_token
    return metrics


def score(
    model: Callable[..., Tensor],
    tokens: Tokens,
    windows: Windows,
    length: int,
    description: str,
    progress: Callable[..., Any],
    limit: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Summed negative log-likelihood and number of scored tokens of each window; under several processes each takes a share."""
    batches = list(window_batches(tokens, windows, length))[:limit]
    sums = torch.zeros(2, sum(len(starts) for starts in batches), dtype=torch.float64)
    firsts = np.cumsum([0, *map(len, batches)])
    for (number, starts), counts in progress(share(list(enumerate(batches))), description):
        batch = window_batch(tokens, windows, length, starts)
        sampler = RowSampler(0, "evaluation", first=int(firsts[number]))
        found = model(batch["inputs"], labels_BT=batch["labels"], sampler=sampler)
        if counts:
            part = slice(int(firsts[number]), int(firsts[number + 1]))
            sums[0, part] = found.sum(-1, dtype=torch.float64).cpu()
            sums[1, part] = (batch["labels"] != IGNORE).sum(-1)
    nll, count = sum_over_processes(sums).numpy()
    return nll, count


def window_batches(tokens: Tokens, windows: Windows, length: int) -> Iterator[np.ndarray]:
    """Where the windows of each batch begin. The last window may be short."""
    stride = windows.stride or length
    last = len(tokens) - 1  # this token is read by nobody, only predicted
    starts = np.arange(0, max(last - (length - stride), 1), stride)
    rows = max(windows.tokens_per_batch // length, 1)
    for first in range(0, len(starts), rows):
        yield starts[first : first + rows]


def window_batch(tokens: Tokens, windows: Windows, length: int, starts: np.ndarray) -> Batch:
    """Inputs (B, length) and labels: IGNORE beyond the text and, with ``score=new``, where a window before reached."""
    first, end = int(starts[0]), int(starts[-1]) + length + 1
    span = np.full(end - first, -1)
    there = tokens[first:end]
    span[: len(there)] = there
    rows = span[(starts - first)[:, None] + np.arange(length + 1)]
    labels = torch.from_numpy(np.where(rows[:, 1:] < 0, IGNORE, rows[:, 1:]))
    if windows.score == "new" and windows.stride is not None:
        seen = torch.from_numpy(starts > 0)[:, None] & (torch.arange(length) < length - windows.stride)
        labels = labels.masked_fill(seen, IGNORE)
    return {"inputs": torch.from_numpy(np.maximum(rows[:, :-1], 0)), "labels": labels}


def unigram_perplexity(tokens: Tokens, at_once: int = 1 << 22) -> float:
    """exp of the entropy of the tokens' own counts."""
    counts = np.zeros(0, dtype=np.int64)
    for start in range(0, len(tokens), at_once):
        more = np.bincount(tokens[start : start + at_once], minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    share_of = counts[counts > 0] / counts.sum()
    return float(np.exp(-(share_of * np.log(share_of)).sum()))


def bootstrap(nll: np.ndarray, count: np.ndarray, resamples: int = 1000) -> float:
    """Standard error of exp(Σ nll / Σ count) when the units are drawn anew with replacement; 0 with a single unit."""
    if len(nll) < 2:
        return 0.0
    draws = np.random.default_rng(0).multinomial(len(nll), np.full(len(nll), 1 / len(nll)), size=resamples)
    seen = draws @ count
    return float(np.exp((draws @ nll)[seen > 0] / seen[seen > 0]).std(ddof=1))


def _independent(
    nll: np.ndarray, count: np.ndarray, windows: Windows, length: int, most: int = 2000
) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring windows added up, so that units do not share text, and are not too many to draw from."""
    together = -(-length // (windows.stride or length)) if windows.score == "all" else 1
    together = max(together, -(-len(nll) // most))
    edges = np.arange(0, len(nll), together)
    return np.add.reduceat(nll, edges), np.add.reduceat(count, edges)
