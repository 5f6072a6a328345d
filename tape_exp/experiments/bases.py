"""Runs of a set: each once, after the run that it begins from, and in which folder."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress

from tape_exp.experiments.run_spec import RunSpec
from tape_exp.runs import starting_weights
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.identity import identity_of
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError

# Sections and keys that say what one run is; those of its base are others.
OWN = ("task", "model", "peft", "checkpoint", "scale", "seed", "rerun")


def add_with_bases(specs: dict[str, RunSpec], spec: RunSpec, purpose: str = "") -> RunSpec:
    """Add a run to a set, after the run that it begins from, which comes after its own base.

    Args:
        specs: the set, by :func:`key_of`.
        purpose: what the run is for, in the titles of its bases; its own title by default.

    Returns:
        The run of the set: ``spec``, or an equal one that was there.
    """
    purpose = purpose or spec.title
    base = spec_of_base(spec)
    if base is not None:
        base.title = f"{base.config.task.name} of {base.config.model.name}, for {purpose}"
        spec.base = add_with_bases(specs, base, purpose)
    return add(specs, spec)


def add(specs: dict[str, RunSpec], spec: RunSpec) -> RunSpec:
    """Add a run unless it is among the specs, and return the one that is; it needs to run where
    one of the two does.
    """
    same = specs.setdefault(key_of(spec), spec)
    same.recorded &= spec.recorded
    same.metrics |= spec.metrics
    return same


def key_of(spec: RunSpec) -> str:
    """Identify a run and the place of its folder: two specs of one key are one run."""
    return json.dumps([identity_of(spec.config), spec.config.runs], sort_keys=True)


def spec_of_base(spec: RunSpec) -> RunSpec | None:
    """Find the run that would be made for a run to begin from: of the task that its config names in
    ``checkpoint``; None where it names none.

    The config says task, scale, seed and ``peft`` of the base. The run's overrides hold for it as
    far as they are :func:`shared` or of the same model. A base that is to be adapted (``peft``) was
    itself trained from nothing: it has the model that ``peft.base`` names, unchanged.
    """
    cfg = spec.config
    task = cfg.checkpoint
    if task is None or not starting_weights.is_task(task):
        return None
    model = f"model={cfg.model.name}"
    of_model = []
    of_all = []
    for override in spec.overrides:
        if override.startswith("model="):
            model = override
        elif changes_model(override):
            of_model.append(override)
        elif shared(override):
            of_all.append(override)
    of_all += [f"task={task}", f"scale={cfg.scale.name}", f"seed={cfg.seed}"]
    overrides = [model, f"peft={cfg.peft.name}", *of_model, *of_all]
    config = compose_config(overrides)
    if cfg.peft.name != "none" and config.checkpoint is None:
        overrides = [f"model={cfg.peft.base}", *of_all]
        config = compose_config(overrides)
    return RunSpec(overrides, config, recorded=spec.recorded, results=spec.results)


def shared(override: str) -> bool:
    """Say whether an override of a run holds for all runs that it begins from: it is of none of its
    :data:`OWN` keys, or says where its text comes from.

    >>> shared("trainer=cpu"), shared("task.text.path=/books"), shared("scale.text=local")
    (True, True, True)
    >>> shared("++task.optim.lr=0.1"), shared("text@task.text=pg19"), shared("seed=1")
    (False, False, False)
    """
    group, _, package = key_of_override(override).partition("@")
    section, _, key = (package or group).partition(".")
    names_text = key.startswith("text") and not package
    return section not in OWN or names_text


def changes_model(override: str) -> bool:
    """Say whether an override changes the model or its adaptation, and does not stretch positions.

    >>> changes_model("model.reach=4"), changes_model("peft.rank=8"), changes_model("model=rope")
    (True, True, False)
    >>> changes_model("+model.scaling={method: yarn, factor: 2}")  # the base has seen no more text
    False
    """
    section, _, key = key_of_override(override).partition(".")
    if section == "model":
        return key != "" and not key.startswith("scaling")
    return section == "peft" and key != ""


def key_of_override(override: str) -> str:
    """Return the key that an override sets or removes.

    >>> key_of_override("++task.optim.lr=0.1"), key_of_override("~logger")
    ('task.optim.lr', 'logger')
    """
    return override.lstrip("+~").partition("=")[0]


def begins_from_another(spec: RunSpec) -> bool:
    """Say whether a run that can begin does so from another run than the ones that would be made
    for it: from a finished run of the same task, whose settings differ.
    """
    if spec.folder is None:
        return False
    return not all(base.done for base in specs_of_bases(spec))


def specs_of_bases(spec: RunSpec) -> Iterator[RunSpec]:
    """Yield the run that would be made for a run to begin from, then that one's base, and so on."""
    base = spec_of_base(spec)
    while base is not None:
        find_folders([base])
        yield base
        base = spec_of_base(base)


def find_folders(specs: Sequence[RunSpec]) -> None:
    """Find the folders of runs; that of one which starts from an unfinished run is not known."""
    for spec in specs:
        if spec.folder is None:
            with suppress(ConfigError):
                find_folder(spec)


def find_folder(spec: RunSpec) -> None:
    """Find the folder of a run.

    Raises:
        ConfigError: the run that it starts from is not finished.
    """
    spec.folder = RunDirectory(spec.config).path
