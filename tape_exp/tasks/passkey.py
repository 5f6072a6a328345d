"""Passkey retrieval (section 4.3): a long text names a number, and a model is asked for it."""

import re
from typing import Any

import numpy as np

from tape_exp.data.retrieval import Question, with_filler
from tape_exp.machine.seeding import seed_for
from tape_exp.settings.schema import Count
from tape_exp.tasks.questions import Questions

HIGHEST = 50_000  # keys are 1 … HIGHEST
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"


class Passkey(Questions):
    """Passkey retrieval by the model of ``checkpoint=``, or an untrained one; nothing is trained.

    Answers are counted by :func:`is_correct`. The key is uniform, and the depth of its line is
    uniform within its bin. At a short length few sentences surround the line, which then is as near
    to its depth as their ends allow. Metrics are ``passkey/…`` of :class:`Questions`.

    Args:
        text: what a BPE is trained on where no checkpoint brings a tokenizer.
        new_tokens: of an answer: a key takes up to five in most tokenizers, and a space before it
            may take another.
    """

    name, sought, measure = "passkey", "pass key", "correct"

    def __init__(self, trials: Count = 20, new_tokens: Count = 8, **settings: Any) -> None:
        super().__init__(trials=trials, **settings)
        self.new_tokens = new_tokens

    @property
    def parts(self) -> str:
        """What a prompt must have room for, in words."""
        needed = f"one sentence and task.new_tokens={self.new_tokens}"
        return f"the line with the key, the question, {needed}"

    def budget(self, length: int) -> int:
        """Tokens of an answer."""
        return self.new_tokens

    def question(self, length: int, number: int) -> Question:
        """Question ``number`` of a length, a function of its arguments and the seed."""
        generator = np.random.default_rng(seed_for(self.seed, "passkey", length, number))
        key, within = int(generator.integers(1, HIGHEST + 1)), generator.random()
        depth = float((number % self.depth_bins + within) / self.depth_bins)
        return key_question(key, depth)

    def row(self, question: Question, answer: str) -> dict[str, Any]:
        """What the table says of an answer."""
        key, depth = int(question.wanted), round(question.depth, 4)
        correct = is_correct(answer, key)
        return {"depth": depth, "key": key, "answer": answer, "correct": correct}


def key_question(key: int, depth: float) -> Question:
    """The question for a key whose line is at a depth from 0 to 1."""
    text = with_filler([(depth, KEY_LINE.format(key=key))], QUESTION)
    return Question(text, str(key), depth)


def is_correct(answer: str, key: int) -> bool:
    """Whether the answer's first run of digits is the key; the first of ``12,345`` is 12."""
    number = re.search("[0-9]+", answer)
    return number is not None and number.group() == str(key)
