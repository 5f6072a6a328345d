"""Train and evaluate one run, or a sweep with -m: ``python train.py model=tape task=arithmetic``."""

from hydra import main
from omegaconf import DictConfig

from tape_exp import cli, config

config.register()


@main(version_base="1.3", config_path="conf", config_name="config")
def train(cfg: DictConfig) -> None:
    """Compose, validate, run."""
    cli.run_job(cfg)


if __name__ == "__main__":
    cli.with_clear_errors(train)
