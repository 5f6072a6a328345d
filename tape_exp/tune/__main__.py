"""``tape-exp tune``: search learning rates and other keys, with equal budgets for some models."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_exp.drawing.figures import redraw
from tape_exp.machine.files import write_atomically
from tape_exp.machine.preemption import REQUEUE, SIGNALS
from tape_exp.paper import searches, tables
from tape_exp.paper.runner import time_limit
from tape_exp.runs.record import circumstances
from tape_exp.settings.arguments import Parser, command, log_plainly, positive, require_writable
from tape_exp.settings.errors import ConfigError, printable
from tape_exp.settings.redaction import shown
from tape_exp.settings.targets import refuse_secrets

if TYPE_CHECKING:
    from tape_exp.tune.journal import Journal
    from tape_exp.tune.plan import Search


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Mistakes are one sentence and status 2, failed trials status 1, time that ran out is 85."""
    given = _arguments(arguments)
    if find_spec("optuna") is None:
        raise ConfigError("tape-exp tune needs Optuna; install it, as pip install optuna does.")
    from tape_exp.tune import agent, slurm
    from tape_exp.tune.journal import Journal
    from tape_exp.tune.plan import LAUNCHER, requested

    log_plainly()
    refuse_secrets(given.words)
    search = requested(given.words)
    search.check()
    if not given.slurm and (idle := [w for w in given.words if w.startswith(LAUNCHER)]):
        raise ConfigError(f"{idle[0]} has no effect without --slurm.")
    if given.wandb:
        print(agent.sweep_yaml(search), end="")
        return 0
    folder = search.folder()
    if given.slurm:
        slurm.submit_workers(search, given.words, given.slurm, folder, given.dry_run)
        return 0
    journal = Journal(search, folder)
    if given.worker:
        _leave_with(given.worker)
    if given.record:
        require_writable("--record", searches.FOLDER)
    try:
        status = _work(search, journal, given)
    except json.JSONDecodeError as error:  # while it worked, another wrote half a line
        Journal(search, folder)  # which names the line, if it still is there
        raise ConfigError(f"{folder}/journal.log was damaged: give the command again.") from error
    if given.worker is not None:
        return status
    failed = _show(search, journal, folder, given.record)
    if left := journal.left():
        print(f"trials left: {left}; the same command goes on.", file=sys.stderr)
        return REQUEUE
    return 1 if failed else status


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape_exp.tune",
        description="Search keys of the config with Optuna, on validation only: so many trials for "
        "each model. The same command goes on after a kill, and given several times at once it is "
        "several workers of one search.",
        epilog="Example: tape-exp tune model=rope,tape task=arithmetic space=rates trials=12",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="model= | task= | space= | trials= | seeds= | metric= | pruner= | key=value",
    )
    parser.add_argument(
        "--cores", type=positive(int), help="workers on this machine, one thread each (default: 1)"
    )
    parser.add_argument("--minutes", type=positive(float), help="then save and exit with status 85")
    parser.add_argument(
        "--slurm", type=positive(int), metavar="N", help="submit N workers as one SLURM array"
    )
    parser.add_argument("--dry-run", action="store_true", help="of --slurm: print the script")
    parser.add_argument("--wandb", action="store_true", help="print a sweep for `wandb sweep`")
    parser.add_argument(
        "--record", action="store_true", help="write results/searches/ too, for make report"
    )
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # 0: of SLURM
    given = parser.parse_intermixed_args(arguments)
    if given.dry_run and not given.slurm:
        parser.error("--dry-run goes with --slurm")
    if given.slurm and (given.cores or given.minutes or given.record):
        parser.error("--slurm goes without --cores, --minutes and --record")
    if given.wandb and (given.slurm or given.cores or given.minutes or given.record):
        parser.error("--wandb only prints a sweep: it goes without the other options")
    return given


