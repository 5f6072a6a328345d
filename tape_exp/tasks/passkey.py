"""Questions about long texts, and passkey retrieval (section 4.3): a text names a number, and a
model is asked for it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tape_exp.data.retrieval import Question, with_filler
from tape_exp.machine.files import short_hash
from tape_exp.machine.seeding import RowSampler, seed_for
from tape_exp.models.generation import batched, generate, shared
from tape_exp.runs.evaluation import Evaluation, Heatmap, depth_heatmap, wilson
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Lengths
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import TextTask

HIGHEST = 50_000  # keys are 1 … HIGHEST
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"


class Questions(TextTask):
    """Asks a model about texts of several lengths, ``trials`` times about each.

    A prompt is BOS and a text with as many filler sentences as fit, so that prompt and
    answer have at most the tokens of its length. Answers are greedy. Questions depend on the seed,
    never on the model.

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
        self.trials: list[tuple[int, int]] = []  # length and number of each question
        for length, count in zip(self.lengths, trials, strict=True):
            self.trials += [(length, number) for number in range(count)]

    def question(self, length: int, number: int) -> Question:
        """Question ``number`` of a length, a function of its arguments and the seed."""
        raise NotImplementedError

    def is_right(self, question: Question, answer: str) -> bool:
        """Whether the first number of an answer is the one that is asked for."""
        number = re.search("[0-9]+", answer)
        return number is not None and number.group() == question.wanted

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        self.questions = []
        self.prompts = []
        size = 1
        for length, number in self.trials:
            question = self.question(length, number)
            least = len(self.writer(question)(1)) + self.new_tokens
            if least > length:
                raise ConfigError(
                    f"task.lengths={self.lengths}: {length} tokens are too few for a question with "
                    f"its answer, which take {least} with this tokenizer."
                )
            ids, size = longest_fit(self.writer(question), length - self.new_tokens, size)
            self.prompts.append(ids)
            self.questions.append(question)

    def fingerprint(self) -> str:
        return short_hash([json.dumps(self.prompts)])

    def metric_names(self) -> list[str]:
        names = [f"{self.name}/accuracy"]
        for n in self.lengths:
            name = f"{self.name}/accuracy@{n}"
            names += [name, f"{name}_low", f"{name}_high"]
        return names

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, those of a length together; ``limit`` stops after as many batches."""
        batches: list[tuple[int, list[int]]] = []
        for length in self.lengths:
            numbers = [n for n, trial in enumerate(self.trials) if trial[0] == length]
            for first, batch in batched(numbers, self.rows_per_batch):
                batches.append((numbers[first], batch))

        def answer(batch: Sequence[int], _: int) -> dict[int, dict[str, Any]]:
            prompts = [self.prompts[number] for number in batch]
            sampler = RowSampler(0, self.name, first=batch[0])
            answers = generate(
                model.decoder, prompts, self.new_tokens, self.stop_tokens, sampler=sampler
            )
            return dict(zip(batch, map(self.row, batch, answers), strict=True))

        rows = shared(batches[:limit], answer, progress, f"asking, {self.name}")
        table = [rows[number] for number in sorted(rows)]
        return Evaluation(
            accuracies(self.name, table),
            self.heatmap(rows),
            tables={self.name: table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def row(self, number: int, ids: Sequence[int]) -> dict[str, Any]:
        question = self.questions[number]
        answer = self.decode(ids).strip()
        return {
            "length": self.trials[number][0],
            "depth": round(question.depth, 4),
            "wanted": question.wanted,
            "answer": answer,
            "correct": self.is_right(question, answer),
        }

    def heatmap(self, rows: Mapping[int, dict[str, Any]]) -> Heatmap:
        """The share of right answers, in percent, for each part of the text and each length."""
        cells: dict[tuple[int, int], list[bool]] = {}
        for number, row in rows.items():
            length, k = self.trials[number]
            cell = k % self.depth_bins, self.lengths.index(length)
            cells.setdefault(cell, []).append(row["correct"])
        values = np.full((self.depth_bins, len(self.lengths)), np.nan)
        for cell, correct in cells.items():
            values[cell] = 100 * np.mean(correct)
        return depth_heatmap(values, self.lengths, self.trained_tokens(), self.sought)

    def writer(self, question: Question) -> Callable[[int], list[int]]:
        return lambda size: self.encode(question.write(size))


class Passkey(Questions):
    """Passkey retrieval by the model of ``checkpoint=``, or an untrained one; nothing is trained.

    An answer is right if its first run of digits is the key; the first of ``12,345`` is 12. The key
    is uniform, and the depth of its line is uniform within its bin. At a short length few sentences
    surround the line, which then is as near to its depth as their ends allow. Metrics are
    ``passkey/…`` of :class:`Questions`.

    Args:
        new_tokens: of an answer: a key takes up to five in most tokenizers, and a space before it
            may take another.
    """

    name = "passkey"
    sought = "pass key"

    def __init__(
        self, trials: Count | Lengths = 20, new_tokens: Count = 8, **settings: Any
    ) -> None:
        super().__init__(trials=trials, **settings)
        self.new_tokens = new_tokens

    def question(self, length: int, number: int) -> Question:
        generator = np.random.default_rng(seed_for(self.seed, "passkey", length, number))
        key = int(generator.integers(1, HIGHEST + 1))
        within = generator.random()
        depth = float((number % self.depth_bins + within) / self.depth_bins)
        return key_question(key, depth)


def key_question(key: int, depth: float) -> Question:
    """The question for a key whose line is at a depth from 0 to 1."""
    text = with_filler([(depth, KEY_LINE.format(key=key))], QUESTION)
    return Question(text, str(key), depth)


def longest_fit(encode: Callable[[int], list[int]], room: int, size: int) -> tuple[list[int], int]:
    """Find the longest prompt of at most ``room`` tokens and its size, from the guess ``size``.

    A larger size must have at least as many tokens, and one of size 1 must fit.

    >>> prompt, size = longest_fit(lambda size: [0] * (10 + 3 * size), 30, 1)
    >>> len(prompt), size
    (28, 6)
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
    longer = encode(size + 1)
    while len(longer) <= room:
        ids = longer
        size += 1
        longer = encode(size + 1)
    return ids, size


