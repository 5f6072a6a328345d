"""The words of a command that runs artifacts: ``fig_addition scale=smoke seeds=0,1``."""

import math
from collections.abc import Sequence

from tape_exp.paper.artifacts import SCALES, Artifact, load, names
from tape_exp.settings.errors import ConfigError, between, one_of


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
            f"seeds=0,1,2. `tape-exp paper compare` makes a table of any models on any task."
        )
    refuse_debug(extra, "table of results")
    if not chosen:
        raise ConfigError(f"name an artifact to run, or all. Known: {', '.join(names())}.")
    if chosen == ["all"]:
        every = map(load, names())
        return [a for a in every if scale in a.scales()], scale, seeds, extra
    if "all" in chosen:
        raise ConfigError("all stands for every artifact of the scale; leave out other names.")
    artifacts = [load(name) for name in chosen]
    for artifact in artifacts:
        _check(artifact, scale, seeds, extra)
    return artifacts, scale, seeds, extra


def refuse_debug(words: Sequence[str], what: str) -> None:
    """Raise :class:`ConfigError` for a key of ``debug`` among the overrides of such a thing."""
    shortening = (w for w in words if w.startswith(("debug=", "debug.")) and w != "debug=none")
    if debug := next(shortening, None):
        raise ConfigError(f"{debug} has no place in a {what}: such runs have no record.")


def _check(artifact: Artifact, scale: str, seeds: Sequence[int], extra: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where an artifact has nothing of a scale, a seed or a key."""
    name, own = artifact.name, artifact.scales()
    if not any(map(artifact.wanted, own)):
        raise ConfigError(f"{name} shows no runs; `{artifact.command(scale)}` measures it.")
    if not artifact.wanted(scale):
        raise ConfigError(f"{name} has no runs at scale={scale}; scale={own[0]} has.")
    for seed in seeds:
        if next(artifact.configs(scale, [seed]), None) is None:
            raise ConfigError(
                f"{name} has no run of seed {seed}; `{artifact.command(scale)}` runs all it has."
            )
    kept = artifact.kept(scale)
    if wrong := [word for word in extra if word.partition("=")[0].lstrip("+") in kept]:
        raise ConfigError(
            f"{wrong[0]}: {name} sets this key of its runs itself, and names them by it."
        )


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
