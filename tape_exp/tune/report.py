"""What a search has found so far: its trials, and the best of each model."""

import shlex
import sys
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from tape_exp.settings.errors import warn
from tape_exp.settings.plugins import changed_sources
from tape_exp.tune.journal import STATES
from tape_exp.tune.trials import Trials


def print_report(trials: Trials) -> bool:
    """Print every trial and the best of each model; say whether trials failed."""
    search = trials.search
    shown: list[FrozenTrial] = []
    print(search.folder / "journal.log")
    for model in search.models:
        of_model = trials.of(model)[: search.trials]
        print_trials(trials, model, of_model)
        print_best(trials, model, of_model)
        shown += of_model
    warn_of_edits(trials, shown)
    ended = [trial for trial in shown if trial.state.is_finished()]
    left = search.trials * len(search.models) - len(ended)
    if left:
        print(f"trials left: {left}; the same command resumes the search.", file=sys.stderr)
    return any(trial.state == TrialState.FAIL for trial in ended)


def print_trials(trials: Trials, model: str, of_model: Sequence[FrozenTrial]) -> None:
    """Print a line for each trial of a model: number, state, score, values, and why it failed."""
    print(f"\n{model}: trial, state, {trials.search.metric}, values")
    for number, trial in enumerate(of_model, 1):
        score = f"{trial.value:.4g}" if trial.state == TrialState.COMPLETE else ""
        why = trial.user_attrs.get("why", "")
        values = trials.values_text(trial)
        print(f"{number:4} {STATES[trial.state]:9} {score:>9}  {values}  {why}".rstrip())


def print_best(trials: Trials, model: str, of_model: Sequence[FrozenTrial]) -> None:
    """Print the command that runs the best trial of a model again, with a seed that it did not
    have.
    """
    complete = [trial for trial in of_model if trial.state == TrialState.COMPLETE]
    if complete:
        search = trials.search
        overrides = search.overrides_of(model, trials.values(trials.best(model, complete)))
        overrides.append(f"seed={max(search.seeds) + 1}")
        print(f"Best of {model}: tape-exp train {shlex.join(overrides)}")


def warn_of_edits(trials: Trials, shown: Sequence[FrozenTrial]) -> None:
    """Warn where the code of an encoding or a task has changed since a trial ran."""
    files: set[str] = set()
    for trial in shown:
        files.update(changed_sources(trial.user_attrs.get("sources", {})))
    if files:
        warn(
            f"trials had another version of {' and '.join(sorted(files))}; remove "
            f"{trials.search.folder} and add rerun=true to search anew."
        )
