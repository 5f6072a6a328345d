"""Retrieval at any length: the pass key's relatives, asked of a trained model or trained on."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tape_exp.data.batch import Batch
from tape_exp.data.retrieval import DIGITS, KINDS, WORDS, Question
from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.machine.seeding import seed_for
from tape_exp.runs.evaluation import Evaluation, Heatmap
from tape_exp.settings.errors import ConfigError, at_least_one, between, one_of
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import NO_OPTIM, NothingTrained, Task
from tape_exp.tasks.questions import Questions, accuracies, longest_fit
from tape_exp.tasks.slices import Scores, next_tokens, split_means

VALIDATION = 64  # rows
USUAL = (0.5, 1, 2, 4)  # times the trained length


class Retrieval(NothingTrained, Questions):
    """One kind of :data:`~tape_exp.data.retrieval.KINDS`, which docs/battery.md lists.

    A prompt is BOS and a text with as many filler sentences or words as fit, so that prompt and
    answer have at most the tokens of its length. Answers are greedy. One scores the share of the
    wanted strings that it holds, as in RULER. Questions depend on the seed, never on the model.

    Metrics, in percent: ``retrieval/accuracy`` of all questions, ``retrieval/accuracy@<length>``,
    and ``…_low`` and ``…_high`` of its 95 % interval (:func:`accuracies`); in tokens
    ``retrieval/effective_length`` (:func:`effective_length`), and ``…_low`` and ``…_high``, where
    the lower and the upper ends of the intervals reach the threshold. Table ``retrieval``: every
    question. Heatmap: accuracy by length, and of ``multi_key`` by depth and length.

    Args:
        kind: its name.
        items: keys, numbers, hops or words, by the kind; None: as many as in RULER.
        digits: of a number; of two digits there are 90.
        train_length: tokens that the model was trained on.
        lengths: tokens; None: half, one, two and four times the trained length, as far as a prompt
            fits.
        trials: questions of each length.
        threshold: percent, of the effective length.
        new_tokens: of an answer; None: twice the longest right one's.
    """

    def __init__(
        self,
        arch: Arch,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        kind: str,
        train_length: int,
        items: int | None = None,
        digits: int = DIGITS,
        lengths: Sequence[int] | None = None,
        trials: int = 50,
        threshold: float = 85.6,
        depth_bins: int = 5,
        rows_per_batch: int = 20,
        new_tokens: int | None = None,
    ) -> None:
        one_of("task.kind", kind, KINDS)
        at_least_one("task", train_length=train_length, items=items)
        between("task", 0, 100, threshold=threshold)
        between("task", 2, 9, digits=digits)
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
        self.usual = lengths is None
        super().__init__(
            arch,
            NO_OPTIM,
            seed,
            text,
            tokenizer,
            train_length,
            [int(n * train_length) or 1 for n in USUAL] if lengths is None else lengths,
            trials,
            depth_bins,
            rows_per_batch,
            new_tokens,
        )

    @staticmethod
    def kinds() -> dict[str, str]:
        """What each kind asks for, by its name."""
        return {name: str(kind.ask.__doc__) for name, kind in KINDS.items()}

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        self._asked: dict[int, list[Question]] = {}
        self._check()
        self.questions = [question for n in self.lengths for question in self._questions(n)]
        self.prompts = []
        size = 1
        for number, question in enumerate(self.questions):
            length = self.lengths[number // self.count]
            ids, size = longest_fit(self._writer(question), length - self.budget(length), size)
            self.prompts.append(ids)

    def budget(self, length: int) -> int:
        """Tokens of an answer at a length."""
        if self.new_tokens is not None:
            return self.new_tokens
        return 2 * max(len(self._answer(question)) for question in self._questions(length))

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Ask every question, those of a length together."""
        answers = self.answers(model, progress, limit, "retrieval", f"asking {self.kind}")
        table = [self._row(number, answer) for number, answer in answers.items()]
        scores = [row["score"] for row in table]
        metrics = accuracies("retrieval", [row["length"] for row in table], scores)
        for end in ("", "_low", "_high"):
            of = {
                n: metrics[f"retrieval/accuracy@{n}{end}"]
                for n in self.lengths
                if f"retrieval/accuracy@{n}" in metrics
            }
            metrics[f"retrieval/effective_length{end}"] = effective_length(of, self.threshold)
        return Evaluation(
            metrics,
            self._heatmap(dict(zip(answers, scores, strict=True)), metrics),
            tables={"retrieval": table},
            samples=table[:: max(len(table) // 4, 1)][:4],
        )

    def _check(self) -> None:
        """Refuse lengths that are too short, or leave out those that nobody has asked for."""
        least = {length: self.least(length, self._needed) for length in self.lengths}
        fitting = [length for length in self.lengths if least[length] == length]
        if not fitting or not (self.usual or fitting == self.lengths):
            short = max(least) if self.usual else min(set(least) - set(fitting))
            raise self.too_short(short, least[short], self._parts())
        self.lengths = fitting

    def _parts(self) -> str:
        return f"a question of task.kind={self.kind} and task.items={self.items} with its answer"

    def _needed(self, length: int) -> int:
        """Tokens in which every question of a length has room for a sentence or word more."""
        longest = max(len(self._writer(question)(1)) for question in self._questions(length))
        return longest + self.budget(length)

    def _questions(self, length: int) -> list[Question]:
        if length not in self._asked:
            self._asked[length] = [
                self._question("test", self.seed, length, number, bin_=number % self.depth_bins)
                for number in range(self.count)
            ]
        return self._asked[length]

    def _question(self, stream: str, seed: int, *place: int, bin_: int | None = None) -> Question:
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

    def _writer(self, question: Question) -> Callable[[int], list[int]]:
        return lambda size: self.encode(question.write(size))

    def _answer(self, question: Question) -> list[int]:
        """The tokens of a right answer, with EOS."""
        return [*self.tokenizer.encode([question.answer])[0].tolist(), self.tokenizer.eos]

    def _row(self, number: int, answer: str) -> dict[str, Any]:
        question = self.questions[number]
        row: dict[str, Any] = {"length": self.lengths[number // self.count]}
        if question.depth is not None:
            row["depth"] = round(question.depth, 4)
        row |= {"wanted": ", ".join(question.wanted), "answer": answer}
        return row | {"score": question.score(answer)}

    def _heatmap(self, score_of: Mapping[int, float], metrics: Mapping[str, float]) -> Heatmap:
        """By depth and length where one sentence is asked for, else by length."""
        if self.questions[0].depth is not None:
            return self.depth_heatmap(score_of, "sentence")
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

    def __init__(self, arch: Arch, optim: Optim, seed: int, **asked: Any) -> None:
        super().__init__(arch, seed, **asked)
        self.optim, self.trained_length = optim, self.train_length

    def prepare(self) -> None:
        """Write every prompt. Raises :class:`ConfigError` where a length is too short for one."""
        super().prepare()
        first = [self._question("train", self.seed, row, 0) for row in range(VALIDATION)]
        needed = max(len(self._writer(q)(1)) + len(self._answer(q)) for q in first) - 1
        if needed > self.train_length:
            raise ConfigError(
                f"task.train_length={self.train_length} are too few for {self._parts()}; {needed} "
                "would do with this tokenizer."
            )
        write = self._writer(first[0])
        self._per_size = (len(write(101)) - len(write(1))) / 100

    def fingerprint(self) -> str:
        """A hash of all prompts, and of what is trained and validated on."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for batch in (self.train_batch(0, min(self.optim.batch, 64)), *self.validation_batches()):
            for key in ("inputs", "labels"):
                digest.update(batch[key].numpy().tobytes())
        return digest.hexdigest()[:16]

    def train_batch(self, first: int, count: int) -> Batch:
        """Prompts with their answers; row k is a function of the seed and k."""
        return self._batch("train", self.seed, range(first, first + count))

    def validation_batches(self) -> list[Batch]:
        """Fresh rows of the trained lengths, the same for every seed."""
        return [self._batch("validation", 0, range(VALIDATION))]

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
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
            question = self._question(stream, seed, row, attempt)
            write, answer = self._writer(question), self._answer(question)
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
