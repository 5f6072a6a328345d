"""``tape-exp tune``: search learning rates and other keys, with equal budgets for some models."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tape_exp.machine.preemption import REQUEUE, SIGNALS
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError

if TYPE_CHECKING:
    from tape_exp.tune.trials import Trials


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Search and print the result; status 1 where trials failed, 85 where there was no time."""
    parser = argparse.ArgumentParser(
        prog="tape-exp tune",
        description="Search keys of the config with Optuna, on validation only, with equally many "
        "trials for each model. The same command resumes after a kill, and given several times at "
        "once it is several workers of one search.",
        epilog="Example: tape-exp tune model=rope,tape task=arithmetic space=rates trials=12",
    )
    words = "model= | task= | space= | trials= | seeds= | metric= | pruner= | key=value"
    parser.add_argument("words", nargs="+", metavar=words)
    parser.add_argument("--cores", type=int, default=1, help="so many workers of one thread each")
    parser.add_argument("--minutes", type=float, help="then save, and exit with status 85")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args(arguments)
    if find_spec("optuna") is None:
        raise ConfigError('tape-exp tune needs Optuna: pip install "optuna>=5,<6".')
    from tape_exp.tune.search import search_from
    from tape_exp.tune.trials import Trials, work

    search = search_from(args.words)
    search.check()
    trials = Trials(search)
    if args.cores > 1:
        statuses = _fan_out(args)
    else:
        statuses = [0 if work(trials, args.minutes) else REQUEUE]
    failed = not args.worker and _show(trials)
    return REQUEUE if REQUEUE in statuses else int(failed or any(statuses))


def _fan_out(args: argparse.Namespace) -> list[int]:
    """The exit statuses of ``--cores`` workers, which leave when this process is told to."""
    program = [sys.executable, "-m", "tape_exp.tune", *args.words, "--worker"]
    program += [f"--minutes={args.minutes}"] if args.minutes else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen(program, env=environment) for _ in range(args.cores)]
    for number in SIGNALS:
        signal.signal(number, lambda *_: [*map(subprocess.Popen.terminate, workers)])
    return [worker.wait() for worker in workers]


def _show(trials: "Trials") -> bool:
    """Write and print what the search has found so far; whether trials failed."""
    from tape_exp.machine.files import write_atomically
    from tape_exp.runs.record import environment_info

    search, ended, failed = trials.search, 0, False
    models = {model: trials.records(model) for model in search.models}
    result = {"search": search.name, **asdict(search), **environment_info(), "models": models}
    path = search.folder / "search.json"
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    print(path)
    for model, records in models.items():
        print(f"\n{model}: trial, state, {search.metric}, values")
        for number, trial in enumerate(records, 1):
            score = "" if trial["score"] is None else f"{trial['score']:.4g}"
            values = " ".join(f"{key}={value}" for key, value in trial["values"].items())
            print(f"{number:4} {trial['state']:9} {score:>9}  {values} {trial.get('why', '')}")
            ended += trial["state"] != "under way"
            failed |= trial["state"] == "failed"
        if best := search.best_of(records):
            words = [*search.words(model, best["values"]), f"seed={max(search.seeds) + 1}"]
            print(f"Best of {model}: tape-exp train {shlex.join(words)}")
    if left := search.trials * len(models) - ended:
        print(f"trials left: {left}; the same command resumes the search.", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
