"""How training reads a task: micro-batches of a stream, and the order of epochs.

Nothing here keeps a place of its own: a micro-batch is a function of its number, so that a resumed
run goes on where it stopped.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from tape_exp.data.batch import Batch, loss_weights
from tape_exp.machine.seeding import seed_for

if TYPE_CHECKING:
    from tape_exp.tasks.base import Task


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
        """Return the number at which the last step ends: Lightning counts batches from 0, also
        where a resumed run begins later.
        """
        return int(self.sampler.stop)  # type: ignore[attr-defined]


@dataclass(eq=False)
class MicroBatches(Dataset):
    """Item i is micro-batch i of one process, a slice of its share of a global batch.

    With a global batch of 16 rows on two processes and micro-batches of 4, the second process has
    rows 8 … 11 as its item 0, rows 12 … 15 as item 1, and of the next step rows 24 … 27 as item 2.
    """

    task: "Task"
    rows: int  # of a micro-batch
    share: int  # rows of a process in a step
    rank: int
    world: int
    _made: tuple[int, Batch] | None = None  # its first row, and the share that is sliced

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the slice, ``loss_tokens`` of the whole share, and the number of its ``first``
        row.
        """
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
    """Return the order in which an epoch shows ``count`` samples: a function of seed and epoch."""
    return np.random.default_rng(seed_for(seed, "epoch", epoch)).permutation(count)


def epoch_samples(seed: int, first: int, count: int, of: int) -> np.ndarray:
    """Return which of so many samples are number ``first`` … of an endless stream of epochs.

    >>> sorted(epoch_samples(seed=0, first=0, count=3, of=3).tolist())
    [0, 1, 2]
    """
    numbers = range(first, first + count)
    return np.array([epoch_order(seed, n // of, of)[n % of] for n in numbers], dtype=np.int64)
