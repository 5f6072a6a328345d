"""Retrieval by a small model: the number of one of several keys in a text of any length."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Interval

from tape_exp.data.batch import Batch
from tape_exp.data.retrieval import Question, multi_key
from tape_exp.machine.files import short_hash
from tape_exp.machine.seeding import seed_for
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.schema import Count, Lengths, Optim
from tape_exp.tasks.base import Model, Progress, Task, bytes_of
from tape_exp.tasks.prompts import TrainingQuestion, training_row
from tape_exp.tasks.questions import Questions
from tape_exp.tasks.slices import Row, padded, split_means, split_names, splits_of

VALIDATION = 64  # rows


class RetrievalTraining(Questions):
    """:func:`~tape_exp.data.retrieval.multi_key` by a model that is trained on shorter texts.

    Training prompts have up to ``train_length`` tokens and 1 … ``items`` keys, both uniform, each
    with its answer, on which the loss is. An answer may have twice the tokens of a right one and is
    right if its first number is the right one.

    Metrics are those of :class:`Questions`, and ``id/accuracy`` and ``ood/accuracy``, over the
    trained lengths and over longer ones, each with ``…_stderr``.

    Args:
        items: keys of a text, one of which is asked for.
        digits: of a number; of two digits there are 90.
        lengths: tokens; None: one, two and four times the trained length.
    """

    name = "retrieval"
    trains = True
    measures = Task.measures

    def __init__(
        self,
        optim: Optim,
        train_length: Count,
        items: Annotated[int, Interval(ge=1, le=90)] = 1,
        digits: Annotated[int, Interval(ge=2, le=9)] = 3,
        lengths: Lengths | None = None,
        **settings: Any,
    ) -> None:
        lengths = lengths or (train_length, 2 * train_length, 4 * train_length)
        super().__init__(train_length=train_length, lengths=lengths, **settings)
        self.items = items
        self.digits = digits
        self.optim = optim
        self.trained_length = train_length

    def right(self, question: Question) -> list[int]:
        """Write a right answer in tokens, with EOS."""
        return [*self.tokenizer.encode_documents([question.answer])[0].tolist(), self.tokenizer.eos]

    def question(self, length: int, number: int) -> Question:
        """Ask for one of all ``items`` keys, in the bin of depths of the question."""
        return self.drawn("test", self.seed, length, number, bin_=number % self.depth_bins)

    def drawn(self, stream: str, seed: int, *place: int, bin_: int | None = None) -> Question:
        """Draw a question, as a function of the arguments; its depth is uniform, in a bin if one is
        given. Where nothing is tested it has any number of items up to the set one.
        """
        purpose = ("retrieval", "multi_key", self.items, stream, *place)
        generator = np.random.default_rng(seed_for(seed, *purpose))
        depth = generator.random()
        if bin_ is not None:
            depth = (bin_ + depth) / self.depth_bins
        items = self.items if stream == "test" else int(generator.integers(self.items)) + 1
        return multi_key(generator, items, depth, self.digits)

    def prepare(self) -> None:
        """Allow an answer twice the tokens of a right one, and write every prompt."""
        self.new_tokens = 2 * len(self.right(self.drawn("train", self.seed, 0)))
        super().prepare()

    def fingerprint(self) -> str:
        """Hash all prompts, and what is trained and validated on."""
        return short_hash([super().fingerprint(), *bytes_of(self.first_batches())])

    def train_batch(self, first: int, count: int) -> Batch:
        """Draw rows ``first`` … first + count - 1 of the training stream."""
        rows = [self._training_row("train", self.seed, first + row) for row in range(count)]
        return padded(rows, self.train_length + 1)

    def validation_batches(self) -> list[Batch]:
        """Draw fresh rows of the trained lengths, the same for every seed."""
        rows = [self._training_row("validation", 0, row) for row in range(VALIDATION)]
        return [padded(rows, self.train_length + 1)]

    def metric_names(self) -> list[str]:
        """Name those of :class:`Questions`, and the means of trained and of longer lengths."""
        splits = splits_of(self.lengths, self.is_trained)
        return [*super().metric_names(), *split_names(["accuracy"], splits)]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, and average over trained and over longer lengths."""
        evaluation = super().evaluate(model, progress, limit)
        correct: dict[int, list[bool]] = {}
        for row in evaluation.tables[self.name]:
            correct.setdefault(row["length"], []).append(row["correct"])
        scores = {length: {"accuracy": np.array(right)} for length, right in correct.items()}
        for name, mean in split_means(scores, ["accuracy"], self.is_trained).items():
            if not name.startswith("test/"):
                evaluation.metrics[name] = mean
        return evaluation

    def _training_row(self, stream: str, seed: int, row: int) -> Row:
        """Draw a prompt of a uniform length and its answer."""
        generator = np.random.default_rng(seed_for(seed, "retrieval", stream, "length", row))

        def draw_length(least: int, most: int) -> int:
            return int(generator.integers(least, most + 1))

        def draw(attempt: int) -> TrainingQuestion:
            question = self.drawn(stream, seed, row, attempt)
            return TrainingQuestion(self.writer(question), self.right(question), draw_length)

        prompt, answer = training_row(draw, self.train_length)
        scored = [False] * len(prompt) + [True] * len(answer)
        return prompt + answer, scored
