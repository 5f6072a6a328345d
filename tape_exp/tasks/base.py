"""What a task is: sizes of its model, an endless stream of samples, and an evaluation."""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.preemption import worker_signals
from tape_exp.machine.processes import share
from tape_exp.machine.seeding import seed_for
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim

Item = TypeVar("Item")


class Task(LightningDataModule, ABC):
    """Base of every task. A subclass gives ``train_batch``, ``validation_batches`` and
    ``evaluate``.

    Sample k of the training stream is a pure function of (seed, k): a resumed run, another number
    of devices or of data workers sees the same samples at the same step.

    Args:
        arch: sizes of the model, with vocabulary and lengths set by the task.
        optim: the recipe.
        seed: of the training stream.
    """

    trains = True  # False: the model is evaluated as it is initialised, or as checkpoint= gives it
    reports_perplexity = False  # val/perplexity beside val/loss

    def __init__(self, arch: Arch, optim: Optim, seed: int) -> None:
        super().__init__()
        self.arch, self.optim, self.seed = arch, optim, seed
        self.workers = 0
        self.overfit = False  # debug=overfit: every step sees the samples of step 0
        self.cache = Path("cache")  # tokens and tokenizers
        self.checkpoint: Path | None = None  # the run begins with these weights
        self.folder: Path | None = None  # for what an evaluation keeps while it is under way
        self.waited = 0.0  # seconds that training has waited for data

    @abstractmethod
    def train_batch(self, first: int, count: int) -> Batch:
        """Samples first … first + count - 1 of the training stream."""

    @abstractmethod
    def validation_batches(self) -> list[Batch]:
        """A small fixed set, scored during training."""

    @abstractmethod
    def evaluate(
        self, model: Callable[..., Tensor], progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Score a trained model (tokens -> logits), which is in evaluation mode on its device.

        ``progress(items, description)`` iterates and shows how far it is; ``limit`` stops after as
        many batches. Under several processes each scores its share and all return the same result:
        :func:`share`, :func:`sum_over_processes`.
        """

    def assets(self) -> dict[str, str]:
        """Files that are kept in the run's folder, name -> content: none by default."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, for the checkpoint. Going on reads the trainer's step; this says
        the same in samples.
        """
        step = self.trainer.global_step if self.trainer is not None else 0
        return {"samples": step * self.optim.batch}

    def validation_metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further sums over the rows of a validation batch, divided by the number of rows: none by
        default.
        """
        return {}

    def fingerprint(self) -> str:
        """A hash of the data: of the first training samples and the validation set."""
        digest = hashlib.sha256()
        for batch in (self.train_batch(0, min(self.optim.batch, 64)), *self.validation_batches()):
            for key in ("inputs", "labels"):
                digest.update(batch[key].numpy().tobytes())
        return digest.hexdigest()[:16]

    def train_dataloader(self) -> DataLoader:
        """Micro-batches from the trainer's present step on."""
        assert self.trainer is not None
        share = self.optim.batch // self.trainer.world_size
        rows = share // self.trainer.accumulate_grad_batches
        dataset = StreamSlices(self, rows, share, self.trainer.global_rank, self.trainer.world_size)
        per_step = self.trainer.accumulate_grad_batches
        sampler = Upward(self.trainer.global_step * per_step, self.optim.max_steps * per_step)
        return TimedLoader(
            self,
            dataset,
            batch_size=None,
            sampler=sampler,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.workers > 0,
            worker_init_fn=worker_signals,
        )

    def val_dataloader(self) -> DataLoader:
        """This process's share of the validation batches."""
        mine = [
            batch if counts else {**batch, "labels": torch.full_like(batch["labels"], IGNORE)}
            for batch, counts in share(self.validation_batches())
        ]
        return DataLoader(mine, batch_size=None)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader:
        """One empty item: ``evaluate`` brings its own data; Lightning's test loop only lends it the
        device and precision.
        """
        return DataLoader([torch.zeros(0)], batch_size=None)  # type: ignore[arg-type]


NO_OPTIM = Optim(batch=1, max_steps=1, lr=1e-4)  # of a task that trains nothing


class NothingTrained:
    """What a task lacks that only evaluates: a mixin before :class:`Task` or a subclass of it."""

    trains = False

    def train_batch(self, first: int, count: int) -> Batch:
        """Nothing is trained."""
        raise ConfigError(f"{type(self).__name__} trains nothing.")

    def validation_batches(self) -> list[Batch]:
        """None."""
        return []


class TimedLoader(DataLoader):
    """Adds the time that its user waits for a batch to ``task.waited``."""

    def __init__(self, task: Task, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.task = task

    def __iter__(self) -> Any:
        """The batches."""
        batches = super().__iter__()
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.task.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch


class StreamSlices(Dataset):
    """Item i is micro-batch i of one process: a slice of its share of a global batch of the
    stream.
    """

    def __init__(self, task: Task, rows: int, share: int, rank: int, world: int) -> None:
        self.task, self.rows, self.share, self.rank, self.world = task, rows, share, rank, world
        self._made: tuple[int, Batch] | None = None  # the share that is being sliced

    def __getitem__(self, index: int) -> Batch:
        """The slice, ``loss_tokens`` of the whole share, by which the loss is divided, and the
        number of its ``first`` row.
        """
        step, slice_ = divmod(index, self.share // self.rows)
        if self.task.overfit:
            step = 0
        first = (step * self.world + self.rank) * self.share
        if self._made is None or self._made[0] != first:
            self._made = first, self.task.train_batch(first, self.share)
        batch = self._made[1]
        facts = {
            "loss_tokens": (batch["labels"] != IGNORE).sum(),
            "first": torch.tensor(first + slice_ * self.rows),
        }
        rows = slice(slice_ * self.rows, (slice_ + 1) * self.rows)
        return {key: value[rows] for key, value in batch.items()} | facts


class Upward(Sampler[int]):
    """first, first + 1, … end - 1: where to go on is the trainer's step, never the sampler's
    memory.

    Its length counts from 0, as Lightning's batch index does: after a resumption too the epoch ends
    at ``end``.
    """

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.end))

    def __len__(self) -> int:
        return self.end


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order in which an epoch shows ``count`` samples: a function of seed and epoch."""
    return np.random.default_rng(seed_for(seed, "epoch", epoch)).permutation(count)
