"""What follows from the Llama that a run begins from, whatever the config says."""

import copy
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.starting_weights import (
    base_of,
    companion,
    find,
    init_checkpoint,
    run_config,
    title,
)
from tape_exp.settings.construct import locate, takes
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json

LLAMA_KEYS = (
    "task.arch",
    "model.theta",
    "model.scaling",
    "task.tokenizer.bos",
    "task.tokenizer.eos",
)


def llama_below(checkpoint: Path) -> Path | None:
    """The Llama that the weights are, or that they adapt."""
    if checkpoint.is_dir():
        return checkpoint
    base = base_of(checkpoint)
    return None if base == checkpoint else llama_below(base)


def llama_title(checkpoint: Path) -> str | None:
    """The title of the Llama that the weights are, adapt, or were before they were fine-tuned."""
    if folder := llama_below(checkpoint):
        return title(folder)
    record = companion(checkpoint, "record.json")
    return read_json(record).get("llama") if record else None


def llama_settings(checkpoint: Path) -> dict[str, Any]:
    """The values of :data:`LLAMA_KEYS` of the Llama of :func:`llama_title`; none where it is None.

    A fine-tuned Llama is only a checkpoint of ours: its run's config still has them.
    """
    if folder := llama_below(checkpoint):
        from tape_exp.models import llama

        config = llama.read_config(folder)
        values = (config.sizes(), config.theta, config.scaling, config.bos, config.eos)
    elif llama_title(checkpoint) is not None:
        run = run_config(checkpoint)
        values = tuple(OmegaConf.select(run, key) for key in LLAMA_KEYS)
    else:
        return {}
    return {key: value for key, value in zip(LLAMA_KEYS, values, strict=True) if value is not None}


def apply_llama_config(cfg: DictConfig) -> DictConfig:
    """The config with the sizes, positions and special tokens of the Llama it begins from, if any.

    Raises:
        ConfigError: the checkpoint is missing, or ``model`` cannot take up a Llama's positions.
    """
    spec = init_checkpoint(cfg)
    settings = llama_settings(find(spec, cfg)) if spec else {}
    if not settings:
        return cfg
    rotary = "layers" not in cfg.model and takes(locate(cfg.model._target_, "model"), "scaling")
    if not rotary or cfg.model.get("ssmax") or cfg.model.get("qk_norm"):
        raise ConfigError(
            f"checkpoint={spec} is a Llama, whose attention is RoPE's without ssmax and qk_norm; "
            f"model={cfg.model.name} cannot continue from it."
        )
    cfg = copy.deepcopy(cfg)
    for key, value in settings.items():
        OmegaConf.update(cfg, key, value, merge=key == "model.scaling", force_add=True)
    return cfg


def without_llama_keys(config: dict[str, Any]) -> dict[str, Any]:
    """A recorded config without the keys that :func:`apply_llama_config` sets."""
    config = copy.deepcopy(config)
    for path in LLAMA_KEYS:
        *above, last = path.split(".")
        node = config
        for key in above:
            node = node.get(key, {})
        node.pop(last, None)
    return config
