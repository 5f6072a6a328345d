"""A worker of a search: it claims trials, runs them and reports their scores to Optuna."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from statistics import mean
from typing import Any

from lightning import Callback, LightningModule, Trainer
from optuna.trial import Trial, TrialState

from tape_exp.experiments.local import time_limit
from tape_exp.machine.preemption import Preemption
from tape_exp.runs.directory import FolderError
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.redact import redact
from tape_exp.training.faults import TrialPruned
from tape_exp.training.not_finite import NotFiniteError
from tape_exp.training.run import run
from tape_exp.tune.trials import Trials

warnings.filterwarnings("ignore", message=".*already reported")  # before the trial was resumed


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
                run_trial(trials, trial)
            finally:
                lock.release()
    return False


def run_trial(trials: Trials, trial: Trial) -> None:
    """Run a trial, and write to the journal how it ended."""
    model = trial.study.study_name
    number = sum(other.number <= trial.number for other in trials.of(model))
    title = f"{model}, trial {number} of {trials.search.trials}"
    print(f"{title} begins: {trials.values_text(trial)}", flush=True)
    score = None
    try:
        score = score_of(trials, trial)
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


def score_of(trials: Trials, trial: Trial) -> float:
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


class MetricError(ConfigError):
    """Validation does not measure the metric of the search."""
