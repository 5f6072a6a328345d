"""The processes of a run: which one writes, who takes which items, and sums over all of them.

torch is imported where it is used, so that commands that only read records start quickly.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
# Variables of the environment that tell a process which one of its run it is.
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


def first_process() -> bool:
    """Whether this is the process that writes: of several, the one of rank 0 on node 0."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def rank_and_world() -> tuple[int, int]:
    """Which process of how many this one is."""
    import torch

    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def share(items: Sequence[Item]) -> list[tuple[Item, bool]]:
    """This process's part of ``items``, and whether each counts.

    All processes get equally many, since a sharded model computes only where all of them do: the
    last item is repeated where they do not divide, and its repetitions do not count.
    """
    rank, world = rank_and_world()
    indices = (first + rank for first in range(0, len(items), world))
    return [(items[min(index, len(items) - 1)], index < len(items)) for index in indices]


def gather(item: Item) -> list[Item]:
    """The item of every process, in their order."""
    import torch

    items: list[Any] = [item] * rank_and_world()[1]
    if len(items) > 1:
        torch.distributed.all_gather_object(items, item)
    return items


def sum_over_processes(values: "Tensor") -> "Tensor":
    """Add up a tensor of every process, in place; nothing to do where there is one."""
    import torch

    if torch.distributed.is_initialized():
        # NCCL adds up nothing that is on a CPU.
        on_gpu = torch.distributed.get_backend() == "nccl"
        summed = values.cuda() if on_gpu else values
        torch.distributed.all_reduce(summed)
        if summed is not values:
            values.copy_(summed)
    return values
