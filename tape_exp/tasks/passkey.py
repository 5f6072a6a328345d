"""Passkey retrieval (section 4.3): a long text names a number, and a model is asked for it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tape_exp.data.retrieval import scattered
from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.machine.seeding import seed_for
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM, NothingTrained
from tape_exp.tasks.questions import Questions, accuracies, longest_fit

HIGHEST = 50_000  # keys are 1 … HIGHEST
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"


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
    line = KEY_LINE.format(key=trial.key)
    return f"{scattered([(trial.depth, line)], sentences)}\n{QUESTION}"


def is_correct(answer: str, key: int) -> bool:
    """Whether the answer's first run of digits is the key; the first of ``12,345`` is 12."""
    number = re.search("[0-9]+", answer)
    return number is not None and number.group() == str(key)


class Passkey(NothingTrained, Questions):
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
        super().__init__(
            arch,
            NO_OPTIM,
            seed,
            text,
            tokenizer,
            train_length,
            lengths,
            trials,
            depth_bins,
            rows_per_batch,
            new_tokens,
        )

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        for length in self.lengths:
            least = self.least(length, self._needed)
            if least > length:
                parts = "the line with the key, the question, one sentence and "
                parts += f"task.new_tokens={self.new_tokens}"
                raise self.too_short(length, least, parts)
        self.trials = [trial for length in self.lengths for trial in self._trials(length)]
        self.prompts = []
        sentences = 1
        for trial in self.trials:
            ids, sentences = longest_fit(
                partial(self._encode, trial), trial.length - self.budget(trial.length), sentences
            )
            self.prompts.append(ids)

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Ask every question, those of a length together."""
        answers = self.answers(model, progress, limit, "passkey", "asking for pass keys")
        table = [self._row(self.trials[number], answer) for number, answer in answers.items()]
        scores = [row["correct"] for row in table]
        return Evaluation(
            accuracies("passkey", [row["length"] for row in table], scores),
            self.depth_heatmap(dict(zip(answers, scores, strict=True)), "pass key"),
            tables={"passkey": table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def _trials(self, length: int) -> list[Trial]:
        return [
            make_trial(self.seed, length, number, self.depth_bins) for number in range(self.count)
        ]

    def _encode(self, trial: Trial, sentences: int) -> list[int]:
        return self.encode(prompt(trial, sentences))

    def _needed(self, length: int) -> int:
        """Tokens in which every trial of a length has room for a filler sentence."""
        longest = max(len(self._encode(trial, 1)) for trial in self._trials(length))
        return longest + self.budget(length)

    def _row(self, trial: Trial, answer: str) -> dict[str, Any]:
        row = {
            "length": trial.length,
            "depth": round(trial.depth, 4),
            "key": trial.key,
            "answer": answer,
        }
        return row | {"correct": is_correct(answer, trial.key)}
