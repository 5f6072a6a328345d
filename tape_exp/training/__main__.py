"""Train and evaluate a run (``tape-exp train model=tape task=arithmetic``), or with -m a sweep.

In a clone ``python train.py`` is the same.
"""

import os
import sys
import traceback
import warnings
from importlib.util import find_spec

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from tape_exp.machine.preemption import Preempted, ignore_signals, leave_with_parent
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.commands import RunFailedError, command, report
from tape_exp.settings.compose import complete, rewrite_for_hydra
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF
from tape_exp.settings.origin import describe
from tape_exp.settings.parser import unknown
from tape_exp.settings.redact import redact
from tape_exp.training.finished import finished

LAUNCHERS = ("submitit", "joblib", "ray")  # of Hydra's, each with an error of its own for a worker
NO_RAY = (
    "hydra/launcher=ray is a plugin: pip install 'tape_exp[ray]', then pip install --no-deps "
    "hydra-ray-launcher."
)
statuses: list[int] = []  # of the jobs of this process that failed


@command
def main() -> int:
    """Compose the config and run its job, or the jobs of a sweep: one after another, or where
    ``hydra/launcher=`` has them run.
    """
    leave_with_parent()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the command prints the sentence
    sys.argv[1:] = rewrite_for_hydra(sys.argv[1:])
    parser = get_args_parser()
    _, wrong = parser.parse_known_args()
    if wrong:
        raise ConfigError(unknown(wrong[0], "tape-exp train", parser))
    # conf/hydra/launcher/ray.yaml has the name of the plugin's own, whose keys it sets.
    warnings.filterwarnings("ignore", "\n'hydra/launcher/ray' is validated", UserWarning)
    try:
        train()
    except RunFailedError as failure:  # of a worker, which has said why
        statuses.append(failure.status)
    except Exception as error:
        if "Unknown plugin class" in str(error):
            raise ConfigError(NO_RAY) from None
        if str(error).startswith("Only one of --run"):
            raise ConfigError(f"{error}.") from None
        if type(error).__module__.partition(".")[0] not in LAUNCHERS:
            raise
        print(f"error: a worker has no result: {redact(describe(error))}", file=sys.stderr)
        print("The same command goes on with the runs that are not done.", file=sys.stderr)
        statuses.append(1)
    return max(statuses, default=0)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def train(cfg: DictConfig) -> None:
    """Run one job. A sweep goes on after a job that failed."""
    overrides = HydraConfig.get().overrides
    paths = [word for word in overrides.hydra if word.startswith("hydra.searchpath=")]
    sys.argv[1:] = [*overrides.task, *paths]  # processes of other devices repeat this job only
    elsewhere = HydraConfig.get().runtime.choices["hydra/launcher"] != "basic"
    if elsewhere:  # Lightning would start them as the launcher's worker
        sys.modules["__main__"].__spec__ = find_spec("tape_exp.training.__main__")
    try:
        complete(cfg, overrides.task)
        if not cfg.debug.plan and finished(RunDirectory(cfg)):
            return
        from tape_exp.training.run import run  # imports torch: what is above is answered sooner

        run(cfg)
    except Preempted:
        ignore_signals()  # SLURM sends SIGTERM after SIGUSR1, which would change the status
        raise
    except Exception as error:
        if cfg.debug.name not in ("none", "plan"):
            traceback.print_exc()
        statuses.append(report(error))
        if elsewhere:
            raise RunFailedError(statuses[-1]) from None


if __name__ == "__main__":
    sys.exit(main())
