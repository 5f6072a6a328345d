"""SCROLLS (section 4.2): fine-tune on a data set, generate answers and score them."""

import json
from functools import cache
from typing import Any

from torch.utils.data import default_collate

from tape_exp.data import scrolls
from tape_exp.data.batch import Batch
from tape_exp.data.scrolls import Example
from tape_exp.data.text import Source, Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.machine.files import short_hash
from tape_exp.machine.sharing import batched
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import one_of
from tape_exp.settings.schema import Arch, Count, Optim
from tape_exp.tasks.answers import answer, score_names, scored
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.loading import epoch_samples
from tape_exp.tasks.text import TextTask


class Scrolls(TextTask):
    """Fine-tuning on one SCROLLS set, then greedy validation answers, scored as in the benchmark.

    A row is BOS, the document cut so that all fits, the question and a closing instruction, whole,
    and the answer with EOS; the loss is on the answer. Every reference of a training question is a
    row of its own.

    Metrics, in percent: ``<dataset>/<value>`` of :mod:`tape_exp.data.scrolls_metrics`, with
    ``…_low`` and ``…_high`` of its 95 % interval; of the generated sets ``builtin_<dataset>/…``.

    Args:
        dataset: one of the seven.
        source, path, repository, revision: as in :func:`tape_exp.data.scrolls.read`.
        max_length: tokens of a training row.
        answer_limit, new_tokens: of an answer in training, and when it is generated; null: 200, and
            1000 of a summary.
        validation_rows: of the validation split, scored by their loss during training.
        fine_tune: whether it trains on the set; false: what it begins from answers as it is.
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
        max_length: Count = 1024,
        source: Source = "builtin",
        path: str | None = None,
        repository: str = "tau/scrolls",
        revision: str = "main",
        answer_limit: Count | None = None,
        new_tokens: Count | None = None,
        validation_rows: Count = 64,
        rows_per_batch: Count = 64,
        init_from: str | None = None,
        fine_tune: bool = True,
    ) -> None:
        one_of("task.dataset", dataset, scrolls.DATASETS)
        super().__init__(arch, seed, Text("builtin"), tokenizer, max_length)
        tokens_of_set = scrolls.DATASETS[dataset].tokens
        self.new_tokens = new_tokens or tokens_of_set
        # Half of max_length at most, so that a long summary leaves a document.
        self.reserved = min(self.new_tokens, max_length // 2)
        self.set_max_length(max_length - self.reserved + self.new_tokens)
        self.trains = fine_tune
        self.optim = optim
        self.source = source
        self.dataset = dataset
        self.max_length = max_length
        self.answer_limit = answer_limit
        self.validation_rows = validation_rows
        self.rows_per_batch = rows_per_batch
        self.data = (source, path, repository, revision)
        self._encoded = cache(lambda n, reference: self._row(self.examples[n], reference))

    def prepare(self) -> None:
        """Read both splits, and check that every question fits."""
        self.examples = scrolls.read(self.dataset, "train", *self.data)
        self.validation = scrolls.read(self.dataset, "validation", *self.data)
        self.pairs: list[tuple[int, int]] = []  # of an example and one of its references
        for number, example in enumerate(self.examples):
            self.pairs += [(number, reference) for reference in range(len(example.references))]
        for example in (*self.examples, *self.validation):
            scrolls.room(example, self.tokenizer, self.max_length, self.reserved)

    def train_batch(self, first: int, count: int) -> Batch:
        """Make rows ``first`` … of the endless stream of epochs, each in an order of its own."""
        places = epoch_samples(self.seed, first, count, len(self.pairs))
        return default_collate([self._encoded(*self.pairs[place]) for place in places])

    def validation_batches(self) -> list[Batch]:
        """Make the first rows of the validation split."""
        rows = [self._row(example, 0) for example in self.validation[: self.validation_rows]]
        return [default_collate(batch) for _, batch in batched(rows, self.rows_per_batch)]

    def fingerprint(self) -> str:
        """Hash the first samples, the validation rows, and every question and reference."""
        content = [(e.id, e.question, e.references) for e in (*self.examples, *self.validation)]
        return short_hash([super().fingerprint(), json.dumps(content)])

    def test_fingerprint(self) -> str:
        """Hash the validation split."""
        return short_hash(map(repr, self.validation))

    def metric_names(self) -> list[str]:
        """Name the scores of the set."""
        return score_names(self.dataset, Text(self.dataset, self.source).label)

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Answer every question, the longest prompts first, and score; the answers in a table."""
        cut = (self.tokenizer, self.max_length, self.reserved)
        prompts = {e.id: scrolls.prompt(e, *cut) for e in self.validation}
        order = sorted(prompts, key=lambda id_: (-len(prompts[id_]), id_))
        answers = answer(self, {id_: prompts[id_] for id_ in order}, model, progress, limit)
        examples = [example for example in self.validation if example.id in answers]
        label = Text(self.dataset, self.source).label
        metrics, table = scored(self.dataset, label, examples, answers)
        samples = [cut_texts(row) for row in table[:3]]
        return Evaluation(metrics, tables={"predictions": table}, samples=samples)

    def _row(self, example: Example, reference: int) -> Batch:
        """Make the row of an example and one of its references."""
        cut = (self.max_length, self.answer_limit, reference)
        return scrolls.as_row(*scrolls.encode(example, self.tokenizer, *cut), self.max_length - 1)


def cut_texts(row: dict[str, Any], most: int = 600) -> dict[str, Any]:
    """Cut the texts of a row of a table to so many characters.

    >>> cut_texts({"question": "Who came?", "f1": 50.0}, most=3)
    {'question': 'Who', 'f1': 50.0}
    """
    return {key: value[:most] if isinstance(value, str) else value for key, value in row.items()}
