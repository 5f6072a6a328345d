"""The weights that a run begins from: which file ``checkpoint=`` means, and what is in it.

A checkpoint is a ``.ckpt`` of ours, with all weights or, where the run adapted a base model
(``peft=``), with the trained ones only; or the folder of a Llama in Hugging Face's format.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.files import sha256, zip_is_sound
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_yaml
from tape_exp.settings.folders import path_of
from tape_exp.settings.naming import choice_of
from tape_exp.settings.plugins import yaml_of


def init_checkpoint(cfg: DictConfig) -> str | None:
    """What a run begins from: the config's ``checkpoint``, or the task's own ``init_from``."""
    return cfg.checkpoint or cfg.task.get("init_from")


def variant(cfg: DictConfig) -> str:
    """The model and how it was adapted: ``tape``, ``rope-lora``."""
    return cfg.model.name if cfg.peft.name == "none" else f"{cfg.model.name}-{cfg.peft.name}"


def is_task(spec: str) -> bool:
    """Whether ``checkpoint=<spec>`` is a task's name, which precedes a file of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


def find(spec: str, cfg: DictConfig) -> Path:
    """The checkpoint that a config names: a file, a run's newest, a task's run, or a Llama.

    A task's name stands for its finished run of the same model, ``peft``, scale and seed below
    ``runs``, or, where a base model is adapted, for the base's run. ``owner/name`` is a repository
    of the Hugging Face hub.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if (path := resolve(spec)) is not None:
        return path
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        from tape_exp.models import llama

        return llama.fetch(spec, f"checkpoint={spec}, which is no folder here")
    models = [variant(cfg)] if cfg.peft.name == "none" else [variant(cfg), cfg.peft.base]
    places = [path_of("runs", cfg.runs) / spec / cfg.scale.name / model for model in models]
    runs = next(filter(None, (_finished_runs(place, cfg) for place in places)), [])
    if len(runs) == 1:
        return _last_checkpoint(runs[0])
    if runs:
        choices = ", ".join(f"checkpoint={run}" for run in runs)
        raise ConfigError(f"checkpoint={spec}: there are {len(runs)} finished runs, {choices}.")
    raise ConfigError(
        f"checkpoint={spec} is neither a file, nor the folder of a run or of a Llama, nor a task "
        f"with a finished run of seed {cfg.seed} in {' or '.join(map(str, places))}; train it."
    )


def resolve(spec: str | None) -> Path | None:
    """The checkpoint, or the Llama, at a path; None for a name and for what is not there."""
    path = path_of("checkpoint", spec or "")
    if spec is None or not path.exists() or (path.is_dir() and is_task(spec)):
        return None
    is_llama = (path / "config.json").is_file()
    return path if path.is_file() or is_llama else _last_checkpoint(path)


def _last_checkpoint(run: Path) -> Path:
    saved = sorted((run / "checkpoints").glob("step*.ckpt"))
    if not saved:
        raise ConfigError(f"checkpoint={run} is neither a Llama nor a run with checkpoints.")
    return saved[-1]


def _finished_runs(place: Path, cfg: DictConfig) -> list[Path]:
    """The finished runs of the seed in a folder, except those of ``debug=``. Of several, those on
    the same text count, and among these the unchanged task's.
    """
    done = sorted(place.glob(f"seed{cfg.seed}-*/DONE"))
    configs = {path.parent: stored_config(path.with_name("config.yaml")) for path in done}
    runs = [run for run, stored in configs.items() if stored.debug.name == "none"]
    for criterion in (lambda stored: stored.scale.text == cfg.scale.text, _has_default_task):
        if len(runs) > 1:
            runs = [run for run in runs if criterion(configs[run])] or runs
    return runs


def _has_default_task(stored: Any) -> bool:
    """Whether the task of a run's config is what its choices compose to."""
    from tape_exp.settings.compose import compose_config  # imports Hydra

    words = [f"task={choice_of('task', stored.task.name)}", f"scale={stored.scale.name}"]
    default = compose_config([*words, f"scale.text={stored.scale.text}"]).task
    return OmegaConf.to_container(default, resolve=True) == OmegaConf.to_container(stored.task)


