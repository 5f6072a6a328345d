"""Several workers of a search on this machine, each in a process of its own with one thread."""

import multiprocessing
import os
import sys

from tape_exp.machine.preemption import REQUEUE, leave_with_parent, with_parent
from tape_exp.settings.commands import command
from tape_exp.tune.search import Search
from tape_exp.tune.trials import Trials
from tape_exp.tune.work import work


def work_in_processes(search: Search, cores: int, minutes: float | None) -> int:
    """Run so many workers until the search has ended, and return the highest of their statuses.

    Ctrl-C reaches them too, and so does the end of this process: they save and leave.
    """
    os.environ.update(with_parent(), OMP_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(search, minutes)) for _ in range(cores)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    return max(abs(process.exitcode or 0) for process in workers)


def worker(search: Search, minutes: float | None) -> None:
    """Work on a search until it has ended, and leave with status 85 where there was no time."""
    leave_with_parent()
    sys.exit(_work(search, minutes))


@command
def _work(search: Search, minutes: float | None) -> int:
    return 0 if work(Trials(search), minutes) else REQUEUE
