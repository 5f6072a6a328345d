"""A run's directory: its path, its files, and the record that tables are made from.

``runs/<task>/<scale>/<model>/seed<seed>-<hash>/`` (of an adapted model ``<model>-<peft>``) holds
config.yaml, manifest.json, metrics.jsonl, log.txt, checkpoints/, artifacts/, record.json and, at
the end, DONE or FAILED. The path is a function of config and seed, never of the clock: the same
command finds the same run, goes on from its last checkpoint or says that it is done.
"""

import json
import logging
import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from tape_exp.machine.files import parse_json, remove_leftovers, write_atomically
from tape_exp.machine.preemption import signals_held_back
from tape_exp.machine.processes import first_process
from tape_exp.runs import weights
from tape_exp.runs.identity import config_hash, identity_of, shown_config
from tape_exp.runs.record import OF_MANIFEST, checked, dump_record, manifest, what_is_wrong
from tape_exp.settings import plugins
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import path_of
from tape_exp.settings.redaction import redact

log = logging.getLogger("tape_exp")
LOCK = ".lock"
LOCK_SECONDS = 10.0  # data workers of a killed process hold its lock until they notice


class FolderError(ConfigError):
    """A run's folder cannot be used now, whatever its config says."""


class RunDirectory:
    """One run on disk. Writing is atomic: a file is whole or absent, whatever kills the process.

    Raises:
        ConfigError: a symbolic link leads out of ``runs``.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.hash = config_hash(cfg)
        self.name = (
            f"{cfg.task.name}-{cfg.scale.name}-{weights.variant(cfg)}-seed{cfg.seed}-{self.hash}"
        )
        place = Path(
            cfg.task.name, cfg.scale.name, weights.variant(cfg), f"seed{cfg.seed}-{self.hash}"
        )
        self.path = path_of("runs", cfg.runs).resolve() / place
        self.checkpoints = self.path / "checkpoints"
        self.artifacts = self.path / "artifacts"
        self.metrics = self.path / "metrics.jsonl"
        for folder in (self.path, self.checkpoints, self.artifacts):
            if folder.resolve() != folder:
                raise ConfigError(
                    f"{folder} leads out of runs={cfg.runs} to {folder.resolve()}; replace the "
                    "link, or set runs=."
                )

    @property
    def done(self) -> bool:
        """Whether the run has finished, and its record is whole and its own.

        Raises:
            ConfigError: the record is there and cannot be read; it may be whole.
        """
        if not (self.path / "DONE").exists():
            return False
        try:
            record = self.record()
        except (FileNotFoundError, ValueError):
            return False
        except OSError as error:
            raise ConfigError(
                f"{self.path / 'record.json'} cannot be read ({error.strerror}); mend that, or "
                "move it away, and give the same command again."
            ) from error
        try:
            checked(record, self.path / "record.json")
        except ConfigError:
            return False
        return (record.get("run"), record.get("config_hash")) == (self.name, self.hash)

    @cached_property
    def begins_from(self) -> str | None:
        """The fingerprint of the weights that the run begins from, where it begins from a run."""
        spec = weights.wanted(self.cfg)
        return None if spec is None else weights.fingerprint(weights.find(spec, self.cfg))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands off the run, by a lock that the system releases with the process.

        Only the first process holds it. Raises :class:`ConfigError` where another command works on
        the run, or the directory cannot be written.
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
                raise FolderError(
                    f"another process works on {self.path}; wait for its end or stop it, then give "
                    "the same command again."
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
            raise FolderError(
                f"the run directory {self.path} cannot be written ({error.strerror}); set runs=<a "
                "folder that can>."
            ) from error

    def open(self, assets: Mapping[str, str]) -> None:
        """Create the directory, and write config, manifest and ``assets`` (name -> content).

        Only the first process writes. Raises :class:`ConfigError` where it cannot be written, or
        where its checkpoints belong to other assets.
        """
        if not first_process():
            return
        with self._writable():
            if self.cfg.debug.name != "none":
                self._clear()
            self._compare(assets)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.artifacts.mkdir(exist_ok=True)
            for folder in (self.path, self.artifacts):
                remove_leftovers(folder)
            if (self.path / "DONE").exists():
                log.warning("%s/record.json is missing or damaged: evaluating again.", self.path)
            for ending in ("DONE", "FAILED"):
                (self.path / ending).unlink(missing_ok=True)
            self.write("config.yaml", shown_config(self.cfg))
            self.write_json("manifest.json", self._manifest())
            for name, content in assets.items():
                self.write(name, content)

    def _compare(self, assets: Mapping[str, str]) -> None:
        """Refuse to replace what the checkpoints were trained with, before anything is written."""
        for name, content in assets.items() if self._begun else ():
            path = self.path / name
            if path.exists() and path.read_bytes() != content.encode():
                raise ConfigError(
                    f"the run's checkpoints were trained with {path}, and the config and its data "
                    "now give another one (has the corpus or a file of the config changed?). "
                    f"Restore it, remove {name} if that is what was damaged, or train afresh in "
                    "another folder: runs=<folder>."
                )
        if self._begun and self._other_weights(self._manifest_before()):
            raise ConfigError(
                f"{self.path} began from other weights than {weights.wanted(self.cfg)} has now. "
                f"Restore them, or train afresh: remove {self.path}, or set runs=<folder>."
            )

    def refuse_other_weights(self, record: dict[str, Any]) -> None:
        """Refuse the record of a run that began from weights which have changed since."""
        if self._other_weights(record):
            raise ConfigError(
                f"{self.path} is DONE, but began from other weights than "
                f"{weights.wanted(self.cfg)} has now. Restore them, or run it anew: remove "
                f"{self.path}, or set runs=<folder>."
            )

    def _other_weights(self, made: Mapping[str, Any]) -> bool:
        known = made.get("begun_from_weights")
        return known is not None and known != self.begins_from

    @property
    def _begun(self) -> bool:
        return any(self.checkpoints.glob("step*.ckpt"))

    def _manifest(self) -> dict[str, Any]:
        """Of this process; of a run that goes on, the commit and the time at which it began, the
        packages as they were then, and the commits and sources with which it went on, if they are
        others.
        """
        made = manifest(self.hash, identity_of(self.cfg))
        if self.begins_from is not None:
            made["begun_from_weights"] = self.begins_from
        if self._begun:
            began = self._manifest_before()
            if not began:
                log.warning("%s/manifest.json is missing or damaged: written anew.", self.path)
                return made
            git, here = began["git"], made["git"]
            git["dirty"] = git["dirty"] or here["dirty"]
            if here["commit"] not in (git["commit"], *git.get("later", ())):
                log.warning("The run began at another commit; its record names both.")
                git["later"] = [*git.get("later", ()), here["commit"]]
            made |= {"started": began["started"], "git": git}
            if others := plugins.changed(began.get("plugins"), identity_of(self.cfg)):
                log.warning("%s Its record names both.", others)
            if "plugins" in made:
                made["plugins"] = plugins.continued(began.get("plugins") or {}, made["plugins"])
        return made

    def _manifest_before(self) -> dict[str, Any]:
        """The manifest of a run that goes on; empty where it is missing or damaged."""
        try:
            began = parse_json((self.path / "manifest.json").read_text())
            if what_is_wrong(began, OF_MANIFEST):
                return {}
        except (OSError, ValueError):
            return {}
        return dict(began)

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
        """Write the record and mark the run as done; a signal to leave waits for both."""
        with signals_held_back():
            self.write("record.json", dump_record(record))
            self.write("DONE", json.dumps(record["metrics"]) + "\n")
        (self.path / "FAILED").unlink(
            missing_ok=True
        )  # of a process that another of an earlier command left behind

    def fail(self, error: BaseException) -> Path | None:
        """Write FAILED with the traceback, and return its path or None if it cannot be written.

        The first process that fails writes: the others fail because of it.
        """
        path = self.path / "FAILED"
        try:
            if path.exists():
                return path
            return self.write("FAILED", redact("".join(traceback.format_exception(error))))
        except OSError:
            return None

    def record(self) -> dict[str, Any]:
        """The record of a finished run."""
        return parse_json((self.path / "record.json").read_text())
