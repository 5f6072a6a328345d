"""The trials of a search: claimed, run and reported to Optuna by any number of workers.

All workers share Optuna's journal. Each holds a file lock on the trial that it runs, so that a
trial whose worker was killed is recognised, and resumed by the next one.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from filelock import FileLock, Timeout
from lightning import Callback, LightningModule, Trainer
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from tape_exp.experiments.local import time_limit
from tape_exp.machine.files import finish_last_line, read_jsonl
from tape_exp.machine.preemption import Preemption
from tape_exp.runs.directory import FolderError
from tape_exp.settings.errors import ConfigError, did_you_mean, warn
from tape_exp.settings.plugins import changed_sources
from tape_exp.settings.redact import redact
from tape_exp.training.faults import TrialPruned
from tape_exp.training.not_finite import NotFiniteError
from tape_exp.training.run import run
from tape_exp.tune.search import Search

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message=".*already reported")  # before the trial was resumed
STARTUP = 4  # trials of a model before TPE reads their scores, and before any is pruned
STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class MetricError(ConfigError):
    """Validation does not measure the metric of the search."""


class Journal(JournalFileBackend):
    """Optuna's journal, which goes on after a line that a full disk or a lost machine cut short."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append to whole lines; no other worker writes one meanwhile."""
        lock = JournalFileSymlinkLock(self._file_path)
        lock.acquire()
        try:
            finish_last_line(Path(self._file_path))
        finally:
            lock.release()
        super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        """Raise :class:`ConfigError` where a line in the middle is damaged."""
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            path = Path(self._file_path)
            number = next((n for n, value in read_jsonl(path) if value is None), None)
            raise ConfigError(
                f"{path}, line {number} is damaged: remove that line and the search goes on, or "
                "remove the file and it begins anew, with the runs that are there."
            ) from error


class Trials:
    """The trials of a search, an Optuna study for each model, in ``<folder>/journal.log``."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.locks = search.folder / "locks"
        search.folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(self.locks / "journal")
        self.storage = JournalStorage(Journal(str(search.folder / "journal.log")))
        self.studies = {model: self._study(model) for model in search.models}

    def _study(self, model: str) -> optuna.Study:
        """Open the study of a model in the journal, or begin it."""
        minimised = self.search.metric.endswith(("loss", "perplexity"))
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self.search.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP)
        return optuna.create_study(
            study_name=model,
            storage=self.storage,
            pruner=pruner,
            direction="minimize" if minimised else "maximize",
            load_if_exists=True,
        )

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
            study.enqueue_trial(self.search.configured(model))
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

    def report(self) -> bool:
        """Print what the search has found so far; say whether trials failed."""
        search = self.search
        trials: list[FrozenTrial] = []
        print(search.folder / "journal.log")
        for model in search.models:
            of_model = self.of(model)[: search.trials]
            self._print_trials(model, of_model)
            self._print_best(model, of_model)
            trials += of_model
        self._warn_of_edits(trials)
        ended = [trial for trial in trials if trial.state.is_finished()]
        left = search.trials * len(search.models) - len(ended)
        if left:
            print(f"trials left: {left}; the same command resumes the search.", file=sys.stderr)
        return any(trial.state == TrialState.FAIL for trial in ended)

    def _print_trials(self, model: str, trials: Sequence[FrozenTrial]) -> None:
        """Print a line for each trial: number, state, score, values, and why it failed."""
        print(f"\n{model}: trial, state, {self.search.metric}, values")
        for number, trial in enumerate(trials, 1):
            score = f"{trial.value:.4g}" if trial.state == TrialState.COMPLETE else ""
            why = trial.user_attrs.get("why", "")
            line = (
                f"{number:4} {STATES[trial.state]:9} {score:>9}  {self.values_text(trial)}  {why}"
            )
            print(line.rstrip())

    def _print_best(self, model: str, trials: Sequence[FrozenTrial]) -> None:
        """Print the command that runs the best trial again, with a seed that it did not have."""
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if complete:
            words = self.search.words(model, self.values(self.best(model, complete)))
            words.append(f"seed={max(self.search.seeds) + 1}")
            print(f"Best of {model}: tape-exp train {shlex.join(words)}")

    def _warn_of_edits(self, trials: Sequence[FrozenTrial]) -> None:
        """Warn where the code of an encoding or a task has changed since a trial ran."""
        files: set[str] = set()
        for trial in trials:
            files.update(changed_sources(trial.user_attrs.get("sources", {})))
        if files:
            warn(
                f"trials had another version of {' and '.join(sorted(files))}; remove "
                f"{self.search.folder} and add rerun=true to search anew."
            )


@dataclass(eq=False)
class Report(Callback):
    """Reports each validation of a run to its trial, and ends the run where that is pruned."""

    trial: Trial
    metric: str
    offset: int  # steps of the runs of earlier seeds
    final: float | None = None  # the score at the last step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise :class:`TrialPruned` where the trial is behind before its last step."""
        metrics: Any = pl_module.validation
        if self.metric not in metrics:
            near = did_you_mean(self.metric, metrics)
            raise MetricError(f"--metric={self.metric}{near} There are: {', '.join(metrics)}.")
        step = trainer.global_step
        score = metrics[self.metric]
        self.trial.report(score, self.offset + step)
        if step >= trainer.max_steps:
            self.final = score
        elif self.trial.should_prune():
            raise TrialPruned(f"{self.metric} is {score:.4g} at step {step}, behind the median.")


