"""Passkey retrieval (section 4.3): a long text names a number, and a model is asked for it."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tape_exp.data.sources import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler, seed_for
from tape_exp.models.generation import generate
from tape_exp.runs.evaluation import Evaluation, Heatmap, depth_heatmap, wilson
from tape_exp.settings.errors import ConfigError, at_least_one
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM, NothingTrained
from tape_exp.tasks.slices import check_lengths
from tape_exp.tasks.text import TextTask

HIGHEST = 50_000  # keys are 1 … HIGHEST
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
FILLER = (  # short, so that little room is left over, and without digits
    "The line is long.",
    "The sea is calm.",
    "The tree is old.",
    "Time goes by.",
    "The day is new.",
    "The road is open.",
    "The wind is warm.",
    "The house is small.",
)


@dataclass(frozen=True)
class Trial:
    """One question.

    Args:
        length: tokens of prompt and answer together, at most.
        depth: where the key's line is, from 0, before all filler sentences, towards 1, after
            all of them.
        key: 1 … :data:`HIGHEST`.
    """

    length: int
    depth: float
    key: int


def make_trial(seed: int, length: int, number: int, bins: int) -> Trial:
    """Trial ``number`` of a length, a function of its arguments only.

    The key is uniform; the depth is uniform within the bin ``number`` mod ``bins`` of equal parts
    of the text, so that every part gets as many trials as the others, or one more.
    """
    generator = np.random.default_rng(seed_for(seed, "passkey", length, number))
    key, within = int(generator.integers(1, HIGHEST + 1)), generator.random()
    return Trial(length, float((number % bins + within) / bins), key)


def prompt(trial: Trial, sentences: int) -> str:
    """The text of so many filler sentences with the key's line among them, then the question."""
    filler = [FILLER[n % len(FILLER)] for n in range(sentences)]
    place = int(trial.depth * (sentences + 1))
    parts = [
        " ".join(filler[:place]),
        KEY_LINE.format(key=trial.key),
        " ".join(filler[place:]),
        QUESTION,
    ]
    return "\n".join(part for part in parts if part)


def is_correct(answer: str, key: int) -> bool:
    """Whether the answer's first run of digits is the key; the first of ``12,345`` is 12."""
    number = re.search("[0-9]+", answer)
    return number is not None and number.group() == str(key)


