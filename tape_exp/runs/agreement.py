"""What must agree between a config and that of the run whose weights it takes."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.models.sections import Model, begins_as_rope, entries, with_defaults
from tape_exp.runs.identity import flat
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal
from tape_exp.settings.schema import AttentionConfig

log = logging.getLogger("tape_exp")
ROPE = "tape_exp.models.positions.rope.RoPE"
ATTENTION = tuple(AttentionConfig.__dataclass_fields__)  # keys that every encoding has
RANDOM = ("random_range", "random_floats")
IN_NAME_ONLY = {"name", "_target_"}  # of a layer; classes are compared before its keys
# May differ from the checkpoint's, as only training reads them.
FREE = {"peft.lora.dropout", "peft.sparse_groups"}
Differences = dict[str, tuple[Any, Any]]  # by key, the value of the run and that of the config


def check_config(
    decoder: Decoder,
    cfg: DictConfig,
    run: DictConfig | None,
    checkpoint: Path,
    adaptation: Adaptation | None,
) -> None:
    """Refuse weights that another encoding, another way to attend, or other numbers of ``peft``,
    would use wrongly; only warn where nothing is adapted. ``run`` is the config of the checkpoint's
    run; a file without one is taken as it is.
    """
    is_base = checkpoint.is_dir() if run is None else run.peft.name == "none"
    if adaptation is not None and is_base:
        _check_continuity(decoder, cfg, run, adaptation)
    if run is None:
        return
    found = differences(run, cfg, decoder.arch.layers, adaptation)
    for key in sorted(found):
        stored, now = found[key]
        sentence = (
            f"checkpoint {checkpoint} was trained with {key}={literal(stored)}, and {key} is "
            f"{literal(now)} here; set {key}={literal(stored)}"
        )
        if adaptation is not None:
            raise ConfigError(f"{sentence}.")
        log.warning("%s unless you mean it.", sentence)


def differences(
    run: DictConfig, cfg: DictConfig, layers: int, adaptation: Adaptation | None = None
) -> Differences:
    """List in what a config differs from that of the run whose weights it takes, of the keys in
    which they must agree, for a decoder of so many layers.

    These are all of ``model``, and where an adapted run is taken up those of ``peft``. A base that
    is adapted may become another encoding, which has begun as RoPE does with the keys that it has,
    or lose its positions; and ``peft.theta`` takes theta's place.
    """
    if adaptation is None:
        return model_differences(run, cfg, layers)
    if run.peft.name != "none":
        return model_differences(run, cfg, layers) | _peft_differences(run, cfg)
    if adaptation.drop:
        found = _layer_differences(run, cfg, layers, {*ATTENTION} - {*RANDOM})
    elif _is_same_encoding(cfg, run):
        found = model_differences(run, cfg, layers)
    else:
        found = _layer_differences(run, cfg, layers, {*ATTENTION, "theta", "scaling.method"})
    if adaptation.theta:
        return {key: pair for key, pair in found.items() if not key.endswith(".theta")}
    return found


def model_differences(run: DictConfig, cfg: DictConfig, layers: int) -> Differences:
    """List in what the section ``model`` of a config differs from a run's: ``model`` where the
    classes of the layers differ, else keys.
    """
    classes = [layer["_target_"] for layer in _layers(run, layers)]
    if classes != [layer["_target_"] for layer in _layers(cfg, layers)]:
        return {"model": (run.model.name, cfg.model.name)}
    return _layer_differences(run, cfg, layers)


def _layer_differences(
    run: DictConfig, cfg: DictConfig, layers: int, keys: Iterable[str] | None = None
) -> Differences:
    """List the keys, by default all, in which the layers of two sections ``model`` differ: of
    layers of several kinds those of the first one that does. A key that a section leaves out has
    its default. A layer without a scaling may be stretched.
    """
    has_pattern = "layers" in run.model or "layers" in cfg.model
    pairs = zip(_layers(run, layers), _layers(cfg, layers), strict=True)
    for number, (stored_layer, layer_now) in enumerate(pairs):
        stored = flat(with_defaults(stored_layer))
        now = flat(with_defaults(layer_now))
        may_be_stretched = stored.get("scaling.method", "none") == "none"
        found = {}
        for key in (stored.keys() | now.keys() if keys is None else {*keys}) - IN_NAME_ONLY:
            if may_be_stretched and key.startswith("scaling."):
                continue
            if stored.get(key) != now.get(key):
                place = f"layers.{number}.{key}" if has_pattern else key
                found[f"model.{place}"] = (stored.get(key), now.get(key))
        if found:
            return found
    return {}


def _layers(cfg: DictConfig, layers: int) -> list[Model]:
    """Return the section of each layer of a decoder."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    pattern = entries(model)
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def _peft_differences(run: DictConfig, cfg: DictConfig) -> Differences:
    """List in which keys that both have two sections ``peft`` differ, but those that may."""
    stored = flat(OmegaConf.to_container(run.peft), "peft")
    now = flat(OmegaConf.to_container(cfg.peft), "peft")
    common = (stored.keys() & now.keys()) - FREE
    return {key: (stored[key], now[key]) for key in common if stored[key] != now[key]}


def _check_continuity(
    decoder: Decoder, cfg: DictConfig, run: DictConfig | None, adaptation: Adaptation
) -> None:
    """Refuse an encoding that cannot begin with the logits of the base that is adapted: a run, or
    without a ``run`` a Llama, which has RoPE.
    """
    if not adaptation.drop and _is_same_encoding(cfg, run):
        return
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if run is not None and (run.model.get("_target_") != ROPE or run.model.get("random_range")):
        reason = f"the base was trained with model={run.model.name}"
    elif not adaptation.drop and not begins_as_rope(model, decoder.arch):
        reason = "its first logits are not RoPE's at the same theta and scaling"
    else:
        return
    raise ConfigError(
        f"peft={adaptation.name} with model={cfg.model.name} cannot continue from RoPE: {reason}."
    )


def _is_same_encoding(cfg: DictConfig, run: DictConfig | None) -> bool:
    """Say whether a model has the positional encoding of a run, or without one a Llama's RoPE."""
    base: Any = {"_target_": ROPE} if run is None else run.model
    deciding = ("_target_", "layers", *RANDOM)
    return all(base.get(key) == cfg.model.get(key) for key in deciding)
