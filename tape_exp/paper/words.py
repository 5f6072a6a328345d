"""The words of a command that names artifacts or models: ``fig_addition scale=smoke seeds=0,1``."""

from collections.abc import Mapping, Sequence

from tape_exp.paper.artifact import Artifact, load, names
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.plugins import names_in


def requested(words: Sequence[str]) -> tuple[list[Artifact], str, list[int], list[str]]:
    """The artifacts, scale, seeds and further overrides that the words of ``run`` ask for."""
    scale, seeds, extra = settings_of([word for word in words if "=" in word])
    if wrong := [w for w in extra if w.startswith(("task=", "model=", "peft=", "debug"))]:
        raise ConfigError(
            f"{wrong[0]}: an artifact names its tasks and models itself, and shortened runs have "
            "no record. `tape-exp paper compare` makes a table of any models on any task."
        )
    if not (chosen := [word for word in words if "=" not in word]):
        raise ConfigError(f"name an artifact to run, or all. Known: {', '.join(names())}.")
    every = [load(name) for name in (names() if chosen == ["all"] else chosen)]
    artifacts = [artifact for artifact in every if artifact.rows and scale in artifact.scales]
    if chosen != ["all"] and (without := [a for a in every if a not in artifacts]):
        command = without[0].run_command(next(iter(without[0].scales)))
        raise ConfigError(
            f"{without[0].name} has no runs at scale={scale}; `{command}` measures it."
        )
    return artifacts, scale, seeds, extra


def settings_of(words: Sequence[str]) -> tuple[str, list[int], list[str]]:
    """The values of ``scale=`` (default: smoke) and ``seeds=`` (default: 0), and other words."""
    settings, extra = split_words(words, ("scale", "seeds"))
    if wrong := [word for word in extra if word.lstrip("+").startswith("seed=")]:
        raise ConfigError(f"{wrong[0]}: this command takes seeds=, one or several as in seeds=0,1.")
    known = [*names_in("scale"), "ladder"]  # the rungs together, which only artifacts have
    one_of("scale", scale := settings.get("scale", "smoke"), known)
    seeds = settings.get("seeds", "0").split(",")
    if not all(seed.isdigit() for seed in seeds) or len({*seeds}) < len(seeds):
        raise ConfigError(
            f"seeds={settings['seeds']} must be different integers from 0, as in seeds=0,1,2."
        )
    return scale, [*map(int, seeds)], extra


def split_words(words: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of ``<key>=`` among the words of a command, and its other words."""
    pairs = [word.partition("=") for word in words]
    settings = {key: value for key, equals, value in pairs if equals and key in keys}
    return settings, ["".join(pair) for pair in pairs if not pair[1] or pair[0] not in keys]


def check_words(what: str, settings: Mapping[str, str], further: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a comparison or a search lacks its task or its models, or
    has a word that is no override.
    """
    for key, example in (("task", "task=arithmetic"), ("model", "model=rope,tape")):
        if not settings.get(key):
            raise ConfigError(f"a {what} needs {key}=, as in {example}.")
    if wrong := [w for w in further if "=" not in w or w.lstrip("+").startswith("debug")]:
        raise ConfigError(
            f"{wrong[0]} is no word of a {what}; keys are given with their value, as in "
            "task.train_digits=6."
        )
