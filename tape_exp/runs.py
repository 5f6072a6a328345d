"""A run's directory: where it lies, what is in it, and the record that tables are made from.

``runs/<task>/<scale>/<model>/seed<seed>-<hash>/`` (of an adapted model ``<model>-<peft>``) holds config.yaml, manifest.json,
metrics.jsonl, log.txt, checkpoints/, artifacts/, record.json and, at the end, DONE or FAILED. The path is a function of config
and seed, never of the clock: the same command finds the same run, goes on from its last checkpoint or says that it is done.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from tape_exp import weights
from tape_exp.config import ConfigError
from tape_exp.files import write_atomically
from tape_exp.preemption import first_process
from tape_exp.redaction import redact, redact_tree

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "results" / "records"
LOCK = ".lock"
LOCK_SECONDS = 10.0  # data workers of a killed process hold its lock until they notice
PACKAGES = ("torch", "lightning", "hydra-core", "numpy", "wandb", "datasets", "transformers", "lm_eval", "triton", "flash-attn")


def identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of a config that decides what is computed: everything but where it runs and where it reports."""
    resolved: Any = OmegaConf.to_container(cfg, resolve=True)
    keep = {key: resolved[key] for key in ("model", "task", "peft", "seed")}
    keep["scale"] = resolved["scale"]["name"]
    keep["precision"] = resolved["trainer"]["precision"]
    keep["checkpoint"] = weights.wanted(cfg)
    debug = {key: value for key, value in resolved["debug"].items() if value not in (None, False, "none")}
    return keep | ({"debug": debug} if debug else {})


def config_hash(cfg: DictConfig) -> str:
    """Ten hexadecimal digits of :func:`identity`; a checkpoint to begin from counts as the run and the step that it is of."""
    told = identity(cfg)
    if told["checkpoint"] is None:
        del told["checkpoint"]
    else:
        told["checkpoint"] = weights.title(weights.find(told["checkpoint"], cfg))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]


def without_folders(told: Any) -> Any:
    """A config as a record shows it: of each path its last name, so that a record says nothing of the machine."""
    if not isinstance(told, dict):
        return told
    return {
        key: Path(value).name
        if key in ("path", "checkpoint", "init_from") and isinstance(value, str)
        else without_folders(value)
        for key, value in told.items()
    }


def shown_config(cfg: DictConfig) -> str:
    """The resolved config as YAML, without secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(redact_tree(OmegaConf.to_container(cfg, resolve=True))))


class RunDirectory:
    """One run on disk. Writing is atomic: a file is whole or absent, whatever kills the process.

    Raises:
        ConfigError: a symbolic link leads out of ``runs``.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.hash = config_hash(cfg)
        self.name = f"{cfg.task.name}-{cfg.scale.name}-{weights.variant(cfg)}-seed{cfg.seed}-{self.hash}"
        place = Path(cfg.task.name, cfg.scale.name, weights.variant(cfg), f"seed{cfg.seed}-{self.hash}")
        self.path = Path(cfg.runs).expanduser().resolve() / place
        self.checkpoints = self.path / "checkpoints"
        self.artifacts = self.path / "artifacts"
        for folder in (self.path, self.checkpoints, self.artifacts):
            if folder.resolve() != folder:
                raise ConfigError(
                    f"{folder} leads out of runs={cfg.runs} to {folder.resolve()}; replace the link, or set runs=."
                )

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "DONE").exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands off the run, by a lock that the system releases when the process dies.

        Of several processes the first alone holds it. Raises :class:`ConfigError` where another command works on the run,
        or the directory cannot be written.
        """
        if not first_process():
            yield
            return
        with self._writable():
            self.path.mkdir(parents=True, exist_ok=True)
            held = FileLock(self.path / LOCK, timeout=LOCK_SECONDS)
            try:
                held.acquire()
            except Timeout:
                raise ConfigError(
                    f"another process works on {self.path}; wait for its end or stop it, then give the same command again."
                ) from None
        try:
            yield
        finally:
            held.release()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the run directory {self.path} cannot be written ({error.strerror}); set runs=<a folder that can>."
            ) from error

    def open(self, assets: Mapping[str, str]) -> None:
        """Create the directory, and write config, manifest and the task's ``assets`` (name -> content).

        Of several processes the first alone writes. Raises :class:`ConfigError` where it cannot be written.
        """
        if not first_process():
            return
        with self._writable():
            if self.cfg.debug.name != "none":
                self._clear()
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.artifacts.mkdir(exist_ok=True)
            (self.path / "FAILED").unlink(missing_ok=True)
            self.write("config.yaml", shown_config(self.cfg))
            self.write_json("manifest.json", manifest(self.hash))
            for name, content in assets.items():
                self.write(name, content)

    def _clear(self) -> None:
        """Remove what an earlier run left, but not the lock, which this one holds."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()

    def write(self, name: str, text: str) -> Path:
        """Write a text file atomically."""
        path = self.path / name
        write_atomically(path, text)
        return path

    def write_json(self, name: str, content: Any) -> Path:
        """Write a JSON file atomically."""
        return self.write(name, json.dumps(content, indent=1) + "\n")

    def finish(self, record: dict[str, Any]) -> None:
        """Write the record and mark the run as done."""
        self.write("record.json", dump_record(record))
        self.write("DONE", json.dumps(record["metrics"]) + "\n")
        (self.path / "FAILED").unlink(missing_ok=True)  # of a process that another of an earlier command left behind

    def fail(self, error: BaseException) -> Path | None:
        """Write FAILED with the traceback; checkpoints stay. The first process that fails writes: the others fail of it.

        Returns None where it cannot be written.
        """
        path = self.path / "FAILED"
        try:
            return path if path.exists() else self.write("FAILED", redact("".join(traceback.format_exception(error))))
        except OSError:
            return None

    def record(self) -> dict[str, Any]:
        """The record of a finished run."""
        return json.loads((self.path / "record.json").read_text())


