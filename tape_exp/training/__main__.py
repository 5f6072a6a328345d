"""Train and evaluate a run (``tape-exp train model=tape task=arithmetic``), or with -m a sweep.

In a clone ``python train.py`` is the same.
"""

import os
import sys
import traceback

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from tape_exp.machine.preemption import Preempted, ignore_signals, leave_with_parent
from tape_exp.settings.commands import command, report
from tape_exp.settings.compose import complete, spell_out
from tape_exp.settings.folders import CONF

statuses: list[int] = []  # of the jobs that failed


@command
def main() -> int:
    """Compose the config and run its job, or the jobs of a sweep one after another."""
    leave_with_parent()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the command prints the sentence
    sys.argv[1:] = spell_out(sys.argv[1:])
    train()
    return max(statuses, default=0)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def train(cfg: DictConfig) -> None:
    """One job. A sweep goes on after a job that failed."""
    overrides = HydraConfig.get().overrides
    paths = [word for word in overrides.hydra if word.startswith("hydra.searchpath=")]
    sys.argv[1:] = [*overrides.task, *paths]  # processes of other devices repeat this job only
    try:
        complete(cfg, overrides.task)
        from tape_exp.training.run import run  # imports torch: a mistake above is answered sooner

        run(cfg)
    except Preempted:
        ignore_signals()  # SLURM sends SIGTERM after SIGUSR1, which would change the status
        raise
    except Exception as error:
        if cfg.debug.name not in ("none", "plan"):
            traceback.print_exc()
        statuses.append(report(error))


if __name__ == "__main__":
    sys.exit(main())
