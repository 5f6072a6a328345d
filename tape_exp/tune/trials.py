"""The trials of a search, which any number of workers claim.

All workers share Optuna's journal. Each holds a file lock on the trial that it runs, so that a
trial whose worker was killed is recognised, and resumed by the next one.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from tape_exp.tune.journal import BUDGET, open_journal
from tape_exp.tune.search import Search

warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
STARTUP = 4  # trials of a model before TPE reads their scores, and before any is pruned


class Trials:
    """The trials of a search, an Optuna study for each model, in ``<folder>/journal.log``."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.locks = search.folder / "locks"
        search.folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(self.locks / "journal")
        self.storage = open_journal(search.folder)
        self.studies = {model: self._study(model) for model in search.models}

    def _study(self, model: str) -> optuna.Study:
        """Open the study of a model in the journal, or begin it."""
        minimised = self.search.metric.endswith(("loss", "perplexity"))
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self.search.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP)
        study = optuna.create_study(
            study_name=model,
            storage=self.storage,
            pruner=pruner,
            direction="minimize" if minimised else "maximize",
            load_if_exists=True,
        )
        if study.user_attrs.get(BUDGET) != self.search.trials:  # tape-exp status reads it
            study.set_user_attr(BUDGET, self.search.trials)
        return study

    def of(self, model: str) -> list[FrozenTrial]:
        """List a model's trials in order, without those that were killed before they had values."""
        trials = self.studies[model].get_trials(deepcopy=False)
        keys = self.search.space.keys()
        return [trial for trial in trials if trial.params.keys() == keys]

    # ---- claiming ----

    def claim(self) -> tuple[Trial, FileLock] | None:
        """Claim a trial whose worker is gone, or a new one of the model with the fewest, by its
        lock; None when every model has its budget.
        """
        with self.lock:
            return self._claim_abandoned() or self._claim_new()

    def _claim_abandoned(self) -> tuple[Trial, FileLock] | None:
        """Claim a running trial whose lock nobody holds any more."""
        for model, study in self.studies.items():
            for running in self.of(model):
                if running.state != TrialState.RUNNING:
                    continue
                lock = self._acquire(model, running.number)
                if lock is not None:
                    study_id = self.storage.get_study_id_from_name(model)
                    trial_id = self.storage.get_trial_id_from_study_id_trial_number(
                        study_id, running.number
                    )
                    return Trial(study, trial_id), lock
        return None

    def _claim_new(self) -> tuple[Trial, FileLock] | None:
        """Sample a trial of the model with the fewest; the first has the values of the config."""
        model = min(self.studies, key=lambda name: len(self.of(name)))
        if len(self.of(model)) >= self.search.trials:
            return None
        study = self.studies[model]
        if not self.of(model):
            study.enqueue_trial(self.search.default_values(model))
        # Values depend on the trials before only: a search that was interrupted samples what it
        # would have sampled otherwise. Values that are tried twice run once.
        study.sampler = optuna.samplers.TPESampler(
            seed=len(study.get_trials(deepcopy=False)),
            n_startup_trials=STARTUP,
            multivariate=True,
        )
        trial = study.ask(self.search.distributions)
        lock = self._acquire(model, trial.number)
        return None if lock is None else (trial, lock)

    def _acquire(self, model: str, number: int) -> FileLock | None:
        """Acquire the lock of a trial; None where another worker has it."""
        lock = FileLock(self.locks / f"{model}-{number}", timeout=0)
        with suppress(Timeout):
            lock.acquire()
        return lock if lock.is_locked else None

    # ---- results ----

    def best(self, model: str, complete: Sequence[FrozenTrial]) -> FrozenTrial:
        """Return the best of a model's finished trials. Those beyond ``--trials``, which another
        command has made, do not count, so that all models have the same number of tries.
        """
        scores = [trial.value for trial in complete if trial.value is not None]
        highest = self.studies[model].direction == StudyDirection.MAXIMIZE
        best = max(scores) if highest else min(scores)
        return next(trial for trial in complete if trial.value == best)

    def values(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        """Return the values of a trial, real numbers with the four digits that one would write."""
        values = {}
        for key, distribution in self.search.distributions.items():
            value = trial.params[key]
            if isinstance(distribution, FloatDistribution):
                value = float(f"{value:.4g}")
            values[key] = value
        return values

    def values_text(self, trial: Trial | FrozenTrial) -> str:
        """Write the values of a trial: ``task.optim.lr=0.003 task.optim.warmup=0.1``."""
        return " ".join(f"{key}={value}" for key, value in self.values(trial).items())
