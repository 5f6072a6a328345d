"""What a task is: sizes of its model, an endless stream of samples, and an evaluation.

:class:`Task` is written in the order in which an author needs it: what a task says of itself, what
it makes, how it is scored, and last what the run does with it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.files import short_hash
from tape_exp.machine.hardware import to_device_async
from tape_exp.machine.preemption import ignore_signals
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler, seed_for
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.loading import MicroBatches, TimedLoader
from tape_exp.tasks.slices import (
    SHOWN,
    RowScores,
    SliceScores,
    gather_scores,
    require_labels,
    row_scores,
    samples_of,
    slice_heatmap,
    split_means,
    split_names,
    split_scores,
    splits_of,
)
from tape_exp.tasks.symbols import decode_symbols, encode_symbols

Model = Any
"""Tokens -> logits, or what ``output`` says; its ``decoder`` is what generates."""
Progress = Callable[..., Any]
"""``progress(items, description)`` iterates and shows how far it is."""
TestBatch = tuple[Any, Batch | Callable[[], Batch]]
"""A slice, or a list of slices that divide the rows equally, and a batch or what makes it."""
NO_OPTIM = Optim(batch=1, max_steps=1, lr=1e-4)  # of a task that trains nothing
# The version of Task.data_fingerprint: only fingerprints of one version can be compared. Records
# without a version are older than 2, and the definition changed among them.
FINGERPRINT = 2


@dataclass(frozen=True)
class RunContext:
    """What a task knows of its run, in addition to the task's own settings."""

    cache: Path = Path("cache")  # of tokens and tokenizers, shared by all runs
    checkpoint: Path | None = None  # the weights that the run begins from, if it does
    workers: int = 0  # processes that prepare data
    overfit: bool = False  # debug=overfit: every step sees the samples of step 0


