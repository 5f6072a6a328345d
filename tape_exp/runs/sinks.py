"""The sinks of metrics and artifacts: metrics.jsonl, and those of ``logger=``, such as W&B."""

import csv
import io
import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import matplotlib.image
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig

from tape_exp.machine.files import flush_to_disk, parse_json, write_atomically
from tape_exp.machine.processes import first_process
from tape_exp.runs.clock import Stopwatch
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import Evaluation, is_diagnostic
from tape_exp.runs.identity import identity_of
from tape_exp.settings.display import display_name
from tape_exp.settings.redaction import is_secret, redact, redact_tree
from tape_exp.settings.schema import LONGEST_TAG

log = logging.getLogger("tape_exp")
POINTS = 100  # of a curve in a record
ASKED_DATA_DIR = os.environ.get("WANDB_DATA_DIR")


class JsonlLogger(Logger):
    """One JSON object a line, ``{"step": 10, "train/loss": …}``: the complete curve of a run.

    Args:
        path: of the file, where an earlier process may have begun it.
        clock: gives each line its ``seconds``, what the run has taken so far.
        step: that the run goes on from.
    """

    name = "jsonl"
    version = None

    def __init__(self, path: Path, clock: Stopwatch, step: int = 0) -> None:
        super().__init__()
        self.path, self.clock = path, clock
        self._reported: set[tuple[str, ...]] = set()  # the names of each line at ``step``
        self._step = step
        self._rewind()

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a line, unless a killed process has reported it."""
        if step == self._step and tuple(metrics) in self._reported:
            return
        row = {"step": step, **metrics, "seconds": round(self.clock.seconds(), 2)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    @rank_zero_only
    def flush(self) -> None:
        """Have every line on the disk."""
        if self.path.exists():
            flush_to_disk(self.path)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The config is in the run's folder already."""

    @rank_zero_only
    def _rewind(self) -> None:
        """Drop what a killed process wrote after the step, and a line that it left unfinished."""
        if not self.path.exists():
            if self._step:
                log.warning(
                    "%s is missing: curves and time are only of what follows step %d.",
                    self.path,
                    self._step,
                )
            return
        kept = [row for row in metric_rows(self.path) if row["step"] <= self._step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self.clock.add(kept[-1]["seconds"] if kept else 0.0)
        self._reported = {tuple(row)[1:-1] for row in kept if row["step"] == self._step}


class CsvLogger(Logger):
    """The rows of a metrics.jsonl as a table, written anew at every checkpoint and at the end.

    Lightning's own begins an empty file where a run goes on.

    Args:
        path: of the table.
        rows: of the metrics.jsonl.
    """

    name = "csv"
    version = None

    def __init__(self, path: Path, rows: Path) -> None:
        super().__init__()
        self.path, self.rows = path, rows

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """They are in metrics.jsonl already."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The config is in the run's folder already."""

    @rank_zero_only
    def save(self) -> None:
        """Write the table: a column for each name, a cell empty where a row has none."""
        rows = read_metrics(self.rows) if self.rows.exists() else []
        text = io.StringIO()
        table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        table.writeheader()
        table.writerows(rows)
        self.path.parent.mkdir(exist_ok=True)
        write_atomically(self.path, text.getvalue())


def give(loggers: list[Logger], what: Callable[[Logger], object]) -> None:
    """Give every sink what is there for it. One that fails gets nothing more: a run never dies of
    its sink, and metrics.jsonl, which must not fail, has all of it.
    """
    for logger in [*loggers]:
        try:
            what(logger)
        except Exception as error:  # whatever W&B raises
            if isinstance(logger, JsonlLogger):
                raise
            loggers.remove(logger)
            log.warning(
                "%s takes nothing more (%s): going on without it, with metrics.jsonl.",
                {"csv": "The CSV table", "tensorboard": "TensorBoard"}.get(str(logger.name), "W&B"),
                " ".join(str(error).split()) or type(error).__name__,
            )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of :func:`metric_rows`, all at once."""
    return list(metric_rows(path))


def metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl without an unfinished last line or damaged ones (a warning)."""
    with path.open(errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                row = parse_json(line)
                whole = type(row["step"]) is int and all(map(_is_number, row.values()))
                whole = whole and 0 <= row["seconds"] < math.inf
            except (ValueError, KeyError, TypeError, AttributeError):
                whole = False
            if not whole:
                log.warning("%s, line %d is damaged and left out.", path, number)
                continue
            yield row


def _is_number(value: Any) -> bool:
    """Whether a value of a row is a number that fits into eight bytes."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """The losses of training, ``{"train/loss": {"step": […], "value": […]}, "val/loss": …}``.

    At most :data:`POINTS` of each, evenly spaced, with the first and the last; a single value is no
    curve, and one that is not finite is no point.
    """
    thinned: dict[str, dict[str, list[Any]]] = {}
    for name in ("train/loss", "val/loss"):
        points = [
            (row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))
        ]
        last = len(points) - 1
        if last >= POINTS:
            points = [points[round(i * last / (POINTS - 1))] for i in range(POINTS)]
        if last > 0:
            thinned[name] = {
                "step": [step for step, _ in points],
                "value": [float(f"{value:.5g}") for _, value in points],
            }
    return thinned


def make_loggers(cfg: DictConfig, run: RunDirectory, clock: Stopwatch, step: int) -> list[Logger]:
    """The JSONL logger, going on from ``step``, and the one that ``logger=`` asks for."""
    # Lightning reads NODE_RANK only when the trainer is made; until then two would write.
    rank_zero_only.rank = 0 if first_process() else 1  # type: ignore[attr-defined]
    loggers: list[Logger] = [JsonlLogger(run.metrics, clock, step)]
    name = cfg.logger.name
    if name == "csv":
        loggers.append(CsvLogger(run.path / "csv" / "metrics.csv", run.metrics))
    elif name == "tensorboard":
        loggers.append(
            TensorBoardLogger(run.path, name="tensorboard", version="", default_hp_metric=False)
        )
    elif name == "wandb":
        try:
            loggers.append(_wandb(cfg, run))
        except Exception as error:  # whatever W&B raises: a run never dies of its sink
            log.warning(
                "W&B does not begin a run (%s): going on without it, with only metrics.jsonl.",
                " ".join(str(error).split()) or type(error).__name__,
            )
    return loggers


def _wandb(cfg: DictConfig, run: RunDirectory) -> Logger:
    """Lightning's W&B logger with its run id fixed, so that a resumed run continues that run."""
    os.environ.setdefault("WANDB_SILENT", "true")  # read when wandb is imported
    keep_tables_in(run.path / "wandb")
    import wandb

    mode = cfg.logger.mode
    if mode == "auto":
        mode = "online" if has_key() else "offline"
    options: dict[str, Any] = {
        "project": cfg.logger.project,
        "entity": cfg.logger.entity,
        "id": run.hash,
        "name": run.name,
        "group": f"{cfg.task.name}-{cfg.scale.name}",
        "save_dir": str(run.path),
        "resume": "allow",
        "config": redact_tree(identity_of(cfg)),
        "tags": tags_of(cfg),
        "notes": cfg.logger.notes or title_of(cfg),
    }
    settings = wandb.Settings(
        init_timeout=cfg.logger.timeout,
        silent=True,
        disable_git=True,
        disable_code=True,
        console="off",  # the run has a log.txt; a captured terminal is mostly its progress bar
    )
    if mode == "online" and not reachable(cfg.logger.timeout):
        log.warning("W&B cannot be reached: going on offline.")
        mode = "offline"
    if mode == "online":
        try:
            logger = _quiet(WandbLogger(offline=False, settings=settings, **options))
            with _time_limit(cfg.logger.timeout + 10), secrets_hidden():
                _ = logger.experiment
            return logger
        except Exception as error:  # whatever W&B raises: a run never dies of its sink
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            log.warning(
                "W&B cannot be reached (%s): going on offline.",
                reason,
            )
            wandb.teardown()
            options["id"] += "-offline"  # the service still holds the other one
    logger = _quiet(WandbLogger(offline=True, settings=settings, **options))
    with secrets_hidden():
        _ = logger.experiment
    if not first_process():
        return logger  # its experiment stands for none, and has no folder
    folder = Path(logger.experiment.settings.sync_dir)
    log.info("W&B is offline; to upload the run: wandb sync %s", folder)
    return logger


def title_of(cfg: DictConfig) -> str:
    """A run in words: ``TAPE on arithmetic, scale smoke, seed 0``."""
    return f"{display_name(cfg.model.name)} on {setting_of(cfg)}"


def setting_of(cfg: DictConfig) -> str:
    """What a run is besides its model, in words: ``word problem, scale smoke, seed 0``."""
    return f"{cfg.task.name.replace('_', ' ')}, scale {cfg.scale.name}, seed {cfg.seed}"


def tags_of(cfg: DictConfig) -> list[str]:
    """What runs are found by on W&B: model, task, scale, ``logger.tags``, each once."""
    tags = [cfg.model.name, cfg.task.name, cfg.scale.name, *cfg.logger.tags]
    return list(dict.fromkeys(tag[:LONGEST_TAG] for tag in tags))


def keep_tables_in(folder: Path) -> None:
    """Let W&B keep its copies of tables, for `wandb sync`, with the run or in WANDB_DATA_DIR."""
    os.environ["WANDB_DATA_DIR"] = ASKED_DATA_DIR or str(folder)


def _quiet(logger: WandbLogger) -> WandbLogger:
    """Without an option of Lightning's that W&B only warns about."""
    logger._wandb_init.pop("anonymous", None)
    return logger


def reachable(timeout: int) -> bool:
    """Whether W&B's server answers a connection; a proxy is trusted to."""
    address = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout).close()
    except (OSError, ValueError):  # of a port that is no number
        return False
    return True


def has_key() -> bool:
    """Whether a W&B key is configured: in the environment or in netrc."""
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, ValueError, netrc.NetrcParseError):  # absent, not UTF-8, or no such file
        return False


