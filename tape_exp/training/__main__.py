"""Train and evaluate a run (``tape-exp train model=tape task=arithmetic``), or with -m a sweep.

In a clone ``python train.py`` is the same.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during the imports Ctrl-C has no traceback

from hydra import main
from omegaconf import DictConfig

from tape_exp import cli
from tape_exp.settings.compose import register
from tape_exp.settings.folders import CONF

register()


@main(version_base="1.3", config_path=str(CONF), config_name="config")
def train(cfg: DictConfig) -> None:
    """Compose, validate, run."""
    cli.run_job(cfg)


if __name__ == "__main__":
    cli.with_clear_errors(train)
