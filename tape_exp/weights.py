"""The weights that a run begins from: which file ``checkpoint=`` means, and how a model takes it up."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.config import ConfigError
from tape_exp.files import sha256


def wanted(cfg: DictConfig) -> str | None:
    """What the config says to begin from: ``checkpoint``, or the task's own ``init_from``."""
    return cfg.checkpoint or cfg.task.get("init_from")


def find(spec: str, cfg: DictConfig) -> Path:
    """The checkpoint that ``checkpoint=<spec>`` means: a file, the newest of a run's folder, or a task's finished run.

    A task's name stands for its run of the same model, scale and seed below ``runs``.

    Raises:
        ConfigError: there is none, or there are several.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        place = Path(cfg.runs).expanduser() / spec / cfg.scale.name / cfg.model.name
        finished = [done.parent for done in sorted(place.glob(f"seed{cfg.seed}-*/DONE"))]
        if len(finished) > 1:
            raise ConfigError(
                f"checkpoint={spec}: {len(finished)} finished runs of this model, scale and seed lie in {place}; name one: "
                + ", ".join(f"checkpoint={f}" for f in finished)
            )
        if not finished:
            raise ConfigError(
                f"checkpoint={spec} is neither a file nor a run's folder, and no finished run of a task of that name lies "
                f"in {place}. To make it: python train.py task={spec} model={cfg.model.name} scale={cfg.scale.name} "
                f"seed={cfg.seed}."
            )
        path = finished[0]
    found = sorted((path / "checkpoints").glob("step*.ckpt"))
    if not found:
        raise ConfigError(f"checkpoint={spec}: {path} is not the folder of a run with checkpoints.")
    return found[-1]


def companion(checkpoint: Path, name: str) -> Path | None:
    """A file that the checkpoint's run keeps in its folder, if it does."""
    path = checkpoint.parent.parent / name
    return path if path.is_file() else None


def title(checkpoint: Path) -> str:
    """The run's name and the step, or of a file elsewhere its own name and the beginning of its SHA-256."""
    if companion(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def load_weights(decoder: Any, checkpoint: Path) -> None:
    """Give the decoder the weights of a checkpoint.

    Raises:
        ConfigError: the file is damaged, or of another model or size; the sentence says which key of the config to change.
    """
    state = _content(checkpoint)["state_dict"]
    weights = {key.removeprefix("decoder.").removeprefix("_orig_mod."): value for key, value in state.items()}
    own = decoder.state_dict()
    kept = companion(checkpoint, "config.yaml")
    hint = f" Its run has {_sizes(kept)}." if kept else ""
    for key in sorted(own.keys() | weights.keys()):
        if key not in weights or key not in own:
            whose = "the model" if key in own else "the checkpoint"
            raise ConfigError(f"checkpoint {checkpoint} is of another model: {key} is in {whose} alone.{hint}")
        if own[key].shape != weights[key].shape:
            raise ConfigError(
                f"checkpoint {checkpoint} is of another size: {key} is {list(weights[key].shape)} there and "
                f"{list(own[key].shape)} here.{hint}"
            )
    decoder.load_state_dict(weights)


def trained_tokenizer(checkpoint: Path) -> str | None:
    """The fingerprint of the tokenizer that a checkpoint was trained with, where it says so."""
    told = (value["tokenizer"] for value in _content(checkpoint).values() if isinstance(value, dict) and "tokenizer" in value)
    return next(told, None)


def _content(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds, mapped and not yet read. Raises :class:`ConfigError`."""
    import torch

    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        content["state_dict"]
    except Exception as error:  # torch raises whatever the broken content leads to
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{checkpoint} is not a readable checkpoint ({reason}); name another in checkpoint=.") from error
    return content


def _sizes(config: Path) -> str:
    """What a run's config says of its model, as words of the command line."""
    cfg = OmegaConf.load(config)
    arch = " ".join(f"task.arch.{key}={value}" for key, value in cfg.task.arch.items())
    return f"model={cfg.model.name} scale={cfg.scale.name} {arch}"