def _work(search: "Search", journal: "Journal", given: argparse.Namespace) -> int:
    """Run trials here, or in so many processes; status 85 where the time was over first."""
    if given.cores is not None and given.cores > 1 and given.worker is None:
        return _in_processes(given)
    from tape_exp.tune.worker import work

    ended = False
    with time_limit(given.minutes):  # which ends quietly when the time is over
        work(search, journal)
        ended = True
    return 0 if ended else REQUEUE


def _in_processes(given: argparse.Namespace) -> int:
    """Workers of this command, which save and leave when this one is told to."""
    words = [*given.words, f"--worker={os.getpid()}"]
    if given.minutes:
        words.append(f"--minutes={given.minutes}")
    program = [sys.executable, "-m", "tape_exp.tune", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen(program, env=environment) for _ in range(given.cores)]

    def leave(number: int, _: Any) -> None:
        for worker in workers:
            worker.send_signal(number)

    before = {number: signal.signal(number, leave) for number in SIGNALS}
    try:
        ended = [worker.wait() for worker in workers]
    except KeyboardInterrupt:  # the terminal told the workers too
        ended = [worker.wait() for worker in workers]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return int(any(status not in (0, REQUEUE) for status in ended))


def _leave_with(parent: int) -> None:
    """Save and leave as soon as the process that started this worker is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=watch, daemon=True).start()


def _show(search: "Search", journal: "Journal", folder: Path, record: bool) -> bool:
    """Write and print what the search has found so far; whether trials failed."""
    found = {
        "search": search.name,
        "command": shlex.join(["tape-exp", "tune", *_words(search)]),
        "task": search.task,
        "scale": search.scale,
        "space": search.space,
        "overrides": _portable(search.overrides),
        "seeds": list(search.seeds),
        "metric": search.metric,
        "minimises": search.minimises,
        "pruner": search.pruner,
        "trials": search.trials,
        **circumstances(),
        "models": journal.as_records(),
    }
    if record:
        searches.require_no_loss(found)
    for place in [folder, *([searches.FOLDER] if record else [])]:
        stem = place / ("search" if place == folder else search.name)
        write_atomically(stem.with_suffix(".json"), json.dumps(found, indent=1) + "\n")
        paths = tables.write(stem, searches.table(found))
        if any(searches.best_of(found, model) for model in found["models"]):
            paths.extend(redraw(searches.figure(found), stem.with_suffix(".png")))
        for path in paths:
            print(path)
    print(f"\n{tables.markdown(searches.table(found))}")
    for model in search.models:
        if best := searches.best_of(found, model):
            fresh = f"seed={max(search.seeds) + 1}"
            words = shlex.join([*search.words(model, best["values"]), fresh])
            print(f"Best of {model}: tape-exp train {printable(words)}")
    offline = f"{search.task}/{search.scale}/*/*/wandb/offline-run-*"
    if any(folder.parents[1].glob(offline)):
        print(f"W&B was offline; to upload the runs: wandb sync {folder.parents[1] / offline}")
    failed = [(m, t) for m in search.models for t in found["models"][m] if t["state"] == "failed"]
    for model, trial in failed:
        told = f"{model}, trial {trial['number'] + 1}: {trial.get('why', 'unknown')}"
        print(f"failed: {shown(told)}", file=sys.stderr)
    return bool(failed)


def _words(search: "Search") -> list[str]:
    return [
        f"model={','.join(search.models)}",
        f"task={search.task}",
        f"scale={search.scale}",
        *(f"{key}={text}" for key, text in search.space.items()),
        *_portable(search.overrides),
        f"seeds={','.join(map(str, search.seeds))}",
        f"trials={search.trials}",
        f"metric={search.metric}",
        f"pruner={search.pruner}",
    ]


def _portable(words: Sequence[str]) -> list[str]:
    """Overrides without the folders of this machine, which a record does not name; other paths are
    cut to their last name.
    """
    kept = [word for word in words if not word.lstrip("+").startswith(("runs=", "cache="))]
    return [re.sub(r"=[~/].*/(?=[^/])", "=", word) for word in kept]


if __name__ == "__main__":
    sys.exit(main())
