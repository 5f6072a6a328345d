"""Perplexity of a trained model on a corpus, in blocks or sliding windows (section 4.2)."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.data.text import Split
from tape_exp.data.tokens import Tokens
from tape_exp.machine.processes import share, sum_over_processes
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.head import TokenNll
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Lengths
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import TextTask

log = logging.getLogger("tape_exp")


@dataclass(frozen=True)
class Windows:
    """How a long row of tokens is shown to a model and scored."""

    lengths: Lengths = (1024,)  # context lengths, each evaluated over the same tokens
    # Tokens from one window's beginning to the next; null: the length, so that none overlap.
    stride: Count | None = None
    score: Literal["all", "new"] = "all"  # of each window all tokens, or those of none before it
    tokens: Count | None = None  # that are scored, from the beginning of the set; null: all
    tokens_per_batch: Count = 8192  # of one forward pass

    def __post_init__(self) -> None:
        if self.stride and self.stride > min(self.lengths):
            raise ConfigError(
                f"task.windows.stride={self.stride} is above {min(self.lengths)}, the least length."
            )

    @property
    def needed(self) -> int | None:
        """Return how many tokens are read, of which the first is not scored; None: all."""
        return None if self.tokens is None else self.tokens + 1


class Perplexity(TextTask):
    """Perplexity of the model of ``checkpoint=``, or of an untrained one, on a split of ``text``;
    nothing is trained. Metrics: see :func:`perplexity`.
    """

    trains = False

    def __init__(self, windows: Windows, split: Split = "test", **settings: Any) -> None:
        super().__init__(**settings)
        self.set_max_length(max(windows.lengths))
        self.windows = windows
        self.split = split

    def prepare(self) -> None:
        """Tokenise as much of the split as is scored."""
        self.scored = self.tokens(self.text, self.split, self.windows.needed)

    def fingerprint(self) -> str:
        """Hash what is scored."""
        return self.scored.fingerprint()

    def metric_names(self) -> list[str]:
        """Name the numbers at every length."""
        return perplexity_names(self.text.label, self.windows)

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Measure perplexity on the split at each length."""
        name = self.text.label
        read = (self.scored, self.tokenizer.decode, self.windows)
        return Evaluation(perplexity(model, *read, name, progress, limit, self.unscored))


def perplexity_names(name: str, windows: Windows) -> list[str]:
    """Name the numbers of :func:`perplexity`."""
    names = [f"{name}/tokens", f"{name}/unigram_perplexity"]
    for length in windows.lengths:
        key = f"{name}/perplexity@{length}"
        names += [key, f"{key}_stderr", f"{name}/bits_per_byte@{length}"]
    return names


def perplexity(
    model: Model,
    tokens: Tokens,
    decode: Callable[[np.ndarray], str],
    windows: Windows,
    name: str,
    progress: Progress,
    limit: int | None = None,
    unscored: int | None = None,
) -> dict[str, float]:
    """Compute perplexity, exp(Σ nll / n), at each length, with its bootstrap error, and bits per
    byte.

    Every token is scored but the first and the ``unscored`` one, given those before it in its
    window; blocks that do not overlap give each the context of its place in the block. Bits per
    byte, Σ nll / (ln 2 · bytes), does not depend on the tokenizer; where windows overlap, the mean
    stands for each of the tokens that are scored.

    ``<name>/unigram_perplexity`` is exp of the entropy of the set's own token counts: no model that
    ignores the context does better. The others are ``<name>/perplexity@<length>``, ``…_stderr`` and
    ``<name>/bits_per_byte@<length>``.
    """
    counts = token_counts(tokens)
    targets = len(tokens) - 1
    if unscored is not None and unscored < len(counts):  # the first token is one of them
        targets = len(tokens) - int(counts[unscored])
        counts[unscored] = 0
    if targets < 1:
        raise ConfigError(
            f"text {name}: {len(tokens)} tokens are too few to score. Give it more text."
        )
    metrics = {f"{name}/tokens": float(targets)}
    metrics[f"{name}/unigram_perplexity"] = unigram_perplexity(counts)
    bytes_per_token = tokens.bytes(decode) / targets
    for length in windows.lengths:
        if length >= len(tokens):
            log.warning(
                "Text %s has only %d tokens: its perplexity@%d is of shorter contexts.",
                name,
                len(tokens),
                length,
            )
        title = f"{name} at {length}"
        nll, count = score(model, tokens, windows, length, title, progress, limit, unscored)
        mean = float(nll.sum() / count.sum())
        key = f"{name}/perplexity@{length}"
        error = bootstrap(*_units(nll, count, windows, length))
        metrics |= {key: math.exp(min(mean, 700)), f"{key}_stderr": error}
        metrics[f"{name}/bits_per_byte@{length}"] = mean / math.log(2) / bytes_per_token
    return metrics


