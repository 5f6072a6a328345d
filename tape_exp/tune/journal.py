"""The trials of a search in one file, which any number of workers on any machines share.

Optuna's journal holds them. A worker keeps a lock on the trial that it runs, so that another can
tell a trial that is under way from one whose worker was killed, and takes over the latter: its run
then goes on from its last checkpoint.
"""

import json
import math
import os
import re
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import optuna
from filelock import FileLock, Timeout
from omegaconf import OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from tape_exp.machine.preemption import signals_held_back
from tape_exp.settings.errors import ConfigError
from tape_exp.tune.plan import Search
from tape_exp.tune.space import combinations, distribution_of, rounded

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message=".*already reported")  # of a trial that went on
STARTUP = 4  # trials of a model before others are sampled from what they gave, or given up
TRIES = 20  # samples in a row that were tried before
REPEATS = "repeats"  # attribute of a trial that was tried before


class Claimed(NamedTuple):
    """A trial, and the lock that says that this worker runs it."""

    model: str
    trial: Trial
    values: dict[str, Any]
    lock: FileLock


class Journal:
    """The studies of a search, one for each model, in ``<folder>/journal.log``.

    Raises:
        ConfigError: the folder cannot be written, or the journal is damaged.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        self.search, self.folder = search, folder
        self._studies: dict[str, optuna.Study] = {}
        self._space = {key: distribution_of(key, text) for key, text in search.space.items()}
        self._all = combinations(self._space)
        try:
            (folder / "locks").mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / "locks" / "journal")
            path = folder / "journal.log"
            with self._lock:
                cut_unfinished(path)
                self._storage = _replayed(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the search {folder} cannot be used: {error}; restore its journal.log, remove the "
                "folder to search anew, or set runs=<another folder>."
            ) from error

    def study(self, model: str) -> optuna.Study:
        """The study of a model."""
        if model not in self._studies:
            self._studies[model] = optuna.create_study(
                study_name=model,
                storage=self._storage,
                direction="minimize" if self.search.minimises else "maximize",
                load_if_exists=True,
            )
        return self._studies[model]

    def trials(self, model: str) -> list[FrozenTrial]:
        """All trials of a model, in their order, without those that only repeated another."""
        every = self.study(model).get_trials(deepcopy=False)
        return [trial for trial in every if REPEATS not in trial.user_attrs]

    def claim(self) -> Claimed | None:
        """A trial to run: one that a killed worker has left, or a new one of the model that has the
        fewest; None when every model has all of its trials.
        """
        with signals_held_back(), self._lock:
            for model in self.search.models:
                for frozen in self.trials(model):
                    if frozen.state == TrialState.RUNNING and (lock := self._held(model, frozen)):
                        trial = Trial(self.study(model), frozen._trial_id)
                        return self._claimed(model, trial, lock)
            begun = {model: self._begun(model) for model in self.search.models}
            for model in sorted(begun, key=lambda name: begun[name]):
                if begun[model] < self.search.trials and (claimed := self._new(model)):
                    return claimed
            return None

    def _begun(self, model: str) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self.trials(model))

    def _new(self, model: str) -> Claimed | None:
        """The next trial. What it samples depends on its number and on the trials before it, so
        that a search that goes on after a kill, or with more workers, samples nothing anew. Values
        that were tried are sampled again; None where nothing else seems to be left.
        """
        study = self.study(model)
        tried = [self._tidy(trial.params) for trial in self.trials(model)]
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(self.configured(model))
        for _ in range(TRIES):
            study.sampler = optuna.samplers.TPESampler(
                seed=len(study.get_trials(deepcopy=False)),
                n_startup_trials=STARTUP,
                multivariate=True,
            )
            trial = study.ask()
            values = self._suggest(trial)
            if values not in tried and (lock := self._held(model, trial)):
                return Claimed(model, trial, values, lock)
            trial.set_user_attr(REPEATS, True)
            study.tell(trial, state=TrialState.FAIL)
            if self._all is not None:  # then the next one is any that was not tried
                left = [values for values in self._all if values not in tried]
                if not left:
                    return None
                study.enqueue_trial(Random(trial.number).choice(left))
        return None

    def configured(self, model: str) -> dict[str, Any]:
        """The values that the config has anyway, of the keys whose set holds them: the first trial
        of a model.
        """
        cfg = self.search.config(model, {}, self.search.seeds[0])
        found = {}
        for key, distribution in self._space.items():
            value = OmegaConf.select(cfg, key.lstrip("+"))
            try:
                if distribution._contains(distribution.to_internal_repr(value)):
                    found[key] = value
            except (ValueError, TypeError):
                continue
        return found

    def _claimed(self, model: str, trial: Trial, lock: FileLock) -> Claimed:
        return Claimed(model, trial, self._suggest(trial), lock)

    def _suggest(self, trial: Trial) -> dict[str, Any]:
        return self._tidy({key: trial._suggest(key, one) for key, one in self._space.items()})

    def _tidy(self, values: dict[str, Any]) -> dict[str, Any]:
        return {key: rounded(values[key], self._space[key]) for key in self._space if key in values}

    def behind(self, claimed: Claimed, step: int, score: float) -> float | None:
        """The median of the other trials at a step, if the score is worse than it, and if at least
        :data:`STARTUP` of them came so far.
        """
        if self.search.pruner == "none":
            return None
        others = [
            trial.intermediate_values[step]
            for trial in self.trials(claimed.model)
            if step in trial.intermediate_values and trial.number != claimed.trial.number
        ]
        if len(others) < STARTUP:
            return None
        middle = median(others)
        worse = score > middle if self.search.minimises else score < middle
        return middle if worse or not math.isfinite(score) else None

    def _held(self, model: str, trial: Trial | FrozenTrial) -> FileLock | None:
        """The lock of a trial, if no other worker has it."""
        lock = FileLock(self.folder / "locks" / f"{model}-{trial.number}", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return None
        return lock

    def tell(self, claimed: Claimed, score: float | None, state: TrialState) -> None:
        """How a trial ended."""
        with signals_held_back(), self._lock:
            study = self.study(claimed.model)
            values = None if score is None else [score]
            study.tell(claimed.trial, values, state, skip_if_finished=True)
        claimed.lock.release()

    def left(self) -> int:
        """How many trials have not ended."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        missing = 0
        for model in self.search.models:
            every = self.trials(model)
            done = sum(trial.state in ended for trial in every)
            most = len(every) if self._exhausted(model) else self.search.trials
            missing += max(min(self.search.trials, most) - done, 0)
        return missing

    def _exhausted(self, model: str) -> bool:
        """Whether every combination was tried, or the last samples were all tried before."""
        if self._all is not None:
            return len(self.trials(model)) >= len(self._all)
        last = self.study(model).get_trials(deepcopy=False)[-TRIES:]
        return sum(REPEATS in trial.user_attrs for trial in last) == TRIES

    def as_records(self) -> dict[str, Sequence[dict[str, Any]]]:
        """The trials of the search's models, as many of each as its budget, as JSON has them."""
        most = self.search.trials
        return {
            model: [self._as_record(i, trial) for i, trial in enumerate(self.trials(model)[:most])]
            for model in self.search.models
        }

    def _as_record(self, number: int, trial: FrozenTrial) -> dict[str, Any]:
        states = {"COMPLETE": "finished", "PRUNED": "given up", "FAIL": "failed"}
        steps = sorted(trial.intermediate_values)
        scores = [trial.intermediate_values[step] for step in steps]
        return {
            "number": number,
            "state": states.get(trial.state.name, "under way"),
            "values": self._tidy(trial.params),
            "score": trial.value if trial.state == TrialState.COMPLETE else None,
            "steps": steps,
            "scores": [score if math.isfinite(score) else None for score in scores],
            **trial.user_attrs,
        }


