"""One worker of a search: claim a trial, run it, tell how it ended, until none is left."""

import logging
import os
from contextlib import redirect_stderr, redirect_stdout
from statistics import mean

from lightning import Callback, LightningModule, Trainer
from optuna.trial import TrialState

from tape_exp.machine.preemption import Preempted, signals_held_back
from tape_exp.runs.directory import FolderError
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.redaction import redact
from tape_exp.training.faults import GivenUpError, StorageError
from tape_exp.training.module import NotFiniteError
from tape_exp.training.run import run
from tape_exp.tune.journal import Claimed, Journal
from tape_exp.tune.plan import Search

log = logging.getLogger("tune")  # not below the logger of the runs, which is silent here


class Watch(Callback):
    """Reports every validation of a run to its trial, and gives up one that falls behind.

    Args:
        offset: added to the step, for the runs of further seeds.
    """

    def __init__(self, journal: Journal, claimed: Claimed, offset: int) -> None:
        self.journal, self.claimed, self.offset = journal, claimed, offset
        self.metric = journal.search.metric
        self.final: float | None = None  # the score at the last step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report; raise :class:`GivenUpError` where the trial is behind before the last step."""
        measured = getattr(pl_module, "validation")  # noqa: B009
        step, score = trainer.global_step, score_in(measured, self.metric)
        with signals_held_back():
            self.claimed.trial.report(score, self.offset + step)
        if step >= trainer.max_steps:
            self.final = score
            return
        middle = self.journal.behind(self.claimed, self.offset + step, score)
        if middle is not None:
            raise GivenUpError(
                f"{self.metric} is {score:.4g} at step {step}, where the median is {middle:.4g}."
            )


class MetricError(ConfigError):
    """The metric of a search is not measured, by no trial."""


def score_in(measured: dict[str, float], metric: str) -> float:
    """The value of a metric. Raises :class:`MetricError` where it is not measured."""
    if metric not in measured:
        known = [name for name in measured if name.startswith("val/")]
        raise MetricError(
            f"metric={metric}{did_you_mean(metric, known)} The validation measures "
            f"{', '.join(known)}."
        )
    return measured[metric]


def work(search: Search, journal: Journal) -> None:
    """Run trials until every model has all of its own.

    Raises:
        OSError, StorageError, FolderError: a run's folder cannot be written, or another process
            has it.
        Preempted: the time is over, or a signal came; the trial goes on with the next worker.
    """
    while claimed := journal.claim():
        number = len([t for t in journal.trials(claimed.model) if t.number <= claimed.trial.number])
        title = f"{claimed.model}, trial {number} of {search.trials}"
        log.info("%s begins: %s", title, told(claimed))
        try:
            score = score_of(search, journal, claimed)
        except GivenUpError as error:
            journal.tell(claimed, None, TrialState.PRUNED)
            log.info("%s is given up: %s", title, error)
        except (Preempted, KeyboardInterrupt, MetricError, OSError, StorageError, FolderError):
            claimed.lock.release()  # it is not the trial's fault: it stays open
            raise
        except Exception as error:  # one failed trial must not cost the others
            claimed.trial.set_user_attr("why", redact(str(error)))
            journal.tell(claimed, None, TrialState.FAIL)
            log.error("%s failed: %s", title, error)
        else:
            journal.tell(claimed, score, TrialState.COMPLETE)
            log.info("%s: %s %.4g", title, search.metric, score)


def told(claimed: Claimed) -> str:
    """The values of a trial."""
    return " ".join(f"{key}={value}" for key, value in claimed.values.items())


def score_of(search: Search, journal: Journal, claimed: Claimed) -> float:
    """The mean of the metric over the runs of a trial, one for each seed."""
    scores, names = [], []
    for number, seed in enumerate(search.seeds):
        cfg = search.config(claimed.model, claimed.values, seed)
        offset = number * cfg.task.optim.max_steps
        watch = Watch(journal, claimed, offset)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            try:
                record = run(cfg, [watch])  # it has a log.txt
            except NotFiniteError:
                if watch.final is None:
                    raise
                scores.append(watch.final)  # it was the test that gave no number
                continue
        scores.append(score_in(record["metrics"], search.metric))
        names.append(record["run"])
        report_again(claimed, record, search.metric, offset)
    claimed.trial.set_user_attr("runs", names)
    return mean(scores)


def report_again(claimed: Claimed, record: dict, metric: str, offset: int) -> None:
    """The validations of a run that had already been finished, for the trials that follow."""
    known = claimed.trial.study.trials[claimed.trial.number].intermediate_values
    curve = record.get("curves", {}).get(metric, {"step": [], "value": []})
    for step, value in zip(curve["step"], curve["value"], strict=True):
        if offset + step not in known:
            claimed.trial.report(value, offset + step)