def manifest(hash_: str) -> dict[str, Any]:
    """Who made this run: command, commit, versions, machine, time."""
    return {
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "config_hash": hash_,
        **circumstances(),
    }


def circumstances() -> dict[str, Any]:
    """What every record begins with: commit, versions, machine, time."""
    return {
        "git": git_state(),
        "packages": package_versions(),
        "hardware": hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_state() -> dict[str, Any]:
    """The commit, and whether tracked files outside results/ differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, those that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """Processor, cores, threads and GPUs; no host name."""
    import torch

    from tape_exp.hardware import cpu_name

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}


def make_record(run: RunDirectory, task: Any, metrics: dict[str, float], **facts: Any) -> dict[str, Any]:
    """The record of a finished run: all that tables and figures need, small enough to commit."""
    made = json.loads((run.path / "manifest.json").read_text())
    return {
        "run": run.name,
        "config_hash": run.hash,
        "config": redact_tree(without_folders(identity(run.cfg))),
        "seed": run.cfg.seed,
        **{key: made[key] for key in ("git", "packages", "hardware", "started")},
        "data_fingerprint": task.fingerprint(),
        **facts,
        "metrics": metrics,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir()),
    }


def dump_record(record: dict[str, Any]) -> str:
    """JSON with one line for each row of a grid and for each curve, so that a record reads and diffs well."""
    parts: list[str] = []

    def apart(text: str) -> str:
        parts.append(text)
        return f"@part {len(parts) - 1}@"

    def rows(grid: list[Any]) -> str:
        return apart("[\n  " + ",\n  ".join(map(json.dumps, grid)) + "\n ]")

    told = dict(record)
    if "heatmap" in told:
        told["heatmap"] = rows(told["heatmap"])
    if "matrices" in told:
        told["matrices"] = {name: rows(grid) for name, grid in told["matrices"].items()}
    if "curves" in told:
        told["curves"] = {name: apart(json.dumps(curve)) for name, curve in told["curves"].items()}
    text = json.dumps(told, indent=1)
    for number, part in enumerate(parts):
        text = text.replace(f'"@part {number}@"', part, 1)
    return text + "\n"


class Stopwatch:
    """Seconds since it was made, over all the processes that worked on a run: it goes on from what was spent before."""

    def __init__(self, before: float = 0.0) -> None:
        self.began = time.monotonic() - before

    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began
