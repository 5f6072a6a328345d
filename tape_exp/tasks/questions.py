"""What tasks share that ask about long texts: prompts that fill their length, and the answers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.generation import generate
from tape_exp.runs.evaluation import Heatmap, depth_heatmap, wilson
from tape_exp.settings.errors import ConfigError, at_least_one
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.slices import check_lengths
from tape_exp.tasks.text import TextTask


class Questions(TextTask):
    """Asks a model about texts of several lengths, ``trials`` times about each.

    :meth:`prepare` of a subclass writes the ``prompts``, those of a length together, the shortest
    first; :meth:`answers` generates. Question k of a length has a depth in the bin k mod
    ``depth_bins`` of equal parts of the text.

    Args:
        lengths: tokens, asked at each.
        trials: of each length.
        depth_bins: rows of a heatmap by depth.
        rows_per_batch: of generation.
        new_tokens: of an answer; None: :meth:`budget` says how many.
    """

    prompts: list[list[int]]

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        train_length: int,
        lengths: Sequence[int],
        trials: int,
        depth_bins: int,
        rows_per_batch: int,
        new_tokens: int | None,
    ) -> None:
        check_lengths(lengths, "tokens", "[512,1024]")
        at_least_one(
            "task",
            trials=trials,
            depth_bins=depth_bins,
            rows_per_batch=rows_per_batch,
            new_tokens=new_tokens,
        )
        super().__init__(arch, optim, seed, text, tokenizer, train_length, max(lengths))
        self.lengths = sorted(set(lengths))
        self.count, self.depth_bins = trials, depth_bins
        self.rows_per_batch, self.new_tokens = rows_per_batch, new_tokens

    def budget(self, length: int) -> int:
        """Tokens of an answer at a length."""
        assert self.new_tokens is not None
        return self.new_tokens

    def fingerprint(self) -> str:
        """A hash of all prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()[:16]

    def answers(
        self,
        model: Any,
        progress: Callable[..., Any],
        limit: int | None,
        name: str,
        description: str,
    ) -> dict[int, str]:
        """Greedy answers by the number of the prompt, those of a length together.

        Args:
            limit: stop after as many batches.
            name: of the random numbers of encodings that sample positions.
        """
        size, ends = self.rows_per_batch, [self.count * (n + 1) for n in range(len(self.lengths))]
        batches = [
            range(first, min(first + size, end))
            for end in ends
            for first in range(end - self.count, end, size)
        ][:limit]
        answers: dict[int, str] = {}
        for batch, counts in progress(share(batches), description):
            # Without EOS, so that all processes compute equally often, as a sharded model needs it.
            rows = generate(
                model.decoder,
                [self.prompts[number] for number in batch],
                self.budget(self.lengths[batch[0] // self.count]),
                sampler=RowSampler(0, name, first=batch[0]),
            )
            if counts:
                answers |= {
                    number: self.text_of(row) for number, row in zip(batch, rows, strict=True)
                }
        found = {number: text for part in gather(answers) for number, text in part.items()}
        return {number: found[number] for number in sorted(found)}

    def text_of(self, row: list[int]) -> str:
        """An answer, up to EOS."""
        return self.tokenizer.decode(
            row[: row.index(self.tokenizer.eos)] if self.tokenizer.eos in row else row
        ).strip()

    def least(self, length: int, needed: Callable[[int], int]) -> int:
        """The first length from this one on that has the tokens which its questions need."""
        while (tokens := needed(length)) > length:
            length = tokens  # whose questions are its own
        return length

    def too_short(self, length: int, least: int, parts: str) -> ConfigError:
        """The error of a length at which there is no room for the parts of a prompt."""
        return ConfigError(
            f"task.lengths={self.lengths}: {length} tokens are too few for {parts}; {least} would "
            "do with this tokenizer."
        )

    def depth_heatmap(self, score_of: Mapping[int, float], what: str) -> Heatmap:
        """The mean score, in percent, for each part of the text and each length."""
        cells: dict[tuple[int, int], list[float]] = {}
        for number, score in score_of.items():
            place, k = divmod(number, self.count)
            cells.setdefault((k % self.depth_bins, place), []).append(score)
        values = np.full((self.depth_bins, len(self.lengths)), np.nan)
        for cell, scores in cells.items():
            values[cell] = 100 * np.mean(scores)
        return depth_heatmap(values, self.lengths, self.trained_tokens(), what)


def longest_fit(encode: Callable[[int], list[int]], room: int, size: int) -> tuple[list[int], int]:
    """The longest prompt of at most ``room`` tokens and its size, sought from a guess.

    A larger size must have at least as many tokens, and one of size 1 must fit.
    """
    ids = encode(size)
    for _ in range(4):  # by the ratio of the sizes, while they are far apart
        step = (room - len(ids)) * size // len(ids)
        if abs(step) <= 2 or size + step < 1:
            break
        size += step
        ids = encode(size)
    while len(ids) > room:
        size -= 1
        ids = encode(size)
    while len(longer := encode(size + 1)) <= room:
        ids, size = longer, size + 1
    return ids, size


def accuracies(name: str, lengths: Sequence[int], scores: Sequence[float]) -> dict[str, float]:
    """``<name>/accuracy`` of all trials in percent, ``…@<length>``, and its 95 % interval.

    Of scores between 0 and 1 the interval is Wilson's too: their variance is at most that of a
    score that is 0 or 1 with the same mean.
    """
    parts: dict[int, list[float]] = {}
    for length, score in zip(lengths, scores, strict=True):
        parts.setdefault(length, []).append(score)
    metrics = {f"{name}/accuracy": 100 * float(np.mean(scores))}
    for length, outcomes in parts.items():
        key = f"{name}/accuracy@{length}"
        metrics[key] = 100 * float(np.mean(outcomes))
        metrics[f"{key}_low"], metrics[f"{key}_high"] = wilson(sum(outcomes), len(outcomes))
    return metrics
