"""What a task is: sizes of its model, an endless stream of samples, and an evaluation."""

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tape_exp.data.batch import IGNORE, Batch, loss_weights
from tape_exp.machine.files import short_hash
from tape_exp.machine.hardware import to_device_async
from tape_exp.machine.preemption import ignore_signals
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler, seed_for
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.slices import (
    SHOWN,
    RowScores,
    SliceScores,
    gather_scores,
    row_scores,
    samples_of,
    slice_heatmap,
    split_means,
    split_names,
    split_scores,
    splits_of,
)

Model = Any
"""Tokens -> logits, or with ``labels_BT`` losses; its ``decoder`` is what generates."""
Progress = Callable[..., Any]
"""``progress(items, description)`` iterates and shows how far it is."""
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
    """Base of every task. A subclass defines training, validation and test batches.

    Instead of test batches it may have an ``evaluate`` of its own. Sample k of the training stream
    is a pure function of (seed, k): a resumed run, another number of devices or of data workers
    sees the same samples at the same step.

    Args:
        arch: sizes of the model.
        optim: the recipe.
        seed: of the training stream.
        sizes: what the task sets of ``arch``: ``vocab``, ``train_length``, ``max_length``.
    """

    trains = True  # False: the model is evaluated as it is initialised, or as checkpoint= gives it
    skip_to: int | None = None  # the number of positions, where batches bring their own
    reports_perplexity = False  # val/perplexity as well as val/loss
    measures: tuple[str, ...] = ("exact_match", "token_accuracy")  # of each row; () scores none
    # Label -> lengths, of one axis where slices are lengths, of two where they are pairs of
    # lengths. The evaluation then has a heatmap.
    axes: Mapping[str, Sequence[int]] = {}
    trained_length = 0  # id/… are the slices of lengths up to this one, ood/… the others
    vocabulary: Sequence[str] = ()  # the symbol of each token, where rows are symbols

    def __init__(self, arch: Arch, optim: Optim, seed: int, **sizes: Any) -> None:
        super().__init__()
        self.arch = dataclasses.replace(arch, **sizes)
        self.optim = optim
        self.seed = seed
        self.run_context = RunContext()
        self.waited = 0.0  # seconds that training has waited for data

    def size_vocabulary(self, words: int) -> None:
        """Give the model so many rows of its embedding, once they are known."""
        self.arch = dataclasses.replace(self.arch, vocab=words)

    @property
    def eos(self) -> int | None:
        """The token that ends what a model writes, where there is one."""
        return list(self.vocabulary).index("<eos>") if self.vocabulary else None

    @property
    def stop_tokens(self) -> Sequence[int]:
        """All tokens that end it."""
        return [] if self.eos is None else [self.eos]

    def encode(self, text: str) -> list[int]:
        """The tokens of a row that begins like this; symbols of more than a letter have spaces
        between them.
        """
        if not self.vocabulary:
            raise ConfigError(f"rows of {type(self).__name__} are no text; give the ids of tokens.")
        symbols = text.split() if self.spaced else re.findall(r"<\w+>|.", text, re.DOTALL)
        number_of = {symbol: token for token, symbol in enumerate(self.vocabulary)}
        for symbol in symbols:
            if symbol not in number_of:
                raise ConfigError(
                    f"{symbol!r} is not a symbol of the task; its symbols are "
                    f"{' '.join(self.vocabulary)}"
                )
        return [number_of[symbol] for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> str:
        """What tokens say, without padding; of a task whose rows are no text their ids."""
        if not self.vocabulary:
            return " ".join(map(str, ids))
        words = [self.vocabulary[i] for i in ids]
        return (" " if self.spaced else "").join(word for word in words if word != "<pad>")

    @property
    def spaced(self) -> bool:
        """Whether symbols have more than one letter, apart from ``<pad>`` and ``<eos>``."""
        return any(len(word) > 1 and word[0] != "<" for word in self.vocabulary)

    def stream(self, key: int, first: int, count: int) -> Batch:
        """Samples first … first + count - 1 of the stream that a key of random numbers makes."""
        raise ConfigError(f"{type(self).__name__} trains nothing.")

    def train_batch(self, first: int, count: int) -> Batch:
        """Samples first … first + count - 1 of the training stream."""
        return self.stream(seed_for(self.seed, "train"), first, count)

    def validation_batches(self) -> list[Batch]:
        """A small set, scored during training: the same for every seed."""
        key = seed_for(0, "validation")
        return [self.stream(key, first, 128) for first in (0, 128)] if self.trains else []

    def test_batches(self) -> Sequence[tuple[Any, Batch | Callable[[], Batch]]]:
        """The test set: pairs of a slice and its batch, or a function that makes it, with which a
        large test set need not fit into memory.

        A slice names the rows that are scored together: as a rule their length, or a pair of
        lengths. A list of slices divides the rows of its batch equally, in its order.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither test_batches nor evaluate.")

    def test_sampler(self, number: int) -> RowSampler:
        """For encodings that sample positions: those of the rows of a test batch."""
        return RowSampler(0, "evaluation", number)

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
            logits = model(batch["inputs"], sampler=self.test_sampler(number))
            if not counts:
                continue
            names = slices if isinstance(slices, list) else [slices]
            labels = to_device_async(batch["labels"], logits.device)
            scored += split_scores(names, self.score_rows(logits, labels))
            if number % interval == 0:
                samples += samples_of(names, batch, logits, per_batch, self.decode)
        evaluation = self.summarise(gather_scores(scored))
        evaluation.tables["samples"] = list(itertools.chain.from_iterable(gather(samples)))
        return evaluation

    def metric_names(self) -> list[str]:
        """What :meth:`evaluate` calls its metrics, known from the settings before anything is read:
        names, or patterns of a shell for those of which only a part is sure. A task with an
        ``evaluate`` or ``summarise`` of its own says its own.
        """
        return split_names(self.measures, ("test", *self.splits()))

    def validation_names(self) -> list[str]:
        """What :meth:`validation_metrics` calls its own."""
        return [*self.measures]

    def splits(self) -> list[str]:
        """Which of ``id`` and ``ood`` have slices; both, where no :attr:`axes` say."""
        if not self.axes:
            return ["id", "ood"]
        cells = itertools.product(*self.axes.values())
        return splits_of((cell if cell[1:] else cell[0] for cell in cells), self.is_trained)

    def announced(self) -> list[str]:
        """The metrics that a record of the task has, by name or pattern. Where a class measures
        something of its own and does not name it, ``*`` is among them.
        """
        kind = type(self)
        names = self.metric_names()
        if not names_what(kind, "metric_names", ("evaluate", "summarise")):
            names = [*names, "*"]
        if not self.trains:
            return names
        validation = ["loss", *self.validation_names()]
        if self.reports_perplexity:
            validation.insert(1, "perplexity")
        if not names_what(kind, "validation_names", ("validation_metrics",)):
            validation.append("*")
        return [*(f"val/{name}" for name in validation), *names]

    def score_rows(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What :meth:`summarise` needs of each row (B, …) of a test batch."""
        scores = row_scores(logits, labels)
        return {measure: scores[measure] for measure in self.measures}

    def summarise(self, scores: dict[Any, RowScores]) -> Evaluation:
        """Means over slices, trained and longer ones apart, and a heatmap over :attr:`axes`."""
        metrics = split_means(scores, self.measures, self.is_trained)
        heatmap = slice_heatmap(scores, self.measures, self.axes, self.is_trained)
        if heatmap is not None and len(self.axes) == 1:
            heatmap.trained_length = self.trained_length
        return Evaluation(metrics, heatmap)

    def is_trained(self, slice_: Any) -> bool:
        """Whether training shows rows of a slice."""
        return bool(np.max(slice_) <= self.trained_length)

    def assets(self) -> dict[str, str]:
        """Files that are kept in the run's folder, name -> content: none by default."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The stream's place in samples, for the checkpoint; resuming reads the trainer's step."""
        step = self.trainer.global_step if self.trainer is not None else 0
        return {"samples": step * self.optim.batch}

    def validation_metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums over a validation batch's rows, for ``val/<name>``: by default the measures in %."""
        if not self.measures:
            return {}
        labelled = (batch["labels"] != IGNORE).any(-1)
        scores = row_scores(logits, batch["labels"])
        return {name: 100 * scores[name][labelled].sum() for name in self.measures}

    def data_fingerprint(self) -> str:
        """A hash of all data, :data:`FINGERPRINT` says how it is made: what training reads, and
        what is scored at the end.
        """
        return short_hash([f"{FINGERPRINT} {self.fingerprint()} {self.test_fingerprint()}"])

    def test_fingerprint(self) -> str:
        """A hash of the test batches; empty where :meth:`fingerprint` holds what is scored."""
        if type(self).test_batches is Task.test_batches:
            return ""

        def content() -> Iterator[str | bytes]:
            for name, batch in self.test_batches():
                yield repr(name)
                yield from bytes_of([batch() if callable(batch) else batch])

        return short_hash(content())

    def fingerprint(self) -> str:
        """A hash of the data: of the first training samples and the validation set.

        Checkpoints hold it too: a run that goes on refuses other data.
        """
        return short_hash(bytes_of(self.first_batches()))

    def first_batches(self) -> list[Batch]:
        """The first training samples and the validation set."""
        return [self.train_batch(0, min(self.optim.batch, 64)), *self.validation_batches()]

    def train_dataloader(self) -> DataLoader:
        """Micro-batches from the trainer's present step on."""
        assert self.trainer is not None
        per_step = self.trainer.accumulate_grad_batches
        workers = self.run_context.workers
        rows = self.optim.batch // self.trainer.world_size
        ranks = self.trainer.global_rank, self.trainer.world_size
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
        """This process's share of the validation batches."""
        batches = []
        for batch, counts in share(self.validation_batches()):
            if not counts:
                batch = {**batch, "labels": torch.full_like(batch["labels"], IGNORE)}
            batches.append(batch)
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader:
        """One empty item, for which Lightning's test loop sets up the device and precision."""
        return DataLoader([torch.zeros(0)], batch_size=None)  # type: ignore[arg-type]


def names_what(kind: type, names: str, measure: Sequence[str]) -> bool:
    """Whether the method ``names`` of a class is of the class whose methods ``measure``, or of one
    derived from it: then it knows what these measure.
    """
    naming = definer(kind, names)
    return all(issubclass(naming, definer(kind, name)) for name in measure)


def definer(kind: type, method: str) -> type:
    """The class that defines a method of ``kind``: itself, or one that it is derived from."""
    return next(cls for cls in kind.__mro__ if method in vars(cls))


def bytes_of(batches: Iterable[Batch]) -> Iterator[bytes]:
    """The inputs and labels of batches."""
    for batch in batches:
        yield batch["inputs"].numpy().tobytes()
        yield batch["labels"].numpy().tobytes()


NO_OPTIM = Optim(batch=1, max_steps=1, lr=1e-4)  # of a task that trains nothing


class TimedLoader(DataLoader):
    """Adds the time that its user waits for a batch to ``task.waited``."""

    dataset: "MicroBatches"

    def __iter__(self) -> Any:
        batches = super().__iter__()
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.dataset.task.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def __len__(self) -> int:
        """The number at which the last step ends: Lightning counts batches from 0, also where a
        resumed run begins later.
        """
        return int(self.sampler.stop)  # type: ignore[attr-defined]


@dataclass(eq=False)
class MicroBatches(Dataset):
    """Item i is micro-batch i of one process, a slice of its share of a global batch."""

    task: Task
    rows: int
    share: int
    rank: int
    world: int
    _made: tuple[int, Batch] | None = None  # the share that is being sliced

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The slice, ``loss_tokens`` of the whole share, and the number of its ``first`` row."""
        step, slice_ = divmod(index, self.share // self.rows)
        if self.task.run_context.overfit:
            step = 0
        first = (step * self.world + self.rank) * self.share
        if self._made is None or self._made[0] != first:
            self._made = first, self.task.train_batch(first, self.share)
        batch = self._made[1]
        begin = slice_ * self.rows
        # A part that is not contiguous would go to the GPU by way of memory that is not pinned.
        rows = {name: x[begin : begin + self.rows].contiguous() for name, x in batch.items()}
        return {**rows, "loss_tokens": loss_weights(batch).sum(), "first": first + begin}


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order in which an epoch shows ``count`` samples: a function of seed and epoch."""
    return np.random.default_rng(seed_for(seed, "epoch", epoch)).permutation(count)


def epoch_samples(seed: int, first: int, count: int, of: int) -> np.ndarray:
    """Which of so many samples are number ``first`` … of an endless stream of epochs."""
    numbers = range(first, first + count)
    return np.array([epoch_order(seed, n // of, of)[n % of] for n in numbers], dtype=np.int64)
