"""The runs that the words of a sweep name: overrides with commas, or artifacts."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from tape_exp.launch.slurm import SweepRun
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF


def runs_of(words: Sequence[str]) -> list[SweepRun]:
    """The runs that the words name, each after the run that it starts from.

    Args:
        words: overrides, ``model=rope,tape seed=0,1``; or names of artifacts, ``scale=``,
            ``seeds=`` and overrides, as ``tape-exp paper run`` takes them.

    Raises:
        ConfigError: a word is wrong, or a run cannot start.
    """
    words = [word for word in words if not word.startswith("slurm.")]
    if not any(word.isidentifier() for word in words):
        composed = [(choice, compose_config(choice)) for choice in combinations(words)]
        return [SweepRun(choice, RunDirectory(cfg).path, cfg) for choice, cfg in composed]
    from tape_exp.paper import runner  # imports matplotlib
    from tape_exp.paper.words import requested

    jobs: dict[str | None, SweepRun] = {}
    for key, run in runner.jobs_of(*requested(words), recorded=True).items():
        level = jobs[run.needs].level + 1 if run.needs else 0
        jobs[key] = SweepRun(run.words, None, run.cfg, run.recorded, level)
        with suppress(ConfigError):  # the run that it starts from is not finished
            jobs[key].folder = RunDirectory(run.cfg).path
    return sorted(jobs.values(), key=lambda job: job.level)


def sweep_folder(jobs: Sequence[SweepRun]) -> Path:
    """``<runs>/.sweeps/<name>``, where the name is a function of the runs and of this place."""
    sweeps = Path(jobs[0].cfg.runs).expanduser().resolve() / ".sweeps"
    text = "\n".join([str(sweeps), *(job.line for job in jobs)])
    return sweeps / hashlib.sha256(text.encode()).hexdigest()[:10]


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Every combination of the values of a grid, which are written as for ``train.py -m``."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()  # knows what glob() can choose
        choices = [
            [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
            if override.is_sweep_override()
            else [str(override.input_line)]
            for override in OverridesParser.create(loader).parse_overrides(list(words))
        ]
    return [list(choice) for choice in dict.fromkeys(product(*choices))]
