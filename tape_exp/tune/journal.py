"""The trials of a search in one file, which any number of workers on any machines share.

Optuna's journal holds them. A worker keeps a lock on the trial that it runs, so that another can
tell a trial that is under way from one whose worker was killed, and takes over the latter: its run
then goes on from its last checkpoint.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from filelock import FileLock, Timeout
from omegaconf import OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tape_exp.settings.errors import ConfigError
from tape_exp.tune.plan import Search
from tape_exp.tune.space import distribution_of

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message=".*already reported")  # of a trial that went on
STARTUP = 4  # trials of a model before others are sampled from what they gave, or given up


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
        try:
            (folder / "locks").mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / "locks" / "journal")
            with self._lock:
                self._storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{folder} cannot be used ({type(error).__name__}: {error}); restore or remove it, "
                "or set runs=<another folder>."
            ) from error

    def study(self, model: str) -> optuna.Study:
        """The study of a model."""
        if model not in self._studies:
            self._studies[model] = optuna.create_study(
                study_name=model,
                storage=self._storage,
                direction="minimize" if self.search.minimises else "maximize",
                pruner=self._pruner(),
                load_if_exists=True,
            )
        return self._studies[model]

    def _pruner(self) -> optuna.pruners.BasePruner:
        if self.search.pruner == "none":
            return optuna.pruners.NopPruner()
        return optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_min_trials=STARTUP)

    def trials(self, model: str) -> list[FrozenTrial]:
        """All trials of a model, in their order."""
        return self.study(model).get_trials(deepcopy=False)

    def claim(self) -> Claimed | None:
        """A trial to run: one that a killed worker has left, or a new one of the model that has the
        fewest; None when every model has all of its trials.
        """
        with self._lock:
            for model in self.search.models:
                for frozen in self.trials(model):
                    if frozen.state == TrialState.RUNNING and (lock := self._held(model, frozen)):
                        trial = Trial(self.study(model), frozen._trial_id)
                        return self._claimed(model, trial, lock)
            begun = {model: self._begun(model) for model in self.search.models}
            model = min(begun, key=lambda name: begun[name])
            if begun[model] >= self.search.trials:
                return None
            trial = self._new(model, begun[model])
            lock = self._held(model, trial)
            assert lock is not None
            return self._claimed(model, trial, lock)

    def _begun(self, model: str) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self.trials(model))

    def _new(self, model: str, number: int) -> Trial:
        """The next trial. What it samples depends on its number and on the trials before it, so
        that a search that goes on after a kill, or with more workers, repeats nothing.
        """
        study = self.study(model)
        study.sampler = optuna.samplers.TPESampler(
            seed=number, n_startup_trials=STARTUP, multivariate=True
        )
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(self.configured(model))
        return study.ask()

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
        values = {key: trial._suggest(key, one) for key, one in self._space.items()}
        return Claimed(model, trial, values, lock)

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
        with self._lock:
            study = self.study(claimed.model)
            values = None if score is None else [score]
            study.tell(claimed.trial, values, state, skip_if_finished=True)
        claimed.lock.release()

    def left(self) -> int:
        """How many trials have not ended."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        missing = 0
        for model in self.search.models:
            done = sum(trial.state in ended for trial in self.trials(model))
            missing += max(self.search.trials - done, 0)
        return missing

    def as_records(self) -> dict[str, Sequence[dict[str, Any]]]:
        """The trials of every model that was ever in the search, as JSON has them."""
        known = (one.study_name for one in optuna.get_all_study_summaries(self._storage))
        models = dict.fromkeys([*self.search.models, *sorted(known)])
        return {model: [_as_record(trial) for trial in self.trials(model)] for model in models}


def _as_record(trial: FrozenTrial) -> dict[str, Any]:
    states = {"COMPLETE": "finished", "PRUNED": "given up", "FAIL": "failed"}
    return {
        "number": trial.number,
        "state": states.get(trial.state.name, "under way"),
        "values": trial.params,
        "score": trial.value if trial.state == TrialState.COMPLETE else None,
        "steps": sorted(trial.intermediate_values),
        "scores": [trial.intermediate_values[step] for step in sorted(trial.intermediate_values)],
        **trial.user_attrs,
    }