@contextmanager
def secrets_hidden() -> Any:
    """W&B stores the command line and SLURM's variables, as it finds them while it starts.

    Its own variables stay, since it logs in with them. The mode that Lightning sets where a run is
    offline is taken back: the next run of the process may find W&B again.
    """
    before = sys.argv
    mode = {n: v for n, v in os.environ.items() if n == "WANDB_MODE"}
    secrets = {n: v for n, v in os.environ.items() if is_secret(n) and not n.startswith("WANDB_")}
    sys.argv = [redact(argument) for argument in before]
    for name in secrets:
        del os.environ[name]
    try:
        yield
    finally:
        sys.argv = before
        os.environ.pop("WANDB_MODE", None)
        os.environ.update(secrets | mode)


@contextmanager
def _time_limit(seconds: int) -> Any:
    """Raise TimeoutError after ``seconds``: W&B's own limits do not cover every way of waiting."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def headline(evaluation: Evaluation, facts: dict[str, float]) -> dict[str, float]:
    """What the table of W&B's runs shows of a run: its facts and results, without diagnostics."""
    results = {name: v for name, v in evaluation.metrics.items() if not is_diagnostic(name)}
    return facts | {name: v for name, v in results.items() if not name.endswith("_stderr")}


def publish(
    loggers: list[Logger],
    evaluation: Evaluation,
    images: list[Path],
    step: int,
    facts: dict[str, float],
) -> None:
    """Send the images of an evaluation to W&B and TensorBoard, its tables and headline to W&B.

    Args:
        facts: of the run, such as its parameters, for W&B's summary.
    """

    def send(logger: Logger) -> None:
        if isinstance(logger, WandbLogger):
            for image in images:
                logger.log_image(f"test/{image.stem}", [str(image)])
            logger.experiment.summary.update(headline(evaluation, facts))
            for name, rows in {"samples": evaluation.samples, **evaluation.tables}.items():
                columns = list(dict.fromkeys(column for row in rows for column in row))
                data = [[row.get(column) for column in columns] for row in rows]
                if rows:
                    logger.log_table(f"test/{name}", columns=columns, data=data)
        elif isinstance(logger, TensorBoardLogger):
            for image in images:
                logger.experiment.add_image(
                    f"test/{image.stem}", matplotlib.image.imread(image), step, dataformats="HWC"
                )
        logger.save()

    give(loggers, send)


def close(loggers: list[Logger], timeout: int, done: bool, preempted: bool) -> None:
    """End the W&B run, if there is one, so that the next run of this process gets a run of its own.

    It is tried for ``timeout`` seconds where the run must leave, else for at most ten minutes: what
    has not been sent by then is in the run's folder, for `wandb sync`.
    """
    for logger in loggers:
        if (
            isinstance(logger, WandbLogger)
            and "wandb" in sys.modules
            and sys.modules["wandb"].run is not None
        ):
            try:
                with _time_limit(timeout if preempted else 600):
                    if preempted:
                        logger.experiment.mark_preempting()
                    logger.experiment.finish(exit_code=int(not done))
            except Exception as error:  # whatever W&B raises: a run never dies of its sink
                log.warning(
                    "W&B did not end its run (%s); `wandb sync` uploads it later.",
                    type(error).__name__,
                )