class Passkey(NothingTrained, TextTask):
    """Passkey retrieval by the model of ``checkpoint=``, or an untrained one; nothing is trained.

    A prompt is BOS and :func:`prompt` with as many filler sentences as fit, so that prompt and
    answer have at most the tokens of its length. Answers are greedy, and counted by
    :func:`is_correct`. At a short length few sentences surround the key's line, which then is as
    near to its depth as their ends allow. Trials depend on the seed, never on the model.

    Metrics, in percent: ``passkey/accuracy`` of all trials, ``passkey/accuracy@<length>``, and
    ``…_low`` and ``…_high`` of its 95 % interval (:func:`wilson`). Table ``passkey``: every trial.
    Heatmap: accuracy by depth and length.

    Args:
        text: what a BPE is trained on where no checkpoint brings a tokenizer.
        lengths: tokens, asked at each.
        trials: of each length.
        depth_bins: rows of the heatmap.
        rows_per_batch: of generation.
        new_tokens: of an answer: a key takes up to five in most tokenizers, and a space before it
            may take another.
    """

    def __init__(
        self,
        arch: Arch,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        train_length: int,
        lengths: tuple[int, ...],
        trials: int = 20,
        depth_bins: int = 5,
        rows_per_batch: int = 20,
        new_tokens: int = 8,
    ) -> None:
        check_lengths(lengths, "tokens", "[512,1024]")
        at_least_one(
            "task",
            trials=trials,
            depth_bins=depth_bins,
            rows_per_batch=rows_per_batch,
            new_tokens=new_tokens,
        )
        super().__init__(arch, NO_OPTIM, seed, text, tokenizer, train_length, max(lengths))
        self.lengths = sorted(set(lengths))
        self.count, self.depth_bins = trials, depth_bins
        self.rows_per_batch, self.new_tokens = rows_per_batch, new_tokens

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        for length in self.lengths:
            self._check(length)
        self.trials = [trial for length in self.lengths for trial in self._trials(length)]
        self.prompts: list[list[int]] = []
        sentences = 1
        for trial in self.trials:
            ids, sentences = self._fill(trial, sentences)
            self.prompts.append(ids)

    def fingerprint(self) -> str:
        """A hash of all prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()[:16]

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Ask every question, those of a length together."""
        size, ends = self.rows_per_batch, [self.count * (n + 1) for n in range(len(self.lengths))]
        batches = [
            range(first, min(first + size, end))
            for end in ends
            for first in range(end - self.count, end, size)
        ][:limit]
        answers: dict[int, str] = {}
        for batch, counts in progress(share(batches), "asking for pass keys"):
            # Without EOS, so that all processes compute equally often, as a sharded model needs it.
            rows = generate(
                model.decoder,
                [self.prompts[number] for number in batch],
                self.new_tokens,
                sampler=RowSampler(0, "passkey", first=batch[0]),
            )
            if counts:
                answers |= {
                    number: self._text(row) for number, row in zip(batch, rows, strict=True)
                }
        answers = {number: text for part in gather(answers) for number, text in part.items()}
        table = [self._row(self.trials[number], answers[number]) for number in sorted(answers)]
        return Evaluation(
            accuracies(table),
            self._heatmap(
                {number: row["correct"] for number, row in zip(sorted(answers), table, strict=True)}
            ),
            tables={"passkey": table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def _trials(self, length: int) -> list[Trial]:
        return [
            make_trial(self.seed, length, number, self.depth_bins) for number in range(self.count)
        ]

    def _encode(self, trial: Trial, sentences: int) -> list[int]:
        """The whole text at once, since some tokenizers mark a text's beginning."""
        return [self.tokenizer.bos, *self.tokenizer.encode([prompt(trial, sentences)])[0].tolist()]

    def _check(self, length: int) -> None:
        """Every trial of a length must leave room for a filler sentence."""
        least = length
        while (
            needed := max(len(self._encode(t, 1)) for t in self._trials(least)) + self.new_tokens
        ) > least:
            least = needed  # whose trials have keys of their own
        if least > length:
            raise ConfigError(
                f"task.lengths={self.lengths}: {length} tokens are too few for the line with the "
                f"key, the question, one sentence and task.new_tokens={self.new_tokens}; {least} "
                "would do with this tokenizer."
            )

    def _fill(self, trial: Trial, sentences: int) -> tuple[list[int], int]:
        """The longest prompt that fits and its number of filler sentences, sought from a guess."""
        room = trial.length - self.new_tokens
        ids = self._encode(trial, sentences)
        if len(ids) < room // 2:  # far off: by the ratio of the sizes
            sentences = sentences * room // len(ids)
            ids = self._encode(trial, sentences)
        while len(ids) > room:
            sentences -= 1
            ids = self._encode(trial, sentences)
        while len(longer := self._encode(trial, sentences + 1)) <= room:
            ids, sentences = longer, sentences + 1
        return ids, sentences

    def _text(self, row: list[int]) -> str:
        """An answer, up to EOS."""
        return self.tokenizer.decode(
            row[: row.index(self.tokenizer.eos)] if self.tokenizer.eos in row else row
        ).strip()

    def _row(self, trial: Trial, answer: str) -> dict[str, Any]:
        row = {
            "length": trial.length,
            "depth": round(trial.depth, 4),
            "key": trial.key,
            "answer": answer,
        }
        return row | {"correct": is_correct(answer, trial.key)}

    def _heatmap(self, outcome_of: dict[int, bool]) -> Heatmap:
        """The share of trials that succeeded, for each part of the text and each length."""
        cells: dict[tuple[int, int], list[bool]] = {}
        for number, correct in outcome_of.items():
            place, k = divmod(number, self.count)
            cells.setdefault((k % self.depth_bins, place), []).append(correct)
        values = np.full((self.depth_bins, len(self.lengths)), np.nan)
        for cell, outcomes in cells.items():
            values[cell] = 100 * np.mean(outcomes)
        return depth_heatmap(values, self.lengths, self.train_length)


def accuracies(table: list[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a table of trials."""
    correct: dict[int, list[bool]] = {}
    for row in table:
        correct.setdefault(row["length"], []).append(row["correct"])
    metrics = {"passkey/accuracy": 100 * float(np.mean([row["correct"] for row in table]))}
    for length, outcomes in correct.items():
        key = f"passkey/accuracy@{length}"
        metrics[key] = 100 * float(np.mean(outcomes))
        metrics[f"{key}_low"], metrics[f"{key}_high"] = wilson(sum(outcomes), len(outcomes))
    return metrics
