"""Passkey retrieval (section 4.3): a long text names a number, and a model is asked for it."""

from typing import Any

import numpy as np

from tape_exp.data.retrieval import Question, with_filler
from tape_exp.machine.seeding import seed_for
from tape_exp.settings.schema import Count, Lengths
from tape_exp.tasks.questions import Questions

HIGHEST = 50_000  # keys are 1 … HIGHEST
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"


class Passkey(Questions):
    """Passkey retrieval by the model of ``checkpoint=``, or an untrained one; nothing is trained.

    An answer is right if its first run of digits is the key; the first of ``12,345`` is 12. The key
    is uniform, and the depth of its line is uniform within its bin. At a short length few sentences
    surround the line, which then is as near to its depth as their ends allow. Metrics are
    ``passkey/…`` of :class:`~tape_exp.tasks.questions.Questions`.

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
        """Ask for a uniform key, at a uniform depth within the bin of the question."""
        generator = np.random.default_rng(seed_for(self.seed, "passkey", length, number))
        key = int(generator.integers(1, HIGHEST + 1))
        within = generator.random()
        depth = float((number % self.depth_bins + within) / self.depth_bins)
        return key_question(key, depth)


def key_question(key: int, depth: float) -> Question:
    """Ask for a key whose line is at a depth from 0 to 1.

    >>> print(key_question(71, 0.5).write(2))
    The line is long.
    The pass key is 71. Remember it. 71 is the pass key.
    The sea is calm.
    What is the pass key? The pass key is
    """
    text = with_filler([(depth, KEY_LINE.format(key=key))], QUESTION)
    return Question(text, str(key), depth)