class Drawn(NamedTuple):
    """A question for training, whose prompt may have any size."""

    write: Callable[[int], list[int]]  # the prompt with so many sentences of filler
    answer: list[int]
    tokens: Callable[[int, int], int]  # draws how many the prompt may have, from least to most


def training_row(draw: Callable[[int], Drawn], length: int) -> tuple[list[int], list[int]]:
    """Draw a prompt and its answer, ``length`` + 1 tokens at most. One that does not fit is drawn
    again, as the next attempt.
    """
    for attempt in range(100):
        write, answer, tokens = draw(attempt)
        least = len(write(1))
        most = length + 1 - len(answer)
        if least <= most:
            room = tokens(least, most)
            prompt, _ = longest_fit(write, room, 1 + (room - least) // 6)
            return prompt, answer
    raise ConfigError(
        f"task.train_length={length} is too short for a question of the task, which has {least} "
        f"tokens and {len(answer)} of its answer."
    )


def accuracies(name: str, table: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """``<name>/accuracy`` of all trials in percent, ``…@<length>``, and Wilson's 95 % interval.

    Of two trials at 64 tokens, one of them right, ``passkey/accuracy@64`` is 50, and the interval
    ``passkey/accuracy@64_low`` = 9.5 and ``passkey/accuracy@64_high`` = 90.5.
    """
    by_length: dict[int, list[bool]] = {}
    for row in table:
        by_length.setdefault(row["length"], []).append(row["correct"])
    metrics = {f"{name}/accuracy": 100 * float(np.mean([row["correct"] for row in table]))}
    for length, correct in by_length.items():
        key = f"{name}/accuracy@{length}"
        metrics[key] = 100 * float(np.mean(correct))
        metrics[f"{key}_low"], metrics[f"{key}_high"] = wilson(sum(correct), len(correct))
    return metrics
