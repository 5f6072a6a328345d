"""The words of a command that runs artifacts: ``fig_addition scale=smoke seeds=0,1``."""

import math
from collections.abc import Sequence

from tape_exp.paper.artifacts import SCALES, Artifact, load, names
from tape_exp.settings.errors import ConfigError, between, one_of
from tape_exp.settings.folders import told


def requested(words: Sequence[str]) -> tuple[list[Artifact], str, list[int], list[str]]:
    """The artifacts, scale, seeds and further overrides that the words of ``run`` ask for.

    Raises:
        ConfigError: there is no artifact among the words, or one of them is wrong.
    """
    chosen = [w for w in words if "=" not in w]
    scale, seeds, extra = settings_of([w for w in words if "=" in w])
    if wrong := [word for word in extra if word.startswith(("seed=", "task=", "model=", "peft="))]:
        raise ConfigError(
            f"{wrong[0]}: an artifact names its tasks and models itself, and seeds are given as "
            f"seeds=0,1,2. `{told('paper compare')}` makes a table of any models on any task."
        )
    if not chosen:
        raise ConfigError(f"name an artifact to run, or all. Known: {', '.join(names())}.")
    artifacts = [load(name) for name in (names() if chosen == ["all"] else chosen)]
    for artifact in artifacts if chosen != ["all"] else []:
        if next(artifact.configs(scale, seeds), None) is None:
            raise ConfigError(
                f"{artifact.name} has no runs at scale={scale}; scale={artifact.scales()[0]} has."
            )
    return artifacts, scale, seeds, extra


def settings_of(words: Sequence[str]) -> tuple[str, list[int], list[str]]:
    """The value of ``scale=`` (default: smoke), that of ``seeds=`` (default: 0), and other words.

    Raises:
        ConfigError: the scale is not known, the seeds are no integers from 0, or a word is given
            twice.
    """
    settings, extra = split_words(words, ("scale", "seeds"))
    scale = settings.get("scale", "smoke")
    one_of("scale", scale, SCALES)
    try:
        seeds = [int(s) for s in settings.get("seeds", "0").split(",")]
    except ValueError as error:
        raise ConfigError(
            f"seeds={settings['seeds']} must be integers separated by commas, as in seeds=0,1,2."
        ) from error
    between("", 0, math.inf, seeds=min(seeds))
    if len({*seeds}) < len(seeds):
        raise ConfigError(f"seeds={settings['seeds']} names a seed twice; name each once.")
    return scale, seeds, extra


def split_words(words: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of ``<key>=`` among the words of a command, and its other words.

    Raises:
        ConfigError: a key is given twice.
    """
    given: dict[str, str] = {}
    further = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in keys:
            further.append(word)
        elif key in given:
            raise ConfigError(f"{key}={given[key]} and {word} exclude each other; give one.")
        else:
            given[key] = value
    return given, further
