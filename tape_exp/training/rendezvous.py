"""Strategies whose processes wait only so long for one another before a run begins."""

import os
from datetime import timedelta
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy
from torch.distributed import DistError, Store
from torch.distributed.rendezvous import rendezvous

from tape_exp.training.faults import LostProcessError


def meet(environment: ClusterEnvironment, seconds: int) -> Store:
    """Wait until all processes are there; the store in which they have met.

    Lightning's processes wait for half an hour, without a word. Its ``timeout=`` is also that of
    all collectives, and a shorter one would end a healthy run in which others wait for a long
    evaluation of one process. So they meet before, in the way that it follows at once: the store
    is the same, as long as this one is kept.

    Raises:
        LostProcessError: some have not come in time; the sentence names the address.
    """
    address, port = environment.main_address, environment.main_port
    rank, world = environment.global_rank(), environment.world_size()
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    limit = timedelta(seconds=seconds)
    try:
        store: Store = next(rendezvous("env://", rank, world, timeout=limit))[0]
        store.set(f"met {rank}", "")
        store.wait([f"met {other}" for other in range(world)], limit)
    except DistError as error:
        raise LostProcessError(
            f"the {world} processes of the run have not all come to {address}:{port} within "
            f"{seconds} seconds. Start every one of them, see that it reaches this address, or set "
            "trainer.rendezvous=<more seconds>."
        ) from error
    return store


class Meeting(ParallelStrategy):
    """A strategy of several processes that :func:`meet`.

    Args:
        seconds: how long each waits for the others.
        options: of the strategy.
    """

    def __init__(self, seconds: int, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds
        self.store: Store | None = None

    def setup_environment(self) -> None:
        """Meet, then do what the strategy does."""
        if self.store is None:
            self.set_world_ranks()  # type: ignore[attr-defined]  # both strategies have it
            assert self.cluster_environment is not None
            self.store = meet(self.cluster_environment, self.seconds)
        super().setup_environment()


class DDP(Meeting, DDPStrategy):
    """Every process has the whole model."""


class FSDP(Meeting, ModelParallelStrategy):
    """Every process has a part of every matrix."""
