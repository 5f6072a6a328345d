"""Retrieval at any length: the pass key's relatives, asked of a trained model or trained on."""

import hashlib
import itertools
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval

from tape_exp.data.batch import Batch
from tape_exp.data.retrieval import DIGITS, KINDS, WORDS, Question
from tape_exp.machine.seeding import seed_for
from tape_exp.runs.evaluation import Evaluation, Heatmap
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.schema import Count, Lengths, Optim
from tape_exp.tasks.base import Model, Progress, Task, hash_of
from tape_exp.tasks.questions import Questions, longest_fit
from tape_exp.tasks.slices import Scores, next_tokens, split_means

VALIDATION = 64  # rows
USUAL = (0.5, 1, 2, 4)  # times the trained length


class Retrieval(Questions):
    """One kind of :data:`~tape_exp.data.retrieval.KINDS`, which docs/battery.md lists.

    An answer scores the share of the wanted strings that it holds, as in RULER. Metrics besides
    those of :class:`Questions`: ``retrieval/effective_length`` in tokens
    (:func:`effective_length`), and ``…_low`` and ``…_high``, where the lower and the upper ends of
    the intervals reach the threshold. The heatmap has depths for ``multi_key`` only.

    Args:
        kind: its name.
        items: keys, numbers, hops or words, by the kind; None: as many as in RULER.
        digits: of a number; of two digits there are 90.
        train_length: tokens that the model was trained on.
        lengths: tokens; None: half, one, two and four times the trained length, as far as a prompt
            fits.
        threshold: percent, of the effective length.
        new_tokens: of an answer; None: twice the longest right one's.
    """

    name = "retrieval"

    def __init__(
        self,
        kind: str,
        train_length: Count,
        items: Count | None = None,
        digits: Annotated[int, Interval(ge=2, le=9)] = DIGITS,
        lengths: Lengths | None = None,
        threshold: Annotated[float, Interval(ge=0, le=100)] = 85.6,
        **settings: Any,
    ) -> None:
        one_of("task.kind", kind, KINDS)
        self.kind, self.made, self.threshold, self.digits = kind, KINDS[kind], threshold, digits
        self.items = self.made.items if items is None else items
        if self.items > self.made.most:
            raise ConfigError(
                f"task.items={self.items}: task.kind={kind} takes "
                f"{self.made.words(self.items)} different words for so many {self.made.counted}, "
                f"and there are {len(WORDS)}; task.items={self.made.most} would do."
            )
        if self.items > (numbers := 9 * 10 ** (digits - 1)):
            raise ConfigError(
                f"task.items={self.items}: there are only {numbers} numbers of "
                f"task.digits={digits}; task.digits={digits + 1} would do."
            )
        self.optional = lengths is None
        usual = [int(n * train_length) or 1 for n in USUAL]
        settings["lengths"] = usual if lengths is None else lengths
        super().__init__(train_length=train_length, **settings)

    @property
    def parts(self) -> str:
        """What a prompt must have room for, in words."""
        return f"a question of task.kind={self.kind} and task.items={self.items} with its answer"

    def budget(self, length: int) -> int:
        """Tokens of an answer at a length."""
        if self.new_tokens is not None:
            return self.new_tokens
        return 2 * max(len(self.right(question)) for question in self.of_length(length))

    def right(self, question: Question) -> list[int]:
        """The tokens of a right answer, with EOS."""
        return [*self.tokenizer.encode([question.answer])[0].tolist(), self.tokenizer.eos]

    def question(self, length: int, number: int) -> Question:
        """Question ``number`` of a length."""
        return self.drawn("test", self.seed, length, number, bin_=number % self.depth_bins)

    def drawn(self, stream: str, seed: int, *place: int, bin_: int | None = None) -> Question:
        """A function of its arguments; the depth is uniform, in a bin if one is given.

        Where nothing is tested it has any number of items up to the set one.
        """
        purpose = ("retrieval", self.kind, self.items, stream, *place)
        generator = np.random.default_rng(seed_for(seed, *purpose))
        depth = generator.random()
        if bin_ is not None:
            depth = (bin_ + depth) / self.depth_bins
        items = self.items if stream == "test" else int(generator.integers(self.items)) + 1
        return self.made.ask(generator, items, depth, self.digits)

    def row(self, question: Question, answer: str) -> dict[str, Any]:
        """What the table says of an answer."""
        place = {} if question.depth is None else {"depth": round(question.depth, 4)}
        said = {"wanted": ", ".join(question.wanted), "answer": answer}
        return {**place, **said, "score": question.score(answer)}

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, and see up to which length enough of them are answered."""
        evaluation = super().evaluate(model, progress, limit)
        asked = {row["length"] for row in evaluation.tables["retrieval"]}
        for end in ("", "_low", "_high"):
            of = {n: evaluation.metrics[f"retrieval/accuracy@{n}{end}"] for n in asked}
            reached = effective_length(of, self.threshold)
            evaluation.metrics[f"retrieval/effective_length{end}"] = reached
        return evaluation

    def heatmap(self, score_of: Mapping[int, float], metrics: Mapping[str, float]) -> Heatmap:
        """By depth and length where one sentence is asked for, else by length."""
        if self.questions[0].depth is not None:
            return super().heatmap(score_of, metrics)
        values = [metrics.get(f"retrieval/accuracy@{length}", np.nan) for length in self.lengths]
        return Heatmap(
            np.array([values]),
            title="accuracy (%)",
            row_label="",
            column_label="length (tokens)",
            trained=(1, sum(length <= self.trained_tokens() for length in self.lengths)),
            rows=["accuracy"],
            columns=list(map(str, self.lengths)),
        )


class RetrievalTraining(Retrieval):
    """:class:`Retrieval` by a model that is trained on shorter texts.

    Training prompts have up to ``train_length`` tokens and 1 … ``items`` items, both uniform, each
    with its answer, on which the loss is.

    Metrics are also ``id/accuracy`` and ``ood/accuracy``, over the trained lengths and over longer
    ones, each with ``…_stderr``.

    Args:
        train_length: tokens of a training prompt with its answer, at most.
    """

    trains = True
    measures = Task.measures

    def __init__(self, optim: Optim, **settings: Any) -> None:
        super().__init__(**settings)
        self.optim, self.trained_length = optim, self.train_length

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        super().prepare()
        first = [self.drawn("train", self.seed, row, 0) for row in range(VALIDATION)]
        needed = max(len(self.writer(q)(1)) + len(self.right(q)) for q in first) - 1
        if needed > self.train_length:
            raise ConfigError(
                f"task.train_length={self.train_length} are too few for {self.parts}; {needed} "
                "would do with this tokenizer."
            )
        write = self.writer(first[0])
        self._per_size = (len(write(101)) - len(write(1))) / 100

    def fingerprint(self) -> str:
        """A hash of all prompts, and of what is trained and validated on."""
        digest = hashlib.sha256(super().fingerprint().encode())
        return hash_of(self.first_batches(), digest)

    def train_batch(self, first: int, count: int) -> Batch:
        """Prompts with their answers; row k is a function of the seed and k."""
        return self._batch("train", self.seed, range(first, first + count))

    def validation_batches(self) -> list[Batch]:
        """Fresh rows of the trained lengths, the same for every seed."""
        return [self._batch("validation", 0, range(VALIDATION))]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question, those of a length together."""
        evaluation = super().evaluate(model, progress, limit)
        of_length: dict[int, list[float]] = {}
        for row in evaluation.tables["retrieval"]:
            of_length.setdefault(row["length"], []).append(row["score"])
        scores: dict[int, Scores] = {n: {"accuracy": np.array(of)} for n, of in of_length.items()}
        means = split_means(scores, ["accuracy"], self.is_trained)
        evaluation.metrics |= {k: mean for k, mean in means.items() if not k.startswith("test/")}
        return evaluation

    def _batch(self, stream: str, seed: int, rows: range) -> Batch:
        tokens = np.zeros((len(rows), self.train_length + 1), dtype=np.int64)
        scored = np.zeros(tokens.shape, dtype=bool)
        for place, row in enumerate(rows):
            prompt, answer = self._training_row(stream, seed, row)
            end = len(prompt) + len(answer)
            tokens[place, :end] = prompt + answer
            scored[place, len(prompt) : end] = True
        return next_tokens(tokens, scored)

    def _training_row(self, stream: str, seed: int, row: int) -> tuple[list[int], list[int]]:
        """A prompt of a uniform length and its answer. A question that does not fit is replaced."""
        for attempt in itertools.count():  # nearly all fit, as prepare has seen
            question = self.drawn(stream, seed, row, attempt)
            write, answer = self.writer(question), self.right(question)
            least, most = len(write(1)), self.train_length + 1 - len(answer)
            if least <= most:
                break
        lengths = np.random.default_rng(seed_for(seed, "retrieval", stream, "length", row))
        room = int(lengths.integers(least, most + 1))
        guess = 1 + int((room - least) / self._per_size)
        return longest_fit(write, room, guess)[0], answer


def effective_length(accuracy: Mapping[int, float], threshold: float) -> int:
    """The longest length that reaches the threshold and whose shorter ones all do; 0: none."""
    reached = itertools.takewhile(lambda n: accuracy[n] >= threshold, sorted(accuracy))
    return max(reached, default=0)
