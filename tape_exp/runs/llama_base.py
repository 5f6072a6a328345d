"""The part of a config that follows from the Llama that a run begins from: sizes, positions,
special tokens.
"""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.runs.checkpoint_info import (
    file_beside,
    llama_module,
    longest_trained_row,
    reads_text,
    run_config,
    title,
)
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings import files
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal

# Keys that follow from a Llama, whatever else the config says.
LLAMA_KEYS = [
    "task.arch",
    "model.theta",
    "model.scaling",
    "model.qk_norm",
    "model.window",
    "task.tokenizer.bos",
    "task.tokenizer.eos",
    "task.tokenizer.add_bos",
    "task.tokenizer.stops",
]
# Of these a config may choose otherwise; what differs from our own defaults was asked for.
OPEN = re.compile(r"task\.tokenizer\.(bos|eos|add_bos|stops)")
OWN_DEFAULTS = (None, "<s>", "</s>")


def llama_title(checkpoint: Path) -> str | None:
    """Name the Llama that the weights are, adapt, or were before they were fine-tuned."""
    base = base_of(checkpoint)
    if base.is_dir():
        return title(base)
    record = file_beside(checkpoint, "record.json")
    return files.read(record).get("llama") if record else None


def apply_llama_config(cfg: DictConfig, start: Path) -> DictConfig:
    """Return the config of a run that begins from ``start`` with the sizes, positions and special
    tokens of the Llama that this is, adapts or was fine-tuned from; of another the config itself.

    Raises:
        ConfigError: ``model`` cannot take up a Llama's positions, the task reads no text, or what
            was asked for has no effect.
    """
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        given_keys = cfg.pop("explicit_keys", [])  # on the command line
    values = llama_values(start)
    if values is None:
        return cfg
    _check_fit(cfg, values)
    # An adapted run may have extended the base's positions itself.
    run = run_config(start)
    own = values["model.scaling"] if run is None else OmegaConf.select(run, "model.scaling")
    values["model.scaling"] = extended_scaling(
        cfg.model.get("scaling"), own, longest_trained_row(start), base_of(start)
    )
    applied = copy.deepcopy(cfg)
    for key, value in values.items():
        is_chosen = key in given_keys or OmegaConf.select(cfg, key) not in OWN_DEFAULTS
        if value is None or (is_chosen and OPEN.fullmatch(key)):
            continue
        OmegaConf.update(applied, key, value, merge=key == "model.scaling", force_add=True)
    for key in given_keys:
        _refuse_without_effect(key, cfg, applied)
    return applied


def llama_values(start: Path) -> dict[str, Any] | None:
    """Return the value of each of :data:`LLAMA_KEYS`; None where no Llama is behind the weights.

    Those of a Llama that was fine-tuned whole are in the config of that run.
    """
    base = base_of(start)
    if base.is_dir():
        llama = llama_module().read_config(base)
        return {key: getattr(llama, key.rpartition(".")[2]) for key in LLAMA_KEYS}
    if llama_title(start):
        run = run_config(start)
        assert run is not None  # it has a record beside it
        return {key: OmegaConf.select(run, key) for key in LLAMA_KEYS}
    return None


def extended_scaling(wanted: Any, own: Any, length: int | None, base: Path) -> Any:
    """Return the scaling of weights with one of their ``own``, extended as a config wants it; by
    the same method again the factors multiply.

    YaRN by 4 of weights without a scaling, trained on 2048 tokens, is ``{"method": "yarn",
    "factor": 4, "original": 2048}``; YaRN by 2 of these is one by 8.

    Args:
        wanted: the scaling that the config has.
        own: that of the weights.
        length: on which weights without a scaling were trained.
        base: the Llama that they are or were.

    Raises:
        ConfigError: they are stretched already, by another method or by as much as is wanted.
    """
    from tape_exp.models.positions.rope_scaling import Scaling

    wanted = wanted or {}
    method = wanted.get("method")
    factor = wanted.get("factor")
    Scaling(method or "none", factor)  # it refuses a factor without a method
    if method in (None, "none"):
        return own
    if own["method"] == "none":
        return {**wanted, "original": wanted.get("original") or length}
    if own["method"] != method or method == "longrope":
        raise ConfigError(
            f"model.scaling.method={method}: the checkpoint is stretched by {own['method']} "
            "already, which the same method alone can stretch further (longrope cannot)."
        )
    if own["factor"] is None:  # it follows the task, and there is no number to multiply
        raise ConfigError(
            f"model.scaling.method={method}: the checkpoint is stretched by it already, as far as "
            "a task asks. Leave it out."
        )
    if factor is None:
        raise ConfigError(
            f"model.scaling.method={method} has no effect: the checkpoint is stretched by it "
            f"already, {own['factor']:g} times. Leave it out, or add model.scaling.factor=2 to "
            "stretch it twice as far."
        )
    extended = {**own, "factor": own["factor"] * factor}
    if base.is_dir():  # whose attention_factor may be a function of the factor
        of_base = llama_module().read_config(base).scaling
        if of_base.get("attention_factor") == own.get("attention_factor"):
            further = extended["factor"] / of_base["factor"]
            of_extended = llama_module().read_config(base, further).scaling
            extended["attention_factor"] = of_extended.get("attention_factor")
    return extended


def _check_fit(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    """Refuse a model and a task that cannot begin from a Llama with these ``values``."""
    if not reads_text(cfg):
        raise ConfigError(
            f"checkpoint={cfg.checkpoint} is a Llama, which reads text, and task={cfg.task.name} "
            "has none: choose one that does, such as task=perplexity, c4 or benchmarks."
        )
    difference = ""
    if not _is_rotary(cfg.model):
        difference = "has others"
    for key in ("ssmax", "temperature", "qk_norm"):
        if not difference and cfg.model.get(key) and not values.get(f"model.{key}"):
            difference = f"adds {key}"
    if difference:
        raise ConfigError(
            f"checkpoint={cfg.checkpoint} is a Llama, whose positions are RoPE, and "
            f"model={cfg.model.name} {difference}: it cannot take these weights; use model=rope."
        )


def _is_rotary(model: DictConfig) -> bool:
    """Say whether all layers have an encoding that takes up RoPE's scaling."""
    if "layers" in model:
        return False
    return "scaling" in arguments_model(locate(model._target_, "model")).model_fields


def _refuse_without_effect(key: str, cfg: DictConfig, applied: DictConfig) -> None:
    """Refuse a key that a command line gives, and that the Llama decides otherwise."""
    requested = OmegaConf.select(cfg, key)
    of_llama = OmegaConf.select(applied, key)
    if key.startswith("task.tokenizer.") and not OPEN.fullmatch(key):
        why = "its own tokenizer comes with it"
    elif requested != of_llama and key != "model.scaling.factor":  # factors multiply
        why = f"it has {literal(of_llama)}"
    else:
        return
    raise ConfigError(
        f"{key}={literal(requested)} has no effect: checkpoint={cfg.checkpoint} is of a Llama, and "
        f"{why}. Leave it out."
    )
