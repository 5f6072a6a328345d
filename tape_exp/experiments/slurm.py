"""Runs as job arrays of SLURM: which are submitted, behind which jobs, and in which folder.

The script, the list of runs and their logs are in ``<runs>/.sweeps/<name>/``, where the name is a
function of the runs and of the place. Only the runs that are neither finished nor in the queue are
submitted, whatever words name them; they resume from their last checkpoints.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree, which

from filelock import FileLock

from tape_exp.experiments import cluster
from tape_exp.experiments.job_script import BODY, job_script, print_defaults, script_head
from tape_exp.experiments.queue import (
    ArrayTask,
    Submissions,
    output_of,
    queue_to_submit,
    tasks_in_queue,
)
from tape_exp.experiments.run_spec import RunSpec, write_specs
from tape_exp.experiments.snapshot import (
    LOCK_SECONDS,
    check_committed,
    copy_of_commit,
    snapshot,
)
from tape_exp.machine.files import short_hash, write_atomically
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT

# ---- runs, as the user names them ----


def submit_runs(
    specs: Sequence[RunSpec],
    command: Sequence[str],
    cap: int,
    after: Sequence[str] = (),
    dirty: bool = False,
) -> list[str]:
    """Submit the runs that are neither finished nor in the queue, and print how to watch them.

    Args:
        specs: the runs, each with its folder as far as that is known; those that begin from others
            come later.
        command: ``["sweep", "model=rope"]``; ``slurm.<option>=<value>`` in it goes to sbatch.
        cap: how many run at once.
        after: ids of jobs that must have ended before the first of these begins.
        dirty: run the files that are there, and no copy of the last commit.

    Returns:
        The ids of the arrays.
    """
    sweep = sweep_folder(specs)
    sweeps = sweep.parent
    sweeps.mkdir(parents=True, exist_ok=True)
    with FileLock(sweeps / ".lock", timeout=LOCK_SECONDS):  # a second command finds a full queue
        in_queue = Submissions(sweeps, queue_to_submit()).in_queue(specs)
        arrays = arrays_of(specs, in_queue, after)
        print(summary(specs, in_queue, arrays))
        if not arrays:
            return []
        code = ROOT if dirty else snapshot(sweeps / "code")
        is_new = not sweep.exists()
        script = write_sweep(specs, sweep, script_head(specs, command, sweep, code))
        ids: list[str] = []
        try:
            for array in arrays:
                ids.append(submit_array(array, script, cap, before=ids[-1:]))
        except ConfigError:
            if is_new and not ids:  # nothing of it was submitted
                rmtree(sweep)
            raise
    print_defaults(command)
    print_how_to_watch(sweep, command, ids)
    return ids


def show_runs(
    specs: Sequence[RunSpec],
    command: Sequence[str],
    cap: int,
    after: Sequence[str] = (),
    dirty: bool = False,
) -> None:
    """Print what :func:`submit_runs` would submit, in order: the script, which is one for all
    arrays, and each array with its runs. Nothing is written.
    """
    sweep = sweep_folder(specs)
    in_queue: dict[int, ArrayTask] = {}
    notes = []
    try:
        in_queue = Submissions(sweep.parent, tasks_in_queue()).in_queue(specs)
    except ConfigError as error:
        notes.append(f"Without SLURM's queue: {error}")
    arrays = arrays_of(specs, in_queue, after)
    if arrays:
        code = ROOT if dirty else copy_of_commit(sweep.parent / "code")
        print(script_head(specs, command, sweep, code))
        print(f"# then {' and '.join(f'launch/{name}' for name in BODY)}\n")
    for array in arrays:
        print("# sbatch", *array.options(cap, before=["<the array above>"]))
        for index in array.indices:
            print(f"#   {index}: {specs[index].line}")
    try:
        if arrays and not dirty:
            check_committed()
    except ConfigError as error:
        notes.append(f"It will be refused: {error}")
    print("#", summary(specs, in_queue, arrays), *notes)


# ---- what is submitted ----


@dataclass(frozen=True)
class JobArray:
    """A job array that is to be submitted: runs of one level, which can run at once.

    Args:
        indices: the places of its runs in the list of the sweep, which are those of its tasks.
        dependencies: ids of jobs that must have ended before it begins.
        follows: whether the array that is submitted before it must have ended too.
    """

    indices: Sequence[int]
    dependencies: Sequence[str]
    follows: bool

    def options(self, cap: int, before: Sequence[str]) -> list[str]:
        """List the options of sbatch.

        Args:
            cap: how many of its tasks run at once.
            before: the id of the array before it, if there is one.

        >>> JobArray([0, 2], ["7"], follows=True).options(16, ["41"])
        ['--array=0,2%16', '--dependency=afterany:7:41']
        """
        options = [f"--array={','.join(map(str, self.indices))}%{cap}"]
        dependencies = [*self.dependencies]
        if self.follows:
            dependencies += before
        if dependencies:
            options.append(f"--dependency=afterany:{':'.join(dependencies)}")
        return options


def arrays_of(
    specs: Sequence[RunSpec], in_queue: Mapping[int, ArrayTask], after: Sequence[str]
) -> list[JobArray]:
    """Make an array for each level of the runs that are neither done nor in the queue.

    An array begins when those of the lower levels have ended (``afterany``: one failed run must not
    cost the others, and a run whose base failed says so itself).
    """
    to_submit = [i for i, spec in enumerate(specs) if i not in in_queue and spec.to_run]
    arrays: list[JobArray] = []
    for level in sorted({specs[i].level for i in to_submit}):
        below = {task.job_id for i, task in in_queue.items() if specs[i].level < level}
        indices = [i for i in to_submit if specs[i].level == level]
        arrays.append(JobArray(indices, [*after, *sorted(below)], follows=bool(arrays)))
    return arrays


def summary(
    specs: Sequence[RunSpec], in_queue: Mapping[int, ArrayTask], arrays: Sequence[JobArray]
) -> str:
    """Say how many runs are done, in the queue and to be submitted."""
    to_submit = sum(len(array.indices) for array in arrays)
    done = len(specs) - to_submit - len(in_queue)
    return f"{len(specs)} runs: {done} done, {len(in_queue)} in the queue, {to_submit} to submit."


def sweep_folder(specs: Sequence[RunSpec]) -> Path:
    """Find ``<runs>/.sweeps/<name>``: the name is a function of the runs and of this place."""
    sweeps = Path(specs[0].config.runs).expanduser().resolve() / ".sweeps"
    text = "\n".join([str(sweeps), *(spec.line for spec in specs)])
    return sweeps / short_hash([text])[:10]


def write_sweep(specs: Sequence[RunSpec], sweep: Path, head: str) -> Path:
    """Write the list of the runs and the script of their jobs; return the path of the script."""
    (sweep / "logs").mkdir(parents=True, exist_ok=True)
    write_specs(specs, sweep)
    script = sweep / "script.sh"
    write_atomically(script, job_script(head))
    return script


def submit_array(array: JobArray, script: Path, cap: int, before: Sequence[str]) -> str:
    """Submit an array, print that, and return its id."""
    options = array.options(cap, before)
    job_id = sbatch([*options, str(script)])
    print(f"Submitted job {job_id} ({' '.join(options)}).")
    return job_id


def print_how_to_watch(sweep: Path, command: Sequence[str], ids: Sequence[str]) -> None:
    """Print the commands that show the state of a sweep and cancel it, and where its logs are."""
    runs = sweep.parents[1]
    status = ["tape-exp", "status"]
    if command[0] == "sweep":
        status += command[1:]
    elif runs != Path("runs").resolve():
        status += ["--runs", str(runs)]
    print(f"Watch:  watch -n 30 {shlex.quote(shlex.join(status))}\nLogs:   {sweep}/logs")
    print("Cancel: scancel", *ids)


# ---- workers, each of which gives the same command ----


def submit_workers(
    count: int,
    spec: RunSpec,
    command: Sequence[str],
    folder: Path,
    name: str,
    dirty: bool = False,
) -> str:
    """Submit an array of workers that all do ``tape-exp <command>``; return the id of the array.

    Args:
        count: of the workers.
        spec: a run like theirs, whose devices they take.
        command: ``["tune", "model=rope"]``, without ``--slurm``.
        folder: of the script, the list of the workers and their logs.
        name: of the job, behind ``tape_exp-``.
        dirty: run the files that are there, and no copy of the last commit.
    """
    require_sbatch()
    module, *arguments = command
    code = ROOT if dirty else snapshot(sweep_folder([spec]).parent / "code")
    own = [argument for argument in arguments if not argument.startswith("slurm.")]
    workers = [replace(spec, overrides=own) for _ in range(count)]
    head = script_head(workers, command, folder, code, f"tape_exp.{module}", name)
    script = write_sweep(workers, folder, head)
    job_id = sbatch([f"--array=0-{count - 1}", str(script)])
    print(f"Submitted job {job_id}: {count} workers.")
    print(f"Logs:   {folder}/logs\nCancel: scancel {job_id}")
    return job_id


# ---- sbatch ----


def require_sbatch() -> None:
    """Raise :class:`ConfigError` on a machine that cannot submit."""
    if which("sbatch") is None:
        raise ConfigError("this machine has no sbatch: give the same command on the cluster.")


def sbatch(arguments: Sequence[str]) -> str:
    """Submit a job and return its id."""
    require_sbatch()
    try:
        printed = output_of("sbatch", "--parsable", *arguments)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Its options are those of slurm.<option>= and of {cluster.CLUSTER}."
        ) from error
    return printed.strip().splitlines()[-1].split(";")[0]  # <id>;<cluster>