class Task(LightningDataModule):
    """Base of every task. Sample k of the training stream is a pure function of (seed, k): a
    resumed run, another number of devices or of data workers sees the same samples at the same
    step.

    A new task writes:

    - ``__init__``: its settings, and the sizes of the model that it decides: ``vocab``,
      ``train_length`` and ``max_length``, in tokens;
    - :meth:`stream`, of which training and validation have one each; a task that trains nothing
      says ``trains = False`` instead;
    - :meth:`test_batches`, the rows that are scored at the end, with their slices; and what these
      are: :attr:`axes`, :attr:`trained_length` and :attr:`measures`.

    That is all where each row is scored by the arg-max at its labels. A task that measures
    something else has a ``score_rows`` and ``summarise``, or an ``evaluate``, of its own, and
    ``metric_names`` beside it. :class:`~tape_exp.tasks.sequences.SequenceTask` needs less: symbols
    and how a row is made. :class:`~tape_exp.tasks.text.TextTask` brings a corpus and its tokenizer.

    Args:
        arch: sizes of the model.
        optim: the recipe.
        seed: of the training stream.
        sizes: what the task sets of ``arch``: ``vocab``, ``train_length``, ``max_length``.
    """

    # ---- what a task says of itself ----

    trains = True  # False: the model is evaluated as it is initialised, or as checkpoint= gives it
    measures: tuple[str, ...] = ("exact_match", "token_accuracy")  # of each row; () scores none
    # Label -> lengths, of one axis where slices are lengths, of two where they are pairs of
    # lengths. The evaluation then has a heatmap.
    axes: Mapping[str, Sequence[int]] = {}
    trained_length = 0  # id/… are the slices of lengths up to this one, ood/… the others
    vocabulary: Sequence[str] = ()  # the symbol of each token, where rows are symbols
    reports_perplexity = False  # val/perplexity as well as val/loss
    skip_to: int | None = None  # the number of positions, where batches bring their own

    def __init__(self, arch: Arch, optim: Optim, seed: int, **sizes: Any) -> None:
        super().__init__()
        self.arch = dataclasses.replace(arch, **sizes)
        self.optim = optim
        self.seed = seed
        self.run_context = RunContext()
        self.waited = 0.0  # seconds that training has waited for data

    # ---- what it makes ----

    def stream(self, key: int, first: int, count: int) -> Batch:
        """Make samples first … first + count - 1 of the stream that a key of random numbers
        makes.
        """
        raise ConfigError(f"{type(self).__name__} trains nothing.")

    def train_batch(self, first: int, count: int) -> Batch:
        """Make samples first … first + count - 1 of the training stream."""
        return self.stream(seed_for(self.seed, "train"), first, count)

    def validation_batches(self) -> list[Batch]:
        """Make a small set, scored during training: the same for every seed."""
        key = seed_for(0, "validation")
        return [self.stream(key, first, 128) for first in (0, 128)] if self.trains else []

    def test_batches(self) -> Sequence[TestBatch]:
        """Make the test set: pairs of a slice and its batch, or a function that makes it, with
        which a large test set need not fit into memory.

        A slice names the rows that are scored together: as a rule their length, or a pair of
        lengths. A list of slices divides the rows of its batch equally, in its order.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither test_batches nor evaluate.")

    def test_sampler(self, number: int) -> RowSampler:
        """Return, for encodings that sample positions, the sampler of the rows of a test batch."""
        return RowSampler(0, "evaluation", number)

    # ---- how it is scored ----

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Score a trained model (tokens -> logits), which is in evaluation mode on its device.

        Every row of :meth:`test_batches` takes part in one forward pass. Under several processes
        each scores its share, and all return the same result: :func:`share`, :func:`gather`.

        Args:
            limit: stop after as many batches.
        """
        batches = self.test_batches()
        interval = max(math.ceil(len(batches) / SHOWN), 1)  # of batches with samples
        per_batch = max(SHOWN // max(len(batches), 1), 1)
        samples: list[dict[str, str | bool]] = []
        scored: list[SliceScores] = []
        for number, counts in progress(share(range(len(batches))[:limit]), "evaluating"):
            slices, batch = batches[number]
            batch = batch() if callable(batch) else batch
            names = slices if isinstance(slices, list) else [slices]
            require_labels(names, batch)
            logits = model(batch["inputs"], sampler=self.test_sampler(number))
            if not counts:
                continue
            labels = to_device_async(batch["labels"], logits.device)
            scored += split_scores(names, self.score_rows(logits, labels))
            if number % interval == 0:
                samples += samples_of(names, batch, logits, per_batch, self.decode)
        evaluation = self.summarise(gather_scores(scored))
        evaluation.tables["samples"] = list(itertools.chain.from_iterable(gather(samples)))
        return evaluation

    def score_rows(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Score each row (B, …) of a test batch by all that :meth:`summarise` needs."""
        scores = row_scores(logits, labels)
        return {measure: scores[measure] for measure in self.measures}

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Average over slices, trained and longer ones apart, and draw a heatmap over
        :attr:`axes`.
        """
        metrics = split_means(scores, self.measures, self.is_trained)
        heatmap = slice_heatmap(scores, self.measures, self.axes, self.is_trained)
        if heatmap is not None and len(self.axes) == 1:
            heatmap.trained_length = self.trained_length
        return Evaluation(metrics, heatmap)

    def is_trained(self, slice_: Any) -> bool:
        """Say whether training shows rows of a slice."""
        return bool(np.max(slice_) <= self.trained_length)

    def validation_metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sum over a validation batch's rows, for ``val/<name>``: by default the measures in %."""
        if not self.measures:
            return {}
        labelled = (batch["labels"] != IGNORE).any(-1)
        scores = row_scores(logits, batch["labels"])
        return {name: 100 * scores[name][labelled].sum() for name in self.measures}

    # ---- what its metrics are called, before anything is read ----

    def metric_names(self) -> list[str]:
        """Name the metrics of :meth:`evaluate`, from the settings: names, or patterns of a shell
        for those of which only a part is sure. A task with an ``evaluate`` or ``summarise`` of its
        own says its own.
        """
        return split_names(self.measures, ("test", *self.splits()))

    def validation_names(self) -> list[str]:
        """Name the metrics of :meth:`validation_metrics`."""
        return [*self.measures]

    def splits(self) -> list[str]:
        """List which of ``id`` and ``ood`` have slices; both, where no :attr:`axes` say."""
        if not self.axes:
            return ["id", "ood"]
        cells = itertools.product(*self.axes.values())
        return splits_of((cell if cell[1:] else cell[0] for cell in cells), self.is_trained)

    def announced(self) -> list[str]:
        """List the metrics that a record of the task has, by name or pattern. Where a class
        measures something of its own and does not name it, ``*`` is among them.
        """
        kind = type(self)
        names = self.metric_names()
        if not knows(kind, "metric_names", ("evaluate", "summarise")):
            names = [*names, "*"]
        if not self.trains:
            return names
        validation = ["loss", *self.validation_names()]
        if self.reports_perplexity:
            validation.insert(1, "perplexity")
        if not knows(kind, "validation_names", ("validation_metrics",)):
            validation.append("*")
        return [*(f"val/{name}" for name in validation), *names]

    # ---- rows as text ----

    @property
    def eos(self) -> int | None:
        """Return the token that ends what a model writes, where there is one."""
        return list(self.vocabulary).index("<eos>") if self.vocabulary else None

    @property
    def stop_tokens(self) -> Sequence[int]:
        """List all tokens that end what a model writes."""
        return [] if self.eos is None else [self.eos]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a row that begins like this (:func:`encode_symbols`)."""
        if not self.vocabulary:
            raise ConfigError(f"rows of {type(self).__name__} are no text; give the ids of tokens.")
        return encode_symbols(text, self.vocabulary)

    def decode(self, ids: Sequence[int]) -> str:
        """Return what tokens say, without padding; of a task whose rows are no text their ids."""
        if not self.vocabulary:
            return " ".join(map(str, ids))
        return decode_symbols(ids, self.vocabulary)

    # ---- what the run does with it ----

    def size_vocabulary(self, words: int) -> None:
        """Give the model so many rows of its embedding, once they are known."""
        self.arch = dataclasses.replace(self.arch, vocab=words)

    def assets(self) -> dict[str, str]:
        """Return files that are kept in the run's folder, name -> content: none by default."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's place in samples, for the checkpoint; resuming reads the trainer's
        step.
        """
        step = self.trainer.global_step if self.trainer is not None else 0
        return {"samples": step * self.optim.batch}

    def data_fingerprint(self) -> str:
        """Hash all data, as :data:`FINGERPRINT` says: what training reads, and what is scored at
        the end.
        """
        return short_hash([f"{FINGERPRINT} {self.fingerprint()} {self.test_fingerprint()}"])

    def fingerprint(self) -> str:
        """Hash the first training samples and the validation set.

        Checkpoints hold it too: a run that goes on refuses other data.
        """
        return short_hash(bytes_of(self.first_batches()))

    def test_fingerprint(self) -> str:
        """Hash the test batches; empty where :meth:`fingerprint` holds what is scored."""
        if type(self).test_batches is Task.test_batches:
            return ""

        def content() -> Iterator[str | bytes]:
            for name, batch in self.test_batches():
                yield repr(name)
                yield from bytes_of([batch() if callable(batch) else batch])

        return short_hash(content())

    def first_batches(self) -> list[Batch]:
        """Make the first training samples and the validation set."""
        return [self.train_batch(0, min(self.optim.batch, 64)), *self.validation_batches()]

    def train_dataloader(self) -> DataLoader:
        """Load micro-batches from the trainer's present step on."""
        assert self.trainer is not None
        per_step = self.trainer.accumulate_grad_batches
        workers = self.run_context.workers
        rows = self.optim.batch // self.trainer.world_size
        ranks = (self.trainer.global_rank, self.trainer.world_size)
        dataset = MicroBatches(self, rows // per_step, rows, *ranks)
        return TimedLoader(
            dataset,
            batch_size=None,
            sampler=range(self.trainer.global_step * per_step, self.optim.max_steps * per_step),
            num_workers=workers,
            # A task is not pickled. Python's own choice is another in `paper run --cores`, and
            # from 3.14 on.
            multiprocessing_context="fork" if workers else None,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
            worker_init_fn=ignore_signals,
        )

    def val_dataloader(self) -> DataLoader:
        """Load this process's share of the validation batches."""
        batches = []
        for batch, counts in share(self.validation_batches()):
            if not counts:
                batch = {**batch, "labels": torch.full_like(batch["labels"], IGNORE)}
            batches.append(batch)
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader:
        """Load one empty item, for which Lightning's test loop sets up the device and precision."""
        return DataLoader([torch.zeros(0)], batch_size=None)  # type: ignore[arg-type]


def knows(kind: type, naming: str, measuring: Sequence[str]) -> bool:
    """Say whether a method of a task, ``metric_names``, knows what others of it measure: whether it
    is of the same class as they are, or of one derived from that.

    A ``class Mine(Task)`` that has an ``evaluate`` and no ``metric_names`` has those of
    :class:`Task`, which do not know what Mine measures.
    """
    names = definer(kind, naming)
    return all(issubclass(names, definer(kind, method)) for method in measuring)


def definer(kind: type, method: str) -> type:
    """Find the class that defines a method of ``kind``: itself, or one that it is derived from."""
    return next(cls for cls in kind.__mro__ if method in vars(cls))


def bytes_of(batches: Iterable[Batch]) -> Iterator[bytes]:
    """Yield the inputs and labels of batches."""
    for batch in batches:
        yield batch["inputs"].numpy().tobytes()
        yield batch["labels"].numpy().tobytes()
