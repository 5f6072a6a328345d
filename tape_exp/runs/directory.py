"""A run's directory: its path, its files, and the record that tables are made from.

``runs/<task>/<scale>/<model>/seed<seed>-<hash>/`` (of an adapted model ``<model>-<peft>``) holds
config.yaml, manifest.json, metrics.jsonl, log.txt, checkpoints/, artifacts/, record.json and, at
the end, DONE or FAILED. The path is a function of config and seed: the same command finds the same
run, resumes it from its last checkpoint or says that it is done.
"""

import json
import logging
import os
import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.files import short_hash, write_atomically
from tape_exp.machine.processes import first_process
from tape_exp.runs.checkpoint_files import saved_checkpoints
from tape_exp.runs.checkpoint_info import fingerprint, title
from tape_exp.runs.identity import identity_of, variant
from tape_exp.runs.llama_base import apply_llama_config
from tape_exp.runs.manifest import manifest
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings import files
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.origin import describe
from tape_exp.settings.plugins import changed_sources
from tape_exp.settings.redact import redact, redact_tree

log = logging.getLogger("tape_exp")
LOCK = ".lock"
LOG = "log.txt"
LOCK_SECONDS = 10.0  # data workers of a killed process hold its lock until they notice


class FolderError(ConfigError):
    """A run's folder cannot be used now, whatever its config says."""


class RunDirectory:
    """One run on disk. Writing is atomic: a file is whole or absent, whatever kills the process.

    ``start`` is the checkpoint that it begins from, if it does, and ``cfg`` has what follows from
    that. ``hash`` is of what the config computes, where the checkpoint counts as run and step.
    """

    begun = False  # by this process

    def __init__(self, cfg: DictConfig) -> None:
        self.start = starting_checkpoint(cfg)
        self.cfg = cfg = apply_llama_config(cfg, self.start) if self.start else cfg
        self.identity = identity_of(cfg)
        hashed = dict(self.identity)
        del hashed["checkpoint"]
        if self.start:
            hashed["checkpoint"] = title(self.start)
        self.hash = short_hash([json.dumps(hashed, sort_keys=True)])[:10]
        folders = (cfg.task.name, cfg.scale.name, variant(cfg), f"seed{cfg.seed}-{self.hash}")
        self.name = "-".join(folders)
        self.path = Path(cfg.runs).expanduser().resolve().joinpath(*folders)
        try:
            os.fsencode(self.path)
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"this locale has no names of files with {error.object[error.start]}, as in "
                f"{self.path}: set PYTHONUTF8=1, or a locale of UTF-8."
            ) from None
        self.checkpoints = self.path / "checkpoints"
        self.artifacts = self.path / "artifacts"
        self.metrics = self.path / "metrics.jsonl"

    @property
    def done(self) -> bool:
        """Say whether the run has finished, and its record is there."""
        return all((self.path / name).exists() for name in ("DONE", "record.json"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands off the run, by a lock that the system releases with the process, the
        first one of the run. Raises :class:`FolderError` where another command holds it, or the
        folder cannot be written.
        """
        if not first_process():
            yield
            return
        try:
            lock = FileLock(self.path / LOCK).acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise FolderError(
                f"another process works on {self.path}; wait for its end or stop it, then give the "
                "same command again."
            ) from None
        except OSError as error:
            raise FolderError(
                f"{self.path} cannot be written ({error.strerror}): "
                "runs=<folder> names another place."
            ) from error
        with lock:
            try:
                yield
            finally:
                if not any((self.path / name).exists() for name in ("config.yaml", "FAILED")):
                    shutil.rmtree(self.path, ignore_errors=True)  # a mistake, and nothing began

    def open(self, assets: Mapping[str, str]) -> None:
        """Make the directory, and write config, manifest and ``assets`` (name -> content), in the
        first process only. Raises :class:`ConfigError` where the checkpoints that are there began
        from other weights.
        """
        if not first_process():
            self.begun = True
            return
        if self.begins_anew():
            self.remove_results()
        earlier = None
        if saved_checkpoints(self.checkpoints):
            earlier = files.read(self.path / "manifest.json")
            self.refuse_other_weights(earlier)
            self.tell_other_sources(earlier)
            # The task refuses checkpoints of other assets, and those of the run stay.
            assets = {name: assets[name] for name in assets if not (self.path / name).exists()}
        now = manifest(self.hash, self.identity, self.cfg.rerun, self.start, earlier)
        self.begun = True
        for folder in (self.path, self.checkpoints, self.artifacts):
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".*.partial"):
                leftover.unlink(missing_ok=True)
        for name in ("DONE", "FAILED"):
            (self.path / name).unlink(missing_ok=True)
        config = redact_tree(OmegaConf.to_container(self.cfg, resolve=True, enum_to_str=True))
        write_atomically(self.path / "config.yaml", OmegaConf.to_yaml(config))
        write_atomically(self.path / "manifest.json", json.dumps(now, indent=1) + "\n")
        for name, content in assets.items():
            write_atomically(self.path / name, content)

    def remove_results(self) -> None:
        """Remove what an earlier run has left."""
        for folder in ("checkpoints", "artifacts", "wandb"):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        for file in ("metrics.jsonl", "record.json"):
            (self.path / file).unlink(missing_ok=True)

    def begins_anew(self) -> bool:
        """Say whether what is in the folder is to be removed: by a ``debug`` run always, with
        ``rerun`` unless it is left of a run that ``rerun`` has begun with today's encoding and
        task.
        """
        if self.cfg.debug.name != "none":
            return True
        if not self.cfg.rerun:
            return False
        path = self.path / "manifest.json"
        if self.done or not path.exists():
            return True
        earlier = files.read(path)
        return not earlier.get("rerun") or bool(changed_sources(earlier.get("sources", {})))

    def tell_other_sources(self, earlier: Mapping[str, Any]) -> None:
        """Warn where the files of encoding or task have changed since a manifest or a record."""
        changed = changed_sources(earlier.get("sources", {}))
        if changed:
            log.warning(
                "%s began with another version of %s; rerun=true runs it anew.",
                self.name,
                " and ".join(changed),
            )

    def refuse_other_weights(self, earlier: Mapping[str, Any]) -> None:
        """Raise :class:`ConfigError` where the weights that a run began from have changed since."""
        if self.start and earlier.get("begun_from_weights") not in (None, fingerprint(self.start)):
            raise ConfigError(
                f"{self.path} began from other weights than {self.start} has now. Restore them, or "
                f"train afresh: remove {self.path}, or set runs=<folder>."
            )

    def finish(self, record: dict[str, Any]) -> None:
        """Write the record and mark the run as done."""
        write_atomically(self.path / "record.json", json.dumps(record, allow_nan=False) + "\n")
        write_atomically(self.path / "DONE", json.dumps(record["metrics"]) + "\n")
        (self.path / "FAILED").unlink(missing_ok=True)  # stale, from an earlier attempt

    def fail(self, error: BaseException) -> Path | None:
        """Write FAILED with the traceback and, as its last line, the error in a sentence, unless a
        process has failed before, which is why this one did; return its path, or None if it cannot
        be written.
        """
        path = self.path / "FAILED"
        with suppress(OSError):
            if not (path.exists() and self.begun):
                trace = "".join(traceback.format_exception(error))
                write_atomically(path, redact(f"{trace}\n{describe(error)}\n"))
            return path
        return None

    def record(self) -> dict[str, Any]:
        """Read the record of a finished run."""
        return files.read(self.path / "record.json")
