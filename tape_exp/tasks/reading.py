"""Reading: the question sets of SCROLLS, on generated documents whose four facts differ in kind."""

import itertools
import json
import random
from collections.abc import Callable

import torch
from torch.utils.data import default_collate

from tape_exp.data import scrolls
from tape_exp.data.batch import IGNORE, Batch
from tape_exp.data.builtin.facts import SUBJECTS, Fact, asked, facts_document
from tape_exp.data.scrolls import Example
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.machine.files import short_hash
from tape_exp.machine.seeding import seed_for
from tape_exp.machine.sharing import batched
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.schema import Arch, Count, Optim
from tape_exp.tasks.answers import answer, score_names, scored
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.prompts import longest_fit
from tape_exp.tasks.text import TextTask

# Prefix of the metrics -> how many times max_length a tested prompt has.
TESTED = {"": 1, "twice/": 2}
FULL = 0.25  # of training, after its first half, until documents have up to their whole length


class Reading(TextTask):
    """Fine-tuning on documents that are never seen twice, then greedy answers at the trained length
    and at twice, scored as in SCROLLS.

    A row is BOS, a document with four facts, and several questions about facts that are drawn
    independently, each with the set's closing instruction, the answer and EOS; the loss is on
    answers. In the first half of training documents are the four facts; then filler comes in, until
    three quarters of it, when a document may fill its row. Row k is a function of (seed, k).

    Metrics, in percent: ``builtin_<dataset>/<value>`` of :mod:`tape_exp.data.scrolls_metrics` on
    documents that fill ``max_length``, ``builtin_<dataset>/twice/<value>`` at twice as many tokens;
    ``…_low`` and ``…_high`` of their 95 % intervals. A guess among the four facts, or among four
    options of QuALITY, is right in 25 %.

    Args:
        dataset: qasper, narrative_qa or quality.
        max_length: tokens of a training row.
        questions: of a training row.
        test_questions: at each of the two lengths, a document for each.
        new_tokens: of an answer.
        validation_rows: with one question each, scored by their loss during training.
        init_from: like ``checkpoint=``: the run whose weights and tokenizer it begins from.
    """

    reports_perplexity = True

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        dataset: str,
        tokenizer: Tokenization,
        max_length: Count = 256,
        questions: Count = 4,
        test_questions: Count = 200,
        new_tokens: Count = 12,
        validation_rows: Count = 64,
        rows_per_batch: Count = 50,
        init_from: str | None = None,
    ) -> None:
        one_of("task.dataset", dataset, SUBJECTS)
        super().__init__(arch, seed, Text("builtin"), tokenizer, max_length)
        self.set_max_length(max(TESTED.values()) * max_length)
        self.optim = optim
        self.dataset = dataset
        self.max_length = max_length
        self.questions = questions
        self.test_questions = test_questions
        self.new_tokens = new_tokens
        self.validation_rows = validation_rows
        self.rows_per_batch = rows_per_batch

    # ---- rows ----

    def train_batch(self, first: int, count: int) -> Batch:
        """Write rows first … first + count - 1 of the training stream."""
        rows = range(first, first + count)
        return default_collate([self._row("train", self.seed, row) for row in rows])

    def validation_batches(self) -> list[Batch]:
        """Write rows with one question each, the same for every seed."""
        rows = [self._row("validation", 0, row) for row in range(self.validation_rows)]
        return [default_collate(batch) for _, batch in batched(rows, self.rows_per_batch)]

    def filler(self, row: int) -> float:
        """Return the largest part of its room that the filler of a row takes: 0 in the first
        half.
        """
        done = row / (self.optim.batch * self.optim.max_steps)
        return min(max((done - 0.5) / FULL, 0.0), 1.0)

    def _row(self, stream: str, seed: int, row: int) -> Batch:
        """Write a row: ``inputs`` and ``labels``, both (max_length - 1,)."""
        share = self.filler(row) if stream == "train" else 1.0
        questions = self.questions if stream == "train" else 1
        generator = random.Random(seed_for(seed, "reading", self.dataset, stream, row))
        write, facts = facts_document(self.dataset, generator)
        tokens: list[int] = []
        scored: list[bool] = []
        for _ in range(questions):
            closing, answer = self._question(generator.choice(facts), generator)
            tokens += [*closing, *answer]
            scored += [False] * len(closing) + [True] * len(answer)
        room = self.max_length - len(tokens)
        most = self._filled(write, room)[1] if share else 0
        document = self._document(write, int(share * generator.random() * (most + 1)))
        if len(document) > room:
            raise self._too_short(len(document) - room)
        tokens = [*document, *tokens]
        scored = [False] * len(document) + scored
        inputs = torch.full((self.max_length - 1,), self.tokenizer.eos)
        labels = torch.full_like(inputs, IGNORE)
        ids = torch.tensor(tokens)
        inputs[: len(ids) - 1] = ids[:-1]
        labels[: len(ids) - 1] = torch.where(torch.tensor(scored)[1:], ids[1:], IGNORE)
        return {"inputs": inputs, "labels": labels}

    def _filled(self, write: Callable[[int], str], room: int) -> tuple[list[int], int]:
        """Write the longest document of at most ``room`` tokens with BOS; with its number of
        sentences of filler.
        """
        least = len(self._document(write, 1))
        if least > room:
            raise self._too_short(least - room)
        return longest_fit(lambda sentences: self._document(write, sentences), room, 8)

    def _too_short(self, excess: int) -> ConfigError:
        """Explain that a row has so many tokens too many."""
        return ConfigError(
            f"task.max_length={self.max_length} is too short for four facts and "
            f"task.questions={self.questions}, which take {self.max_length + excess} tokens here; "
            "allow some more."
        )

    def _document(self, write: Callable[[int], str], sentences: int) -> list[int]:
        """Return the tokens of BOS and a document with so many sentences of filler."""
        return self.tokenizer.begun(self.tokenizer.pieces(write(sentences), True).ids)

    def _question(self, fact: Fact, generator: random.Random) -> tuple[list[int], list[int]]:
        """Return the tokens of a question with its instruction, and of its answer with EOS."""
        example = self.example("", fact, generator)
        prompt, answer = scrolls.encode(example, self.tokenizer, 10 * self.max_length)
        return prompt[len(self.tokenizer.begin) :], answer

    def example(self, id_: str, fact: Fact, generator: random.Random) -> Example:
        """Ask about a fact as the set does, without a document."""
        question = asked(self.dataset, fact, generator)
        return Example(self.dataset, id_, question, "", [fact.value])

    # ---- the test ----

    def prepare(self) -> None:
        """Write every tested prompt; its document fills the length but for the answer."""
        self.tested: dict[str, Example] = {}
        self.prompts: dict[str, list[int]] = {}
        self.prefix_of: dict[str, str] = {}
        for prefix, number in itertools.product(TESTED, range(self.test_questions)):
            id_ = f"{prefix}{number}"
            generator = random.Random(seed_for(0, "reading", self.dataset, "test", id_))
            write, facts = facts_document(self.dataset, generator)
            fact = generator.choice(facts)
            closing, _ = self._question(fact, random.Random(id_))
            room = TESTED[prefix] * self.max_length - len(closing) - self.new_tokens
            document, _ = self._filled(write, room)
            self.tested[id_] = self.example(id_, fact, random.Random(id_))
            self.prompts[id_] = [*document, *closing]
            self.prefix_of[id_] = prefix

    def fingerprint(self) -> str:
        """Hash the first samples, the validation rows, and every tested prompt."""
        return short_hash([super().fingerprint(), json.dumps(self.prompts)])

    def test_fingerprint(self) -> str:
        """Hash every tested prompt."""
        return short_hash([json.dumps(self.prompts)])

    def metric_names(self) -> list[str]:
        """Name the scores at both lengths."""
        return [name for prefix in TESTED for name in score_names(self.dataset, self.label(prefix))]

    def label(self, prefix: str) -> str:
        """Return what metrics of a tested length begin with: ``builtin_qasper/twice``."""
        return f"{Text(self.dataset, 'builtin').label}/{prefix}".rstrip("/")

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Answer every question, and score each length; the answers in a table."""
        answers = answer(self, self.prompts, model, progress, limit)
        metrics: dict[str, float] = {}
        table = []
        for prefix in TESTED:
            ids = [id_ for id_ in answers if self.prefix_of[id_] == prefix]
            if ids:
                examples = [self.tested[id_] for id_ in ids]
                values, rows = scored(self.dataset, self.label(prefix), examples, answers)
                metrics |= values
                table += rows
        return Evaluation(metrics, tables={"predictions": table}, samples=table[:3])