def score(
    model: Model,
    tokens: Tokens,
    windows: Windows,
    length: int,
    description: str,
    progress: Progress,
    limit: int | None = None,
    unscored: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the negative log-likelihoods of each stretch of the text, and count its scores.

    A stretch is as long as windows begin apart, so that every score of one token, in whichever
    window, is counted in one stretch.
    """
    stride = windows.stride or length
    batches = window_batches(tokens, windows, length)[:limit]
    end = min(int(batches[-1][-1]) + length, len(tokens) - 1)
    sums = torch.zeros(2, math.ceil(end / stride), dtype=torch.float64)
    firsts = np.cumsum([0, *map(len, batches)])
    for (number, starts), counts in progress(share(list(enumerate(batches))), description):
        batch = window_batch(tokens, windows, length, starts, unscored)
        sampler = RowSampler(0, "evaluation", first=int(firsts[number]))
        losses = model(batch["inputs"], output=TokenNll(batch["labels"]), sampler=sampler)
        if counts:
            scored = batch["labels"] != IGNORE
            places = torch.from_numpy(starts)[:, None] + torch.arange(length)
            stretches = places[scored] // stride
            sums[0].index_add_(0, stretches, losses.cpu()[scored].double())
            sums[1] += torch.bincount(stretches, minlength=sums.shape[1])
    nll, count = sum_over_processes(sums).numpy()
    return nll, count


def window_batches(tokens: Tokens, windows: Windows, length: int) -> list[np.ndarray]:
    """List where the windows of each batch begin. The last window may be short."""
    stride = windows.stride or length
    # The last token is read by nobody, only predicted.
    starts = np.arange(0, max(len(tokens) - 1 - (length - stride), 1), stride)
    rows = max(windows.tokens_per_batch // length, 1)
    return np.split(starts, range(rows, len(starts), rows))


def window_batch(
    tokens: Tokens,
    windows: Windows,
    length: int,
    starts: np.ndarray,
    unscored: int | None = None,
) -> Batch:
    """Make inputs (B, length) and labels; IGNORE marks padding, the ``unscored`` token and, for
    ``score=new``, scored ones.
    """
    first = int(starts[0])
    places = starts[:, None] + np.arange(length + 1)
    span = tokens[first : int(starts[-1]) + length + 1]
    rows = span[np.minimum(places - first, len(span) - 1)]
    hidden = (places[:, 1:] >= len(tokens)) | (rows[:, 1:] == unscored)
    if windows.score == "new" and windows.stride is not None:
        hidden |= (starts[:, None] > 0) & (np.arange(length) < length - windows.stride)
    labels = torch.from_numpy(np.where(hidden, IGNORE, rows[:, 1:]))
    return {"inputs": torch.from_numpy(rows[:, :-1]), "labels": labels}


def token_counts(tokens: Tokens, at_once: int = 1 << 22) -> np.ndarray:
    """Count how often a set has each token."""
    counts = np.zeros(0, dtype=np.int64)
    for start in range(0, len(tokens), at_once):
        of_part = np.bincount(tokens[start : start + at_once], minlength=len(counts))
        of_part[: len(counts)] += counts
        counts = of_part
    return counts


def unigram_perplexity(counts: np.ndarray) -> float:
    """Compute exp of the entropy of tokens' own counts.

    >>> round(unigram_perplexity(np.array([1, 1, 0, 2])), 3)
    2.828
    """
    share_of = counts[counts > 0] / counts.sum()
    return float(np.exp(-(share_of * np.log(share_of)).sum()))


def bootstrap(nll: np.ndarray, count: np.ndarray, resamples: int = 1000) -> float:
    """Compute the bootstrap standard error of exp(Σ nll / Σ count) over units; 0 for a single
    unit.
    """
    if len(nll) < 2:
        return 0.0
    equal = np.full(len(nll), 1 / len(nll))
    draws = np.random.default_rng(0).multinomial(len(nll), equal, size=resamples)
    seen = draws @ count
    return float(np.exp((draws @ nll)[seen > 0] / seen[seen > 0]).std(ddof=1))


def _units(
    nll: np.ndarray, count: np.ndarray, windows: Windows, length: int, most: int = 2000
) -> tuple[np.ndarray, np.ndarray]:
    """Sum over neighbouring stretches: units of at least a window, and ``most`` units.

    No token is in two of them. Units of windows would share what overlaps, and the error of what
    is drawn as if it were independent would come out too small.
    """
    stretches_of_window = math.ceil(length / (windows.stride or length))
    stretches = max(stretches_of_window, math.ceil(len(nll) / most))  # of a unit
    edges = np.arange(0, len(nll), stretches)
    return np.add.reduceat(nll, edges), np.add.reduceat(count, edges)
