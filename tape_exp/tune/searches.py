"""What has become of searches, as ``tape-exp status`` says it. Optuna is imported only where there
are some.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments.queue import ArrayTask


def searches_in(runs: Path) -> list[Path]:
    """List the folders of the searches in a folder of runs, the latest last."""
    journals = sorted(runs.glob(".tune/*/journal.log"), key=lambda file: file.stat().st_mtime)
    return [journal.parent for journal in journals]


def print_search(search: Path, queue: Sequence[ArrayTask]) -> None:
    """Print the trials of a search by their state, and its workers that are in the queue."""
    workers = [task for task in queue if task.sweep == search.name]
    print(f"search {search.name}: {trials_of(search)}{workers_of(workers)}")


def trials_of(search: Path) -> str:
    """Count the trials of a search by their state, over all models, and those that are missing.

    Trials that are not known to have ended are missing, since their worker may be gone.
    """
    import optuna

    from tape_exp.tune.journal import BUDGET, STATES, open_journal

    counts = Counter({"finished": 0})
    missing = 0
    storage = open_journal(search)
    for name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        trials = study.get_trials(deepcopy=False)
        ended = [trial for trial in trials if trial.state.is_finished()]
        counts.update(STATES[trial.state] for trial in ended)
        missing += max(0, study.user_attrs.get(BUDGET, 0) - len(ended))
    by_state = [f"{number} {state}" for state, number in counts.items()]
    return ", ".join([*by_state, f"{missing} missing"])


def workers_of(tasks: Sequence[ArrayTask]) -> str:
    """Count the workers of a search that are in SLURM's queue; empty without one.

    >>> tasks = [ArrayTask("a", 0, "RUNNING", "7"), ArrayTask("a", 1, "PENDING", "7")]
    >>> workers_of(tasks)
    '; workers in the queue: 1 running, 1 pending'
    """
    counts = Counter("pending" if task.pending else "running" for task in tasks)
    by_state = ", ".join(f"{number} {state}" for state, number in counts.items())
    return f"; workers in the queue: {by_state}" if by_state else ""
