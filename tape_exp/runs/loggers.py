"""The loggers of a run: metrics.jsonl, and what ``logger=`` says: W&B (:mod:`.wandb_run`), or any
logger of Lightning by its ``_target_``.
"""

import inspect
import itertools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.utils import get_object, instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.files import write_atomically
from tape_exp.machine.processes import first_process
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import Stopwatch, read_metrics
from tape_exp.runs.wandb_run import asks_for_wandb, begin_wandb_run
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redact import redact_tree
from tape_exp.settings.schema import LoggerConfig

log = logging.getLogger("tape_exp")


class JsonlLogger(Logger):
    """Writes one JSON object a line, ``{"step": 10, "train/loss": …, "seconds": …}``: the whole
    curve of a run. What a killed process wrote after ``step``, from which the run resumes, is
    dropped.
    """

    name = "jsonl"
    version = None

    def __init__(self, path: Path, clock: Stopwatch, step: int = 0) -> None:
        super().__init__()
        self.path = path
        self.clock = clock
        self.step = step
        self.logged: set[tuple[str, ...]] = set()  # the names of each line at ``step``
        if path.exists():
            rows = [row for row in read_metrics(path) if row["step"] <= step]
            write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
            if rows:
                clock.began -= rows[-1]["seconds"]
            for row in rows:
                if row["step"] == step:
                    names = [name for name in row if name not in ("step", "seconds")]
                    self.logged.add(tuple(names))
        elif step:
            log.warning("%s is missing: curves begin at step %d.", path, step)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a line, unless a killed process has logged it."""
        if step == self.step and tuple(metrics) in self.logged:
            return
        row = {"step": step, **metrics, "seconds": round(self.clock.seconds(), 2)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def save(self) -> None:
        """Write every line to the disk, and not only to the system's memory."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the config is in the run's folder already."""


def log_to_all(loggers: list[Logger], send: Callable[[Logger], object]) -> None:
    """Call ``send`` on every logger; drop one that raises, so that it cannot end the run, unless it
    is that of metrics.jsonl, which has everything.
    """
    for logger in [*loggers]:
        try:
            send(logger)
        except Exception as error:
            if isinstance(logger, JsonlLogger):
                raise
            loggers.remove(logger)
            log.warning("No more is sent to %s: %r.", type(logger).__name__, error)


def make_loggers(cfg: DictConfig, run: RunDirectory, clock: Stopwatch, step: int) -> list[Logger]:
    """Make the logger of metrics.jsonl, continuing at ``step``, and that of W&B, where ``logger=``
    asks for it; none but in the first process.
    """
    if not first_process():
        return []
    loggers: list[Logger] = [JsonlLogger(run.metrics, clock, step)]
    if "_target_" not in cfg.logger and asks_for_wandb(cfg.logger):
        wandb_run = begin_wandb_run(cfg, run)
        if wandb_run is not None:
            loggers.append(WandbLogger(experiment=wandb_run))
    return loggers


def make_lightning_logger(cfg: DictConfig, run: RunDirectory) -> list[Logger]:
    """Make the logger that ``logger._target_`` names; none without a target, and none but in the
    first process.

    Where its constructor takes them and the section has none, ``save_dir`` is the run's folder,
    ``run_name`` the run's name and ``name`` that of the YAML.

    Raises:
        ConfigError: it cannot be made, as without its package, or is no logger of Lightning.
    """
    if "_target_" not in cfg.logger or not first_process():
        return []
    section: Any = OmegaConf.to_container(cfg.logger, resolve=True)
    of_wandb = asdict(LoggerConfig())  # keys that every section has, with what they are unset
    keys = {key: value for key, value in section.items() if of_wandb.get(key, ...) != value}
    name = keys.pop("name")
    target = keys["_target_"]
    try:
        parameters = inspect.signature(get_object(target)).parameters
        facts = {"name": name, "save_dir": str(run.path), "run_name": run.name}
        arguments = {key: value for key, value in facts.items() if key in parameters}
        logger = instantiate(arguments | keys, _convert_="all")
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        raise ConfigError(f"logger={name}: {target} cannot be made ({reason}).") from error
    if not isinstance(logger, Logger):
        raise ConfigError(f"logger={name}: {target} is no logger of Lightning.")
    return [logger]


def send_settings(loggers: list[Logger], run: RunDirectory) -> None:
    """Send the part of the config that the run is a function of, as hyper-parameters; W&B has it
    from the beginning.
    """
    settings = redact_tree(run.identity)

    def send(logger: Logger) -> None:
        if not isinstance(logger, WandbLogger):
            logger.log_hyperparams(settings)

    log_to_all(loggers, send)


def publish(
    loggers: list[Logger],
    images: Sequence[Path],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    summary: Mapping[str, Any],
) -> None:
    """Send images, tables and the summary of a finished run to W&B; write what loggers hold."""

    def send(logger: Any) -> None:
        if isinstance(logger, WandbLogger):
            for image in images:
                logger.log_image(f"test/{image.stem}", [str(image)])
            logger.experiment.summary.update(summary)
            for name, rows in tables.items():
                if rows:
                    columns, data = as_table(rows)
                    logger.log_table(f"test/{name}", columns=columns, data=data)
        logger.save()

    log_to_all(loggers, send)


def as_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns, in the order of their first rows, and rows of their values.

    >>> as_table([{"a": 1}, {"b": 2}])
    (['a', 'b'], [[1, None], [None, 2]])
    """
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    data = []
    for row in rows:
        data.append([row.get(column) for column in columns])
    return columns, data


def close(loggers: list[Logger], done: bool, preempted: bool) -> None:
    """End the W&B run, if there is one: the next run of this process gets one of its own. Finalize
    any other logger as a success or a failure.
    """

    def end(logger: Any) -> None:
        if not isinstance(logger, WandbLogger):
            logger.finalize("success" if done else "failed")
            return
        if preempted:
            logger.experiment.mark_preempting()
        logger.experiment.finish(exit_code=int(not done))

    log_to_all([logger for logger in loggers if not isinstance(logger, JsonlLogger)], end)
