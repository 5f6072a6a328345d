"""Pre-training on text mixed with questions and answers, from which a model learns to look up."""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.data.builtin.facts import ask_among_facts
from tape_exp.data.retrieval import Question
from tape_exp.machine.seeding import seed_for
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.schema import Natural, Positive
from tape_exp.tasks.passkey import HIGHEST, key_question
from tape_exp.tasks.pretrain import Pretrain
from tape_exp.tasks.prompts import TrainingQuestion, training_row


def _fact(generator: random.Random) -> Question:
    """Ask for one of one to four facts."""
    asked = ask_among_facts(generator, generator.randint(1, 4))
    return Question(lambda size: f"Question: {asked.write(size)}\nAnswer:", asked.right)


def _pass_key(generator: random.Random) -> Question:
    """Ask for a key as :class:`~tape_exp.tasks.passkey.Passkey` does."""
    key = generator.randint(1, HIGHEST)
    return key_question(key, generator.random())


KINDS: dict[str, Callable[[random.Random], Question]] = {"passkey": _pass_key, "fact": _fact}


class Mixture(Pretrain):
    """Pre-training in which some rows are questions about short texts, with their answers.

    A row of a question is BOS, the text with filler, the question and the answer, as long as a
    length drawn up to T has room for. Only the answer is scored. Row k is a function of (seed, k).

    Args:
        rows: how many of every so many rows are ``text``, which must come first, and questions of
            each kind: ``passkey`` and ``fact``, as the generated ARC asks.
        answer_weight: of a token of an answer in the mean of the loss, where one of text has 1.
    """

    reports_perplexity = False

    def __init__(
        self, rows: Mapping[str, Natural], answer_weight: Positive = 1.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        for kind in rows:
            one_of("task.rows", kind, ("text", *KINDS))
        if next(iter(rows), None) != "text" or not rows["text"]:
            raise ConfigError(f"task.rows={dict(rows)} must begin with some rows of text.")
        self.turn: list[str] = []  # the kinds of rows in one turn
        for kind, count in rows.items():
            self.turn += [kind] * count
        self.texts_in_turn = rows["text"]
        self.answer_weight = answer_weight

    def train_batch(self, first: int, count: int) -> Batch:
        """Mix rows ``first`` … of the stream: its next blocks of text, and questions.

        With two texts in a turn of three, row 7 is at place 1 of turn 2, so its block is 2 · 2 + 1.
        """
        rows = range(first, first + count)
        texts = [row for row in rows if self.turn[row % len(self.turn)] == "text"]
        turns, place = divmod(texts[0] if texts else 0, len(self.turn))
        text = self.text_batch(turns * self.texts_in_turn + place, len(texts))
        return self.placed(self._mixed(text, "train", self.seed, rows), self.seed, first)

    def validation_batches(self) -> list[Batch]:
        """Mix the first blocks of the validation split and questions in proportion."""
        batches = []
        turns = 0
        for text in self._validation:
            count = max(1, len(text["inputs"]) // self.texts_in_turn)
            rows = range(turns * len(self.turn), (turns + count) * len(self.turn))
            blocks = {name: tokens[: count * self.texts_in_turn] for name, tokens in text.items()}
            batches.append(self._mixed(blocks, "validation", 0, rows))
            turns += count
        return self.all_placed(batches)

    def _mixed(self, text: Batch, stream: str, seed: int, rows: range) -> Batch:
        """Write rows of a stream: blocks of text in their places, and questions."""
        inputs = torch.zeros(len(rows), self.train_length, dtype=torch.long)
        labels = torch.full_like(inputs, IGNORE)
        weights = torch.zeros(inputs.shape)
        # A validation split of fewer blocks than a turn has is repeated.
        blocks = itertools.cycle(zip(text["inputs"], text["labels"], strict=True))
        for place, row in enumerate(rows):
            kind = self.turn[row % len(self.turn)]
            if kind == "text":
                inputs[place], labels[place] = next(blocks)
                weights[place] = 1.0
            else:
                prompt, answer = self.question(kind, stream, seed, row)
                ids = torch.tensor([*prompt, *answer])
                scored = slice(len(prompt) - 1, len(ids) - 1)
                inputs[place, : len(ids) - 1] = ids[:-1]
                labels[place, scored] = ids[len(prompt) :]
                weights[place, scored] = self.answer_weight
        return {"inputs": inputs, "labels": labels, "weights": weights}

    def question(self, kind: str, stream: str, seed: int, row: int) -> tuple[list[int], list[int]]:
        """Draw the prompt and the answer of a row of a question."""

        def draw(attempt: int) -> TrainingQuestion:
            generator = random.Random(seed_for(seed, "mixture", stream, row, attempt))
            question = KINDS[kind](generator)
            answer = self.tokenizer.encode_documents([question.answer])[0].tolist()

            def write(sentences: int) -> list[int]:
                return self.encode(question.write(sentences))

            return TrainingQuestion(write, answer, generator.randint)

        return training_row(draw, self.train_length)
