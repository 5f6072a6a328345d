"""The runs that a sweep names: overrides with commas, as for ``train.py -m``, or artifacts."""

import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from tape_exp.paper.artifacts import Artifact
from tape_exp.paper.runner import named
from tape_exp.paper.words import requested
from tape_exp.runs import weights
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config, explain, register
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF, path_of
from tape_exp.settings.overrides import words_of
from tape_exp.settings.schema import check
from tape_exp.settings.targets import refuse_secrets

MOST = 10_000  # runs of a sweep; SLURM's arrays have a few thousand


@dataclass
class Job:
    """One run of a sweep.

    Args:
        words: its overrides; ``tape-exp train <words>`` is the run.
        level: 0 of a run that needs no other of the sweep, else one more than the last run that it
            begins from.
        recorded: an artifact needs it no more: it has a record, or all that begins from it has.
    """

    words: list[str]
    level: int = 0
    recorded: bool = False
    _cfg: DictConfig | None = field(default=None, repr=False, compare=False)

    @cached_property
    def cfg(self) -> DictConfig:
        """Its config. Raises :class:`ConfigError` where the words are wrong."""
        return compose_config(self.words) if self._cfg is None else self._cfg

    @property
    def line(self) -> str:
        """The words as a line of the shell's."""
        return shlex.join(self.words)

    def directory(self) -> RunDirectory:
        """Where it runs; a :class:`ConfigError` while the run that it begins from is unfinished."""
        return RunDirectory(weights.adopt(self.cfg))

    def place(self) -> RunDirectory | None:
        """Where it runs, or nothing while the run that it begins from is not finished."""
        try:
            return self.directory()
        except ConfigError:
            return None

    @property
    def done(self) -> bool:
        """Whether it is finished, or recorded."""
        place = self.place()
        return self.recorded or (place is not None and place.done)


def jobs_of(words: Sequence[str]) -> list[Job]:
    """Every run that the words name, those that others begin from first.

    Args:
        words: overrides, ``model=rope,tape seed=0,1``, of which those of ``hydra`` are left out; or
            names of artifacts, ``scale=``, ``seeds=`` and further overrides, as ``python -m
            tape_exp.paper run`` takes them.

    Raises:
        ConfigError: a word is wrong, or a run cannot begin.
    """
    refuse_secrets(words)
    for word in words:
        refuse_breaks(word)
    for word in words:
        if word.startswith("hydra") and not re.match(r"hydra(\.launcher\.|/launcher=slurm$)", word):
            raise ConfigError(
                f"{word} has no effect on a sweep: of Hydra's own keys only hydra.launcher.… does."
            )
    words = [word for word in words if not word.startswith("hydra")]
    if any(re.fullmatch(r"\w+", word) for word in words):
        return _of_artifacts(*requested(words))
    jobs = [Job(choice) for choice in combinations(words)]
    (line, times), *_ = Counter(job.line for job in jobs).most_common(1)
    if times > 1:
        raise ConfigError(f"{shlex.join(words)} names the run `{line}` twice; name each once.")
    for job in jobs:
        check(job.cfg)
        job.directory()
    return jobs


def refuse_breaks(text: str) -> None:
    """Raise :class:`ConfigError` where a text does not fit on one line of a sweep's files."""
    if not text.isprintable():
        raise ConfigError(
            f"{text!r} holds a line break or another control character, which the files of a sweep "
            "cannot keep; write the value without it."
        )


def combinations(words: Sequence[str]) -> list[list[str]]:
    """The overrides of every run, expanded as Hydra's basic sweeper does it."""
    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(words))
            sweeps = [o for o in overrides if o.is_sweep_override()]
            count = math.prod(sum(1 for _ in islice(o.sweep_iterator(), MOST + 1)) for o in sweeps)
            if count > MOST:
                raise ConfigError(f"the words name more than {MOST:,} runs; name fewer at a time.")
            return BasicSweeper.split_arguments(overrides, None)[0]
    except HydraException as error:
        raise ConfigError(explain(error, words)) from error


def _of_artifacts(
    artifacts: Sequence[Artifact], scale: str, seeds: Sequence[int], extra: Sequence[str]
) -> list[Job]:
    """The runs of artifacts and those they begin from; recorded ones keep their array numbers."""
    jobs: list[Job] = []
    levels: dict[str | None, int] = {None: -1}
    for key, run in named(artifacts, scale, seeds, extra).items():
        check(run.cfg)
        levels[key] = levels[run.needs] + 1
        jobs.append(Job(overrides_of(run.cfg), levels[key], run.recorded, run.cfg))
        refuse_breaks(jobs[-1].line)
    return sorted(jobs, key=lambda job: job.level)


def overrides_of(cfg: DictConfig) -> list[str]:
    """The overrides that compose a config, all of it."""
    wanted: Any = OmegaConf.to_container(cfg, resolve=True)
    words = words_of(wanted, _composed)
    assert _composed(*words) == wanted, f"{words} do not compose the config"
    return words


@cache
def _composed(*words: str) -> dict[str, Any]:
    composed: Any = OmegaConf.to_container(compose_config(words), resolve=True)
    return composed


def folder_of(jobs: Sequence[Job]) -> Path:
    """Where a sweep keeps its script, its runs' overrides and their logs:
    ``<runs>/.sweeps/<name>``.

    The name, ten hexadecimal digits, is a function of the runs and of the place: the same grid
    below another folder is another sweep in SLURM's queue.
    """
    sweeps = path_of("runs", jobs[0].cfg.runs).resolve() / ".sweeps"
    text = "\n".join([str(sweeps), *(job.line for job in jobs)])
    return sweeps / hashlib.sha256(text.encode()).hexdigest()[:10]
