"""Questions about texts of several lengths: prompts that fill their length, greedy answers, shares.

:class:`~tape_exp.tasks.passkey.Passkey` and
:class:`~tape_exp.tasks.retrieval.RetrievalTraining` say what is asked.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tape_exp.data.retrieval import Question
from tape_exp.machine.files import short_hash
from tape_exp.machine.seeding import RowSampler
from tape_exp.machine.sharing import answers_of_all, batched
from tape_exp.models.generation import generate
from tape_exp.results.evaluation import Evaluation, Heatmap
from tape_exp.results.statistics import wilson
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Lengths
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.prompts import longest_fit
from tape_exp.tasks.text import TextTask


@dataclass(frozen=True)
class Trial:
    """One time that a model is asked."""

    length: int  # tokens of prompt and answer, at most
    number: int  # among the questions of that length


class Questions(TextTask):
    """Asks a model about texts of several lengths, ``trials`` times about each.

    A prompt is BOS and a text with as many filler sentences as fit, so that prompt and answer have
    at most the tokens of its length. Answers are greedy. Questions depend on the seed, never on the
    model. A subclass has a ``name`` and :meth:`question`, and sets ``new_tokens``.

    Metrics, in percent: ``<name>/accuracy`` of all questions, ``<name>/accuracy@<length>``, and
    ``…_low`` and ``…_high`` of its 95 % interval (:func:`accuracies`). Table ``<name>``: every
    question. Heatmap: accuracy by depth and length.

    Args:
        lengths: tokens, asked at each.
        trials: questions of each length, or of each in turn, where lengths are given in order.
        depth_bins: rows of the heatmap; question k of a length has its depth in the bin k mod
            ``depth_bins`` of equal parts of the text.
    """

    trains = False
    name: str  # of the metrics
    sought = "sentence"  # what the depth is of
    new_tokens: int  # of an answer

    def __init__(
        self,
        lengths: Lengths,
        trials: Count | Lengths = 50,
        depth_bins: Count = 5,
        rows_per_batch: Count = 20,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.set_max_length(max(lengths))
        self.lengths = sorted(set(lengths))
        self.depth_bins = depth_bins
        self.rows_per_batch = rows_per_batch
        if isinstance(trials, int):
            trials = (trials,) * len(self.lengths)
        elif self.lengths != [*lengths] or len(trials) != len(lengths):
            raise ConfigError(
                f"task.trials={[*trials]} must have a number for each of task.lengths="
                f"{[*lengths]}, which then must rise."
            )
        self.trials: list[Trial] = []
        for length, count in zip(self.lengths, trials, strict=True):
            self.trials += [Trial(length, number) for number in range(count)]

    def question(self, length: int, number: int) -> Question:
        """Make question ``number`` of a length, a function of its arguments and the seed."""
        raise NotImplementedError

    def is_right(self, question: Question, answer: str) -> bool:
        """Say whether the first number of an answer is the one that is asked for.

        Where ``12`` is asked for, ``12. The sea`` and ``12,345`` are right, ``123`` and ``1 2`` are
        wrong.
        """
        number = re.search("[0-9]+", answer)
        return number is not None and number.group() == question.wanted

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        self.questions: list[Question] = []
        self.prompts: list[list[int]] = []
        size = 1
        for trial in self.trials:
            question = self.question(trial.length, trial.number)
            least = len(self.writer(question)(1)) + self.new_tokens
            if least > trial.length:
                raise ConfigError(
                    f"task.lengths={self.lengths}: {trial.length} tokens are too few for a "
                    f"question with its answer, which take {least} with this tokenizer."
                )
            room = trial.length - self.new_tokens
            ids, size = longest_fit(self.writer(question), room, size)
            self.prompts.append(ids)
            self.questions.append(question)

    def writer(self, question: Question) -> Callable[[int], list[int]]:
        """Return what writes the prompt with so many sentences of filler."""
        return lambda size: self.encode(question.write(size))

    def fingerprint(self) -> str:
        """Hash every prompt."""
        return short_hash([json.dumps(self.prompts)])

    def metric_names(self) -> list[str]:
        """Name the accuracies and the ends of their intervals."""
        names = [f"{self.name}/accuracy"]
        for n in self.lengths:
            name = f"{self.name}/accuracy@{n}"
            names += [name, f"{name}_low", f"{name}_high"]
        return names

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, those of a length together; ``limit`` stops after as many batches."""

        def answer(batch: Sequence[int], _: int) -> dict[int, dict[str, Any]]:
            prompts = [self.prompts[number] for number in batch]
            sampler = RowSampler(0, self.name, first=batch[0])
            answers = generate(
                model.decoder, prompts, self.new_tokens, self.stop_tokens, sampler=sampler
            )
            return dict(zip(batch, map(self.row, batch, answers), strict=True))

        rows = answers_of_all(self._batches()[:limit], answer, progress, f"asking, {self.name}")
        table = [rows[number] for number in sorted(rows)]
        return Evaluation(
            accuracies(self.name, table),
            self.heatmap(rows),
            tables={self.name: table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def _batches(self) -> list[tuple[int, list[int]]]:
        """List the numbers of the questions of each batch, which are of one length, with the
        first.
        """
        batches: list[tuple[int, list[int]]] = []
        for length in self.lengths:
            numbers = [n for n, trial in enumerate(self.trials) if trial.length == length]
            for first, batch in batched(numbers, self.rows_per_batch):
                batches.append((numbers[first], batch))
        return batches

    def row(self, number: int, ids: Sequence[int]) -> dict[str, Any]:
        """Make the table's row of a question and the tokens that answer it."""
        question = self.questions[number]
        answer = self.decode(ids).strip()
        return {
            "length": self.trials[number].length,
            "depth": round(question.depth, 4),
            "wanted": question.wanted,
            "answer": answer,
            "correct": self.is_right(question, answer),
        }

    def heatmap(self, rows: Mapping[int, dict[str, Any]]) -> Heatmap:
        """Return the share of right answers, in percent, by part of the text (rows) and length; NaN
        where nothing was asked."""
        cells: dict[tuple[int, int], list[bool]] = {}
        for number, row in rows.items():
            trial = self.trials[number]
            cell = (trial.number % self.depth_bins, self.lengths.index(trial.length))
            cells.setdefault(cell, []).append(row["correct"])
        values = np.full((self.depth_bins, len(self.lengths)), np.nan)
        for cell, correct in cells.items():
            values[cell] = 100 * np.mean(correct)
        bins = self.depth_bins
        return Heatmap(
            values,
            title="accuracy (%)",
            row_label=f"depth of the {self.sought} (%)",
            column_label="length (tokens)",
            trained=(bins, sum(length <= self.trained_tokens() for length in self.lengths)),
            rows=[f"{100 * n / bins:.0f} – {100 * (n + 1) / bins:.0f}" for n in range(bins)],
            columns=list(map(str, self.lengths)),
        )


def accuracies(name: str, table: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute ``<name>/accuracy`` of all trials in percent, ``…@<length>``, and its Wilson interval
    of 95 %.

    >>> table = [{"length": 64, "correct": True}, {"length": 64, "correct": False}]
    >>> {key: round(value, 1) for key, value in accuracies("passkey", table).items()}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'passkey/accuracy': 50.0, 'passkey/accuracy@64': 50.0, 'passkey/accuracy@64_low': 9.5,
     'passkey/accuracy@64_high': 90.5}
    """
    by_length: dict[int, list[bool]] = {}
    for row in table:
        by_length.setdefault(row["length"], []).append(row["correct"])
    metrics = {f"{name}/accuracy": 100 * float(np.mean([row["correct"] for row in table]))}
    for length, correct in by_length.items():
        key = f"{name}/accuracy@{length}"
        low, high = wilson(sum(correct), len(correct))
        metrics[key] = 100 * float(np.mean(correct))
        metrics[f"{key}_low"] = low
        metrics[f"{key}_high"] = high
    return metrics