def work(trials: Trials, minutes: float | None = None) -> bool:
    """Run trials until every model has its budget; False where a signal or the time came first.

    Raises:
        MetricError, OSError, FolderError: a reason for which no trial can run; this one is left
            to the next worker.
    """
    with time_limit(minutes), Preemption() as preemption:  # time_limit catches Preempted
        preemption.defer_signals(True)  # between runs, a signal waits until the journal is written
        while preemption.received is None:
            claim = trials.claim()
            if claim is None:
                return True
            trial, lock = claim
            try:
                _run(trials, trial)
            finally:
                lock.release()
    return False


def _run(trials: Trials, trial: Trial) -> None:
    """Run a trial, and write to the journal how it ended."""
    model = trial.study.study_name
    number = sum(other.number <= trial.number for other in trials.of(model))
    title = f"{model}, trial {number} of {trials.search.trials}"
    print(f"{title} begins: {trials.values_text(trial)}", flush=True)
    score = None
    try:
        score = _score(trials, trial)
        state = TrialState.COMPLETE
        outcome = f"{trials.search.metric} {score:.4g}"
    except TrialPruned as reason:
        state = TrialState.PRUNED
        outcome = f"pruned: {reason}"
    except (MetricError, OSError, FolderError):
        raise
    except Exception as error:  # one failed trial must not cost the others
        trial.set_user_attr("why", redact(str(error)))
        state = TrialState.FAIL
        outcome = f"failed: {error}"
    with trials.lock:  # so that no claim takes it for one of a killed worker
        trial.study.tell(trial, score, state, skip_if_finished=True)
    print(f"{title}: {outcome}", flush=True)


def _score(trials: Trials, trial: Trial) -> float:
    """Run a trial once for each seed, and average the metric."""
    search = trials.search
    scores = []
    names = []
    sources: dict[str, str] = {}
    for index, seed in enumerate(search.seeds):
        cfg = search.config(trial.study.study_name, trials.values(trial), seed)
        report = Report(trial, search.metric, offset=index * cfg.task.optim.max_steps)
        try:
            with silence():
                record = run(cfg, [report])  # it writes a log.txt
            scores.append(record["metrics"][search.metric])
            names.append(record["run"])
            sources |= record.get("sources", {})
        except NotFiniteError:
            if report.final is None:
                raise
            scores.append(report.final)  # a number of the test is not finite, which decides nothing
    trial.set_user_attr("runs", names)
    trial.set_user_attr("sources", sources)
    return mean(scores)


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing of what is done within."""
    with (
        open(os.devnull, "w", encoding="utf-8") as null,
        redirect_stdout(null),
        redirect_stderr(null),
    ):
        yield
