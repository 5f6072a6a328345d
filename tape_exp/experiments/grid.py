"""The overrides that name runs, the same in every command: with commas, as Hydra's sweeps.

``model=rope,tape seed=0,1 task.optim.lr=0.001`` are four runs. ``seeds=`` is ``seed=``, and of a
key that is given twice the last override counts, as Hydra has it.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from tape_exp.experiments.bases import (
    add,
    add_with_bases,
    begins_from_another,
    find_folder,
    find_folders,
)
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.runs.finished_runs import NoRunError
from tape_exp.runs.identity import NOT_COMPUTED, section_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.folders import CONF
from tape_exp.settings.plugins import names_in


def specs_of_grid(overrides: Sequence[str]) -> list[RunSpec]:
    """List a run for each combination of the overrides' values, after the runs that they begin
    from.

    Raises:
        ConfigError: an override is wrong, or a run cannot start.
    """
    specs: dict[str, RunSpec] = {}
    for combination in combinations(overrides):
        spec = RunSpec(combination, compose_config(combination))
        with suppress(NoRunError):
            find_folder(spec)
        if begins_from_another(spec):
            add(specs, spec)
        else:
            add_with_bases(specs, spec)
    find_folders([*specs.values()])
    return sorted(specs.values(), key=lambda spec: spec.level)


def run_overrides(arguments: Sequence[str]) -> list[str]:
    """List the arguments of a command that name runs, as Hydra has them: without options of sbatch
    (``slurm.mem=8G``), ``seeds=`` as ``seed=``, and only the last override of each key.

    >>> run_overrides(["model=rope", "seeds=0,1", "slurm.mem=8G", "model=tape"])
    ['seed=0,1', 'model=tape']

    Raises:
        ConfigError: both ``seed=`` and ``seeds=`` are given.
    """
    seeds: dict[str, str] = {}  # by spelling
    last: dict[str, str] = {}
    for override in arguments:
        if override.startswith("slurm."):
            continue
        key, equals, value = override.partition("=")
        if key in ("seed", "seeds") and equals:
            seeds.setdefault(key, override)
            key = "seed"
            override = f"seed={value}"
        if re.match(r"\+(?!\+)", override):  # a key that Hydra refuses to add twice
            key = override
        last.pop(key, None)
        last[key] = override
    if len(seeds) > 1:
        raise ConfigError(
            f"{seeds['seed']} and {seeds['seeds']} are of one key: leave one of them out."
        )
    return [*last.values()]


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """List every combination of the values of a grid, each once.

    >>> combinations(["model=rope,tape", "seed=0"])
    [['model=rope', 'seed=0'], ['model=tape', 'seed=0']]
    """
    choices = []
    for override in parsed(overrides):
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in values_of(override)])
        else:
            choices.append([str(override.input_line)])
    return [list(choice) for choice in dict.fromkeys(product(*choices))]


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides as Hydra does."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()  # knows what glob() can choose
        return OverridesParser.create(loader).parse_overrides(list(overrides))


def values_of(override: Override) -> list[str]:
    """List the values of an override, as they are written."""
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_string_iterator()]
    return [str(override.input_line).partition("=")[2]]


def take(overrides: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the values of some keys among overrides, each once, and the other overrides.

    >>> take(["model=rope,tape", "task=c4", "trainer=cpu"], ["model", "scale"])
    ({'model': ['rope', 'tape']}, ['task=c4', 'trainer=cpu'])
    """
    of_keys = [override for override in overrides if override.partition("=")[0] in keys]
    values = {}
    for override in parsed(of_keys):
        values[override.key_or_group] = list(dict.fromkeys(values_of(override)))
    return values, [override for override in overrides if override not in of_keys]


def scale_and_seeds(
    overrides: Sequence[str], further_scales: Sequence[str] = ()
) -> tuple[str, list[int], list[str]]:
    """Take ``scale=`` (default: smoke) and ``seed=`` (default: 0) out of overrides; a command may
    know further scales than the configs of ``conf/scale``.

    >>> scale_and_seeds(["scale=small", "seed=0,1", "trainer=cpu"])
    ('small', [0, 1], ['trainer=cpu'])
    """
    values, others = take(overrides, ("scale", "seed"))
    scales = values.get("scale", ["smoke"])
    if len(scales) > 1:
        raise ConfigError(f"scale={','.join(scales)}: this command takes one scale.")
    one_of("scale", scales[0], [*names_in("scale"), *further_scales])
    seeds = values.get("seed", ["0"])
    if not all(seed.isdigit() for seed in seeds):
        raise ConfigError(f"seed={','.join(seeds)} must be integers from 0, as in seed=0,1,2.")
    return scales[0], [*map(int, seeds)], others


def axes(overrides: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the keys that have several values, with these, and the overrides that have one.

    >>> axes(["task=c4", "task.optim.lr=0.001,0.003"])
    ({'task.optim.lr': ['0.001', '0.003']}, ['task=c4'])
    """
    several: dict[str, list[str]] = {}
    fixed = []
    for text, override in zip(overrides, parsed(overrides), strict=True):
        if override.is_sweep_override():
            several[override.get_key_element()] = list(dict.fromkeys(values_of(override)))
        else:
            fixed.append(text)
    return several, fixed


def as_flags(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Write ``metrics=a,b`` among the arguments of a command as the option ``--metrics=a,b``.

    >>> as_flags(["model=rope", "metrics=val/loss"], ["metrics"])
    ['model=rope', '--metrics=val/loss']
    """
    flags = []
    for argument in arguments:
        is_option = argument.partition("=")[0] in names
        flags.append(f"--{argument}" if is_option else argument)
    return flags


def check_task_and_models(
    command: str, choices: Mapping[str, Sequence[str]], others: Sequence[str]
) -> None:
    """Raise :class:`ConfigError` where a comparison or a search lacks its task or its models, or
    has an argument that is no override.

    Args:
        command: what it is called in the error.
        choices: the values of ``task`` and ``model``.
        others: the further overrides.
    """
    for key, example in (("task", "task=arithmetic"), ("model", "model=rope,tape")):
        if not any(choices.get(key, ())):
            raise ConfigError(f"a {command} needs {key}=, as in {example}.")
    if len(choices["task"]) > 1:
        raise ConfigError(f"task={','.join(choices['task'])}: a {command} is of one task.")
    for argument in others:
        if "=" not in argument or argument.lstrip("+").startswith("debug"):
            raise ConfigError(
                f"{argument} is no word of a {command}; keys are given with their value, as in "
                "task.train_digits=6."
            )


def without_places(overrides: Sequence[str]) -> list[str]:
    """List the overrides that say what a run computes, not where it is, in one order.

    >>> without_places(["trainer=cpu", "task.optim.lr=0.1", "runs=/scratch", "model=rope"])
    ['model=rope', 'task.optim.lr=0.1']
    """
    return sorted(word for word in overrides if section_of(word) not in NOT_COMPUTED)