class _Counted(JournalFileBackend):
    """The file of a journal, which knows the line that was read last."""

    line = 0

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The entries from a line on, counted from 0."""
        entries = super().read_logs(log_number_from)
        for self.line, entry in enumerate(entries, log_number_from + 1):
            yield entry


def _replayed(path: Path) -> JournalStorage:
    """The studies of a journal. Raises :class:`ValueError` where a line is none of Optuna's."""
    backend = _Counted(str(path))
    try:
        return JournalStorage(backend)
    except OSError:
        raise
    except Exception as error:  # Optuna takes an entry for what it wrote itself
        raise ValueError(f"line {backend.line} of journal.log is damaged") from error


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and isinstance(entry.get("op_code"), int)


def _unfinished_part(line: bytes) -> int:
    """How many bytes come before the whole entry that a line ends with; 0: it has none."""
    places = [place.start() for place in re.finditer(rb"{", line)][1:100]
    return next((place for place in places if _is_entry(line[place:])), 0)


def cut_unfinished(path: Path) -> None:
    """Cut off the last line of a journal where a killed machine left it unfinished, and blank out
    such a line's beginning where another machine has written on behind it: all places stay the
    same, which other processes remember.

    Raises:
        ValueError: another line is damaged.
    """
    if not path.exists():
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        begin = 0
        for number, line in enumerate(whole.splitlines(keepends=True), 1):
            if not _is_entry(line):
                if not (half := _unfinished_part(line)):
                    raise ValueError(f"line {number} of journal.log is damaged")
                with path.open("r+b") as file:
                    file.seek(begin)
                    file.write(b" " * half)
            begin += len(line)
        if whole != content:
            os.truncate(path, len(whole))
    finally:
        lock.release()