def stored_config(path: Path) -> Any:
    """The config.yaml of a run, which may be another user's: values, with nothing to resolve.

    Raises:
        ConfigError: it cannot be read, or refers to something outside of itself.
    """
    cfg = read_yaml(path, "name another run")
    if not isinstance(cfg, DictConfig) or "${" in OmegaConf.to_yaml(cfg):
        raise ConfigError(f"{path} is not a config that a run wrote; name another run.")
    return cfg


def companion(checkpoint: Path, name: str) -> Path | None:
    """A file in the folder of the checkpoint's run, or of the Llama, if it is there."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent.parent) / name
    return path if path.is_file() else None


def run_config(checkpoint: Path) -> Any:
    """The config of the run that wrote a checkpoint; None of a Llama or a file outside of runs."""
    path = None if checkpoint.is_dir() else companion(checkpoint, "config.yaml")
    return stored_config(path) if path else None


def adapted_config(checkpoint: Path) -> Any:
    """The config of the run that wrote a checkpoint, if that run adapted a base model."""
    cfg = run_config(checkpoint)
    return cfg if cfg is not None and cfg.peft.name != "none" else None


def base_of(checkpoint: Path) -> Path:
    """The checkpoint from which an adapted run began; any other one is a base itself."""
    cfg = adapted_config(checkpoint)
    if cfg is None:
        return checkpoint
    cfg.runs = str(checkpoint.parents[5])
    try:
        return find(init_checkpoint(cfg) or "", cfg)
    except ConfigError as error:
        raise ConfigError(f"the base of the adapted {checkpoint} is missing: {error}") from error


def trained_length(checkpoint: Path) -> int | None:
    """The longest row that the weights were trained on, where their run or the Llama says so."""
    if checkpoint.is_dir():
        from tape_exp.models import llama

        return llama.read_config(checkpoint).max_positions
    cfg = run_config(checkpoint)
    return cfg and cfg.task.get("train_length")


def trained_tokenizer(checkpoint: Path) -> str | None:
    """The fingerprint of the tokenizer that a checkpoint was trained with, where it says so."""
    content = {} if checkpoint.is_dir() else read_checkpoint(checkpoint)
    tasks = (value for value in content.values() if isinstance(value, dict))
    return next((task["tokenizer"] for task in tasks if "tokenizer" in task), None)


def title(checkpoint: Path) -> str:
    """The run's name and the step, or the name and a fingerprint of a file outside of runs."""
    if checkpoint.is_dir():
        from tape_exp.models import llama

        return f"{checkpoint.name}-{llama.fingerprint(checkpoint)[:10]}"
    checkpoint = checkpoint.resolve()  # a link may lead to another run tomorrow
    if companion(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def fingerprint(checkpoint: Path) -> str | None:
    """Sixteen hexadecimal digits of a run's weights, and of those of the base that they adapt.

    The title says which run it is, not what is in it: a run that was removed and trained again on
    other text has the same one. None where the title says both: of a Llama, or of a file outside
    of runs.
    """
    if checkpoint.is_dir() or companion(checkpoint.resolve(), "config.yaml") is None:
        return None
    return _hash_of_weights(checkpoint.resolve(), checkpoint.stat().st_mtime_ns)


@cache
def _hash_of_weights(path: Path, modified: int) -> str:
    import torch

    content = read_checkpoint(path)
    digest = hashlib.sha256(str(content.get("base_weights")).encode())
    for name, value in sorted(content["state_dict"].items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds, mapped into memory: tensors and plain values, nothing that runs.

    Raises:
        ConfigError: it is no checkpoint, or damaged: the checksums of its zip do not fit.
    """
    return _read(checkpoint.resolve(), checkpoint.stat().st_mtime_ns)


@cache  # checking the sums reads the whole file
def _read(path: Path, modified: int) -> dict[str, Any]:
    import torch

    try:
        if not zip_is_sound(path):
            raise ValueError("its checksums do not fit")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        dict(content["state_dict"])
    except Exception as error:  # torch raises whatever the broken content leads to
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{path} is damaged or not a checkpoint ({reason}); name another one, such as the one "
            "before it."
        ) from error
    return content
