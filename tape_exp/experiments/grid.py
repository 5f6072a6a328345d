"""The words that name runs, the same in every command: overrides with commas, as Hydra's sweeps.

``model=rope,tape seed=0,1 task.optim.lr=0.001`` are four runs. ``seeds=`` is ``seed=``, and of a
key that is given twice the last word counts, as Hydra has it.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from tape_exp.experiments.bases import add, locate, locate_all, with_bases
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.runs.finished_runs import NoRunError
from tape_exp.runs.identity import NOT_COMPUTED, section_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.folders import CONF
from tape_exp.settings.plugins import names_in


def specs_of_grid(words: Sequence[str]) -> list[RunSpec]:
    """List a run for each combination of the words' values, after the runs that they begin from.

    Raises:
        ConfigError: a word is wrong, or a run cannot start.
    """
    specs: dict[str, RunSpec] = {}
    for overrides in combinations(words):
        spec = RunSpec(overrides, compose_config(overrides))
        with suppress(NoRunError):
            locate(spec)
        if begins_from_another(spec):
            add(specs, spec)
        else:
            with_bases(specs, spec)
    locate_all([*specs.values()])
    return sorted(specs.values(), key=lambda spec: spec.level)


def begins_from_another(spec: RunSpec) -> bool:
    """Say whether a run begins from one that is there, and is not the one that would be made for
    it: a run of the same task with other settings.
    """
    own: dict[str, RunSpec] = {}
    with_bases(own, replace(spec))
    *made, _ = own.values()
    locate_all(made)
    return spec.folder is not None and not all(base.done for base in made)


def run_words(words: Sequence[str]) -> list[str]:
    """List the words of a command that name runs, as Hydra has them: without those for sbatch
    (``slurm.mem=8G``), ``seeds=`` as ``seed=``, and only the last word of each key.

    Raises:
        ConfigError: both ``seed=`` and ``seeds=`` are given.
    """
    given = [word for word in words if not word.startswith("slurm.")]
    seed = [word for word in given if word.startswith("seed=")]
    seeds = [word for word in given if word.startswith("seeds=")]
    if seed and seeds:
        raise ConfigError(f"{seed[0]} and {seeds[0]} are of one key: leave one of them out.")
    last: dict[str, str] = {}
    for word in given:
        plain = f"seed={word[6:]}" if word.startswith("seeds=") else word
        key = plain.partition("=")[0]
        if re.match(r"\+(?!\+)", plain):  # a key that Hydra refuses to add twice
            key = plain
        last.pop(key, None)
        last[key] = plain
    return [*last.values()]


def combinations(words: Sequence[str]) -> list[list[str]]:
    """List every combination of the values of a grid, each once."""
    choices = []
    for override in parsed(words):
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in values_of(override)])
        else:
            choices.append([str(override.input_line)])
    return [list(choice) for choice in dict.fromkeys(product(*choices))]


def parsed(words: Sequence[str]) -> list[Override]:
    """List the words as Hydra reads them."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()  # knows what glob() can choose
        return OverridesParser.create(loader).parse_overrides(list(words))


def values_of(override: Override) -> list[str]:
    """List the values of a word, as they are written."""
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_string_iterator()]
    return [str(override.input_line).partition("=")[2]]


def take(words: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the values of some keys among the words of a command, each once, and its other words."""
    chosen = [word for word in words if word.partition("=")[0] in keys]
    values = {}
    for override in parsed(chosen):
        values[override.key_or_group] = list(dict.fromkeys(values_of(override)))
    return values, [word for word in words if word not in chosen]


def scale_and_seeds(words: Sequence[str]) -> tuple[str, list[int], list[str]]:
    """Take ``scale=`` (default: smoke) and ``seed=`` (default: 0) out of the words."""
    values, others = take(words, ("scale", "seed"))
    scales = values.get("scale", ["smoke"])
    if len(scales) > 1:
        raise ConfigError(f"scale={','.join(scales)}: this command takes one scale.")
    one_of("scale", scales[0], [*names_in("scale"), "ladder"])  # all its sizes
    seeds = values.get("seed", ["0"])
    if not all(seed.isdigit() for seed in seeds):
        raise ConfigError(f"seed={','.join(seeds)} must be integers from 0, as in seed=0,1,2.")
    return scales[0], [*map(int, seeds)], others


def axes(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the keys that have several values, with these, and the words that have one."""
    several: dict[str, list[str]] = {}
    fixed = []
    for word, override in zip(words, parsed(words), strict=True):
        if override.is_sweep_override():
            several[override.get_key_element()] = list(dict.fromkeys(values_of(override)))
        else:
            fixed.append(word)
    return several, fixed


def as_flags(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """List the words of a command with ``metrics=a,b`` as the option ``--metrics=a,b``."""
    return [f"--{word}" if word.partition("=")[0] in names else word for word in words]


def check_words(what: str, settings: Mapping[str, Sequence[str]], further: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a comparison or a search lacks its task or its models, or
    has a word that is no override.
    """
    for key, example in (("task", "task=arithmetic"), ("model", "model=rope,tape")):
        if not any(settings.get(key, ())):
            raise ConfigError(f"a {what} needs {key}=, as in {example}.")
    if len(settings["task"]) > 1:
        raise ConfigError(f"task={','.join(settings['task'])}: a {what} is of one task.")
    if wrong := [w for w in further if "=" not in w or w.lstrip("+").startswith("debug")]:
        raise ConfigError(
            f"{wrong[0]} is no word of a {what}; keys are given with their value, as in "
            "task.train_digits=6."
        )


def without_places(overrides: Sequence[str]) -> list[str]:
    """List those that say what a run computes, not where it is, in one order."""
    return sorted(word for word in overrides if section_of(word) not in NOT_COMPUTED)
