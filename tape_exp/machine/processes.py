"""The processes of a run: which one writes, who takes which items, and sums over all of them.

torch is imported where it is used, so that commands that only read records start quickly.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
# What launchers tell each process that they start.
LAUNCHERS = ["RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
LAUNCHERS += ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"]
SHELLS = ("bash", "interactive")  # names of jobs in which Lightning does not look for tasks of srun
OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
OF_LIGHTNING = "PL_"  # PL_TRAINER_LIMIT_VAL_BATCHES is an argument of every Trainer, say
HELPS = "TAPE_EXP_HELPS"  # the hash of the run for which Lightning has started a further process


@dataclass(frozen=True)
class Process:
    """A process of a run, among all its processes."""

    rank: int = 0
    world: int = 1
    per_node: int = 1
    launcher: str = ""  # torchrun or SLURM; else nobody, or the process of rank 0 of the node


_this = Process()  # outside of runs every process is its own
_under_agent = itertools.count()  # runs of this process so far that met by torchrun's store


def this_process() -> Process:
    """Return which process of the present run this is."""
    return _this


def first_process() -> bool:
    """Say whether this is the process that writes: of several, the one of rank 0."""
    return _this.rank == 0


def read_process(devices: int, nodes: int, environment: Mapping[str, str]) -> Process:
    """Find which process of a run on so many devices of so many nodes this is. A run on one device
    has one process, whatever its launcher has started besides.

    Raises:
        ValueError: the environment tells of another number of processes.
    """
    world = devices * nodes
    if world == 1:
        return Process()
    number = partial(_number, environment)
    tasks = number("SLURM_NTASKS", 1)
    interactive = environment.get("SLURM_JOB_NAME") in SHELLS
    by_mpi = next((name for name in OF_MPI if number(name, 1) > 1), None)
    expected: dict[str, int]  # variables of the environment, by this process's place in the run
    if "TORCHELASTIC_RUN_ID" in environment:
        process = Process(number("RANK", 0), world, devices, "torchrun")
        expected = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": devices}
    elif tasks > 1 and not interactive:
        if "SLURM_STEP_ID" not in environment:
            raise ValueError(
                f"the job has {tasks} tasks, and srun has not started this command, which would "
                "wait for the others: put srun in front of it."
            )
        process = Process(number("SLURM_PROCID", 0), world, devices, "SLURM")
        expected = {"SLURM_NTASKS": world, "SLURM_NNODES": nodes, "SLURM_NTASKS_PER_NODE": devices}
    elif by_mpi and "LOCAL_RANK" not in environment:
        raise ValueError(
            f"mpirun has started {environment[by_mpi]} processes ({by_mpi}), which are not told of "
            "one another: start them by torchrun or srun."
        )
    else:
        node = number("NODE_RANK", number("GROUP_RANK", 0))
        process = Process(node * devices + number("LOCAL_RANK", 0), world, devices)
        expected = {"WORLD_SIZE": world, "RANK": process.rank}
    for name, right in expected.items():
        if number(name, right) != right:
            raise ValueError(
                f"{name}={environment[name]} in the environment does not fit "
                f"trainer.devices={devices} and trainer.nodes={nodes}, which make it {right}: set "
                f"both to what was started, or start {world} processes, {devices} on each node."
            )
    return process


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Read a whole number from a variable of the environment."""
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"{name}={text} in the environment is no number: set or unset it.")
    return int(text)


@contextmanager
def part_of_run(process: Process, run: str) -> Iterator[None]:
    """Be this process of the run with this hash, and leave nothing of it: the environment, torch's
    group of processes and its threads are as before. One that another process has started for this
    run alone ends with it.
    """
    import torch
    from lightning.fabric.utilities import rank_zero

    lightning: Any = rank_zero.rank_zero_only  # whose rank is read from the environment once
    global _this
    before = _this
    environment = dict(os.environ)
    threads = torch.get_num_threads()
    grouped = torch.distributed.is_initialized()  # by a loop of the user's own
    _this = process
    lightning.rank = process.rank
    try:
        _prepare_environment(run)
        yield
    finally:
        if torch.distributed.is_initialized() and not grouped:
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
        lightning.rank = before.rank
        _this = before
    if environment.get(HELPS) == run:
        raise SystemExit(0)


def _prepare_environment(run: str) -> None:
    """Set what Lightning, torch and the processes of further devices read from the environment, and
    remove what would change a run besides its config.
    """
    os.environ[HELPS] = run
    for variable in [name for name in os.environ if name.startswith(OF_LIGHTNING)]:
        del os.environ[variable]
    if _this.world == 1:
        for variable in LAUNCHERS:
            os.environ.pop(variable, None)
    if _this.launcher == "SLURM":
        os.environ["SLURM_NTASKS_PER_NODE"] = str(_this.per_node)  # srun may not say it
    if _this.launcher == "torchrun" and "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        number = next(_under_agent)
        if number > 0:  # the first run meets at torchrun's own port
            os.environ["MASTER_PORT"] = _agreed_port(number)
            del os.environ["TORCHELASTIC_USE_AGENT_STORE"]


def _agreed_port(number: int) -> str:
    """Agree on a free port of the first process for run ``number``. The store of torchrun holds
    addresses of the run before, and only says here where the processes meet instead.
    """
    from lightning.fabric.plugins.environments.lightning import find_free_network_port
    from torch.distributed import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if first_process():
        store.set(f"tape_exp/{number}", str(find_free_network_port()))
    return store.get(f"tape_exp/{number}").decode()


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process, and the number of processes."""
    import torch

    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def share(items: Sequence[Item]) -> list[tuple[Item, bool]]:
    """Return this process's part of ``items``, and whether each counts.

    All processes get equally many, since a sharded model computes only where all of them do: the
    last item is repeated where they do not divide, and its repetitions do not count.
    """
    rank, world = rank_and_world()
    indices = (first + rank for first in range(0, len(items), world))
    return [(items[min(index, len(items) - 1)], index < len(items)) for index in indices]


def gather(item: Item) -> list[Item]:
    """Return the item of every process, in their order."""
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
