"""A sign of life from every process of a run, so that one that hangs does not hold the others.

A process that has died is noticed by its parent, and the next collective fails without it. One that
is stopped, or whose machine cannot be reached any more, leaves all others waiting in a collective:
for the ten minutes of NCCL, or the thirty of gloo.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import timedelta

from lightning import Callback, LightningModule, Trainer
from torch.distributed import TCPStore

from tape_exp.machine.preemption import REQUEUE

INTERVAL = 1.0  # seconds between two beats
LEFT = "left"  # the count of a process that has left as it should


class Heartbeat(Callback):
    """Ends this process for a requeue when another has given no sign of life for ``seconds``.

    Every process counts upward in a store that the first one holds, and reads the others' counts.
    The main thread may be inside a collective that never returns, so the process ends without it:
    checkpoints and records are whole at any moment.

    It begins after the rendezvous of the processes, which has a limit of its own.

    Args:
        seconds: how long a process may be silent.
        lost: called with a sentence that names the silent processes, before this one ends.
    """

    def __init__(self, seconds: float, lost: Callable[[str], object]) -> None:
        self.patience = max(round(seconds / INTERVAL), 2)  # beats
        self.lost = lost
        self.stopped = threading.Event()
        self.store: TCPStore | None = None
        self.rounds = 0  # of talking with the store

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Begin once the processes have found one another; a single process has none to watch."""
        if trainer.world_size == 1 or self.store is not None:
            return
        self.trainer, self.rank, self.world = trainer, trainer.global_rank, trainer.world_size
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if self.rank == 0:
            self.store = self._connect(address, 0)
        port = trainer.strategy.broadcast(self.store.port if self.store else 0)
        self.store = self.store or self._connect(address, port)
        self.store.set(f"host {self.rank}", socket.gethostname())
        self.store.set(f"count {self.rank}", "0")
        trainer.strategy.barrier()
        self.hosts, self.counts = self._read("host"), self._read("count")
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Leave as a process should: the others then expect no further sign of life from it."""
        if self.store is None or self.stopped.is_set():
            return
        self.stopped.set()
        self.beating.join(3)
        if self.beating.is_alive():  # it is blocked, since the first process cannot be reached
            return
        with suppress(RuntimeError):  # the first process may have gone already
            self.store.set(f"count {self.rank}", LEFT)
            self.store.set(f"left {self.rank}", LEFT)
            if self.rank == 0:  # the others still read the store that it holds
                everyone = [f"left {rank}" for rank in range(self.world)]
                self.store.wait(everyone, timedelta(seconds=5))

    def _connect(self, address: str, port: int) -> TCPStore:
        timeout = timedelta(seconds=self.patience * INTERVAL)
        first = self.rank == 0
        return TCPStore(address, port, None, first, timeout, wait_for_workers=False)

    def _read(self, what: str) -> list[str]:
        assert self.store is not None
        keys = [f"{what} {rank}" for rank in range(self.world)]
        return [value.decode() for value in self.store.multi_get(keys)]

    def _beat(self) -> None:
        """Count, and read the others' counts.

        The store may fail or block for good where the first process cannot be reached: ``rounds``
        then stays as it is, which :meth:`_watch` sees.
        """
        assert self.store is not None
        while not self.stopped.wait(INTERVAL):
            try:
                self.store.set(f"count {self.rank}", str(self.rounds + 1))
                self.counts = self._read("count")
            except RuntimeError:
                return
            self.rounds += 1

    def _watch(self) -> None:
        """End this process when a count, or its own talk with the store, has stood still."""
        processes, store = Silence(self.patience), Silence(self.patience)
        while not self.stopped.wait(INTERVAL):
            silent = [rank for rank in processes.look(self.counts) if self.counts[rank] != LEFT]
            if store.look([self.rounds]):
                silent = [] if self.counts[0] == LEFT else [0]
            if silent := [rank for rank in silent if rank != self.rank]:
                self._end(silent)

    def _end(self, ranks: Sequence[int]) -> None:
        names = " and ".join(
            f"rank {rank} of {self.world} (on {self.hosts[rank]})" for rank in ranks
        )
        sentence = (
            f"{names} has given no sign of life for {self.patience * INTERVAL:.0f} seconds: it "
            "hangs, or its machine cannot be reached."
        )
        with suppress(OSError):
            self.lost(sentence)
        resume = "The same command goes on from the last checkpoint."
        print(f"error: {sentence} {resume}", file=sys.stderr, flush=True)
        for child in getattr(self.trainer.strategy.launcher, "procs", []):
            child.kill()
        os._exit(REQUEUE)


class Silence:
    """Finds values that have stayed the same for ``patience`` looks in a row.

    It counts looks and not seconds: after a job was suspended as a whole, nobody counts as silent.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.seen: list[Hashable] = []
        self.unchanged: list[int] = []

    def look(self, values: Sequence[Hashable]) -> list[int]:
        """The numbers of the values that have not changed for too long."""
        if not self.seen:
            self.seen, self.unchanged = list(values), [0] * len(values)
            return []
        for number, value in enumerate(values):
            same = value == self.seen[number]
            self.unchanged[number] = self.unchanged[number] + 1 if same else 0
        self.seen = list(values)
        return [number for number, looks in enumerate(self.unchanged) if looks >= self.patience]
