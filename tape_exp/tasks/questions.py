"""What tasks share that ask about long texts: prompts that fill their length, and the answers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np

from tape_exp.data.retrieval import Question
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.generation import generate
from tape_exp.runs.evaluation import Evaluation, Heatmap, depth_heatmap, wilson
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Lengths
from tape_exp.tasks.base import Model, NothingTrained, Progress
from tape_exp.tasks.text import TextTask


class Questions(NothingTrained, TextTask):
    """Asks a model about texts of several lengths, ``trials`` times about each.

    A prompt is BOS and a text with as many filler sentences as fit, so that prompt and
    answer have at most the tokens of its length. Answers are greedy. Questions depend on the seed,
    never on the model.

    Metrics, in percent: ``<name>/accuracy`` of all questions, ``<name>/accuracy@<length>``, and
    ``…_low`` and ``…_high`` of its 95 % interval (:func:`accuracies`). Table ``<name>``: every
    question. Heatmap: accuracy by depth and length.

    Args:
        lengths: tokens, asked at each.
        trials: questions of each length.
        depth_bins: rows of the heatmap; question k of a length has its depth in the bin k mod
            ``depth_bins`` of equal parts of the text.
        rows_per_batch: of generation.
    """

    name: str  # of the metrics
    sought = "sentence"  # what the depth is of
    measure = "score"  # the key of a row's score

    def __init__(
        self,
        lengths: Lengths,
        trials: Count = 50,
        depth_bins: Count = 5,
        rows_per_batch: Count = 20,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.reaches(max(lengths))
        self.lengths = sorted(set(lengths))
        self.count, self.depth_bins, self.rows_per_batch = trials, depth_bins, rows_per_batch
        self.of_length = lru_cache(None)(self._of_length)

    def question(self, length: int, number: int) -> Question:
        """Question ``number`` of a length, a function of its arguments and the seed."""
        raise NotImplementedError

    def row(self, question: Question, answer: str) -> dict[str, Any]:
        """What the table says of an answer, its score among it."""
        raise NotImplementedError

    @property
    def parts(self) -> str:
        """What a prompt must have room for, in words."""
        raise NotImplementedError

    def budget(self, length: int) -> int:
        """Tokens of an answer at a length."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        for length in self.lengths:
            if (least := self._least(length)) > length:
                raise ConfigError(
                    f"task.lengths={self.lengths}: {length} tokens are too few for {self.parts}; "
                    f"{least} would do with this tokenizer."
                )
        self.prompts, size = [], 1
        self.questions = [question for n in self.lengths for question in self.of_length(n)]
        for number, question in enumerate(self.questions):
            length = self.lengths[number // self.count]
            ids, size = longest_fit(self.writer(question), length - self.budget(length), size)
            self.prompts.append(ids)

    def fingerprint(self) -> str:
        """A hash of all prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()[:16]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, those of a length together; ``limit`` stops after as many batches."""
        size, ends = self.rows_per_batch, [self.count * (n + 1) for n in range(len(self.lengths))]
        batches = [
            range(first, min(first + size, end))
            for end in ends
            for first in range(end - self.count, end, size)
        ][:limit]
        own: dict[int, dict[str, Any]] = {}
        for batch, counts in progress(share(batches), f"asking, {self.name}"):
            length = self.lengths[batch[0] // self.count]
            # Without EOS, so that all processes compute equally often, as a sharded model needs it.
            rows = generate(
                model.decoder,
                [self.prompts[number] for number in batch],
                self.budget(length),
                sampler=RowSampler(0, self.name, first=batch[0]),
            )
            for number, ids in zip(batch, rows, strict=True) if counts else ():
                answer = self.decode([*takewhile(lambda i: i not in self.stop_tokens, ids)]).strip()
                own[number] = {"length": length} | self.row(self.questions[number], answer)
        found = {number: row for part in gather(own) for number, row in part.items()}
        table = [found[number] for number in sorted(found)]
        score_of = {number: found[number][self.measure] for number in sorted(found)}
        metrics = accuracies(self.name, [row["length"] for row in table], [*score_of.values()])
        return Evaluation(
            metrics,
            self.heatmap(score_of),
            tables={self.name: table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def heatmap(self, score_of: Mapping[int, float]) -> Heatmap:
        """The mean score, in percent, for each part of the text and each length."""
        cells: dict[tuple[int, int], list[float]] = {}
        for number, score in score_of.items():
            place, k = divmod(number, self.count)
            cells.setdefault((k % self.depth_bins, place), []).append(score)
        values = np.full((self.depth_bins, len(self.lengths)), np.nan)
        for cell, scores in cells.items():
            values[cell] = 100 * np.mean(scores)
        return depth_heatmap(values, self.lengths, self.trained_tokens(), self.sought)

    def writer(self, question: Question) -> Callable[[int], list[int]]:
        """The tokens of a question whose text has a given size."""
        return lambda size: self.encode(question.write(size))

    def _of_length(self, length: int) -> list[Question]:
        return [self.question(length, number) for number in range(self.count)]

    def _least(self, length: int) -> int:
        """The first length from this one on at which every question has room for a sentence."""
        while True:
            longest = max(len(self.writer(question)(1)) for question in self.of_length(length))
            if (needed := longest + self.budget(length)) <= length:
                return length
            length = needed  # whose questions are its own


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
    """``<name>/accuracy`` of all trials in percent, ``…@<length>``, and Wilson's 95 % interval."""
    parts: dict[int, list[float]] = {}
    for length, score in zip(lengths, scores, strict=True):
        parts.setdefault(length, []).append(score)
    metrics = {f"{name}/accuracy": 100 * float(np.mean(scores))}
    for length, outcomes in parts.items():
        key = f"{name}/accuracy@{length}"
        metrics[key] = 100 * float(np.mean(outcomes))
        metrics[f"{key}_low"], metrics[f"{key}_high"] = wilson(sum(outcomes), len(outcomes))
    return metrics
