"""One worker of a search: claim a trial, run it, tell how it ended, until none is left."""

import logging
import os
from contextlib import redirect_stderr, redirect_stdout
from statistics import mean

from lightning import Callback, LightningModule, Trainer
from optuna.trial import TrialState

from tape_exp.machine.preemption import Preempted
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.training.faults import GivenUpError
from tape_exp.training.run import run
from tape_exp.tune.journal import Claimed, Journal
from tape_exp.tune.plan import Search
from tape_exp.tune.space import rounded

log = logging.getLogger("tune")  # not below the logger of the runs, which is silent here


class Watch(Callback):
    """Reports every validation of a run to its trial, and gives up one that falls behind.

    Args:
        claimed: the trial.
        metric: what is reported.
        offset: added to the step, for the runs of further seeds.
    """

    def __init__(self, claimed: Claimed, metric: str, offset: int) -> None:
        self.trial, self.metric, self.offset = claimed.trial, metric, offset

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report; raise :class:`GivenUpError` where the pruner says so before the last step."""
        measured = getattr(pl_module, "validation")  # noqa: B009
        if self.metric not in measured:
            raise ConfigError(
                f"metric={self.metric}{did_you_mean(self.metric, measured)} This validation "
                f"measures {', '.join(measured)}."
            )
        self.trial.report(measured[self.metric], self.offset + trainer.global_step)
        if trainer.global_step < trainer.max_steps and self.trial.should_prune():
            step, score = trainer.global_step, measured[self.metric]
            raise GivenUpError(f"{self.metric} is {score:.4g} at step {step}, behind the median.")


def work(search: Search, journal: Journal) -> list[str]:
    """Run trials until every model has all of its own; why those that failed did.

    Raises:
        Preempted: the time is over, or a signal came; the trial goes on with the next worker.
    """
    failed = []
    while claimed := journal.claim():
        title = f"{claimed.model}, trial {claimed.trial.number + 1} of {search.trials}"
        log.info("%s begins: %s", title, told(claimed))
        try:
            score = score_of(search, claimed)
        except GivenUpError as error:
            journal.tell(claimed, None, TrialState.PRUNED)
            log.info("%s is given up: %s", title, error)
        except (Preempted, KeyboardInterrupt):
            claimed.lock.release()
            raise
        except Exception as error:  # one failed trial must not cost the others
            journal.tell(claimed, None, TrialState.FAIL)
            failed.append(f"{title}: {error}")
            log.error("%s failed: %s", title, error)
        else:
            journal.tell(claimed, score, TrialState.COMPLETE)
            log.info("%s: %s %.4g", title, search.metric, score)
    return failed


def told(claimed: Claimed) -> str:
    """The values of a trial."""
    return " ".join(f"{key}={rounded(value)}" for key, value in claimed.values.items())


def score_of(search: Search, claimed: Claimed) -> float:
    """The mean of the metric over the runs of a trial, one for each seed."""
    scores, names = [], []
    for number, seed in enumerate(search.seeds):
        cfg = search.config(claimed.model, claimed.values, seed)
        offset = number * cfg.task.optim.max_steps
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            record = run(cfg, [Watch(claimed, search.metric, offset)])  # it has a log.txt
        scores.append(record["metrics"][search.metric])
        names.append(record["run"])
        report_again(claimed, record, search.metric, offset)
    claimed.trial.set_user_attr("runs", names)
    return mean(scores)


def report_again(claimed: Claimed, record: dict, metric: str, offset: int) -> None:
    """The validations of a run that had already been finished, for the trials that follow."""
    known = claimed.trial.study._storage.get_trial(claimed.trial._trial_id).intermediate_values
    curve = record.get("curves", {}).get(metric, {"step": [], "value": []})
    for step, value in zip(curve["step"], curve["value"], strict=True):
        if offset + step not in known:
            claimed.trial.report(value, offset + step)
