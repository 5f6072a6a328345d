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
    layers = decoder.arch.layers
    if adaptation is None:
        differences = model_differences(run, cfg, layers)
    elif is_base:
        differences = _differences_from_base(run, cfg, layers, adaptation)
    else:
        differences = model_differences(run, cfg, layers) | _peft_differences(run, cfg)
    for key in sorted(differences):
        stored, now = differences[key]
        sentence = (
            f"checkpoint {checkpoint} was trained with {key}={literal(stored)}, and {key} is "
            f"{literal(now)} here; set {key}={literal(stored)}"
        )
        if adaptation is not None:
            raise ConfigError(f"{sentence}.")
        log.warning("%s unless you mean it.", sentence)


def model_differences(run: DictConfig, cfg: DictConfig, layers: int) -> Differences:
    """List in what the section ``model`` of a config differs from a run's, layer by layer, for a
    decoder of so many layers: ``model`` where the classes differ, else keys. A key that a section
    leaves out has its default. A run without a scaling may be stretched.
    """
    stored_layers = _layers(run, layers)
    layers_now = _layers(cfg, layers)
    if [layer["_target_"] for layer in stored_layers] != [x["_target_"] for x in layers_now]:
        return {"model": (run.model.name, cfg.model.name)}
    differences = _layer_differences(run, cfg, layers)
    if _scaling_method(stored_layers[0]) == "none":
        return {key: pair for key, pair in differences.items() if ".scaling" not in key}
    return differences


def _differences_from_base(
    run: DictConfig, cfg: DictConfig, layers: int, adaptation: Adaptation
) -> Differences:
    """List in what a config differs from the base that it adapts, of the keys in which it must
    agree, so that it begins with the base's logits.
    """
    keys = set(ATTENTION)
    if adaptation.drop:
        return _layer_differences(run, cfg, layers, keys - set(RANDOM))
    if _is_same_encoding(cfg, run):
        differences = model_differences(run, cfg, layers)
    else:  # it has begun as RoPE does with the keys that it has
        differences = _layer_differences(run, cfg, layers, keys | {"theta", "scaling.method"})
    if not adaptation.theta:
        return differences
    return {key: pair for key, pair in differences.items() if not key.endswith(".theta")}


def _layer_differences(
    run: DictConfig, cfg: DictConfig, layers: int, keys: Iterable[str] | None = None
) -> Differences:
    """List in which keys, by default all, the layers of two sections ``model`` differ: by the first
    layer in which they do, if their layers are of several kinds.
    """
    differences: Differences = {}
    has_pattern = "layers" in run.model or "layers" in cfg.model
    pairs = zip(_layers(run, layers), _layers(cfg, layers), strict=True)
    for number, (stored_layer, layer_now) in enumerate(pairs):
        stored = flat(with_defaults(stored_layer))
        now = flat(with_defaults(layer_now))
        chosen = stored.keys() | now.keys() if keys is None else keys
        for key in {*chosen} - {"name", "_target_"}:
            pair = (stored.get(key), now.get(key))
            if pair[0] != pair[1]:
                place = f"layers.{number}.{key}" if has_pattern else key
                differences.setdefault(f"model.{place}", pair)
        if differences:
            break
    return differences


def _layers(cfg: DictConfig, layers: int) -> list[Model]:
    """Return the section of each layer of a decoder."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    pattern = entries(model)
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def _scaling_method(layer: Model) -> str:
    scaling = layer.get("scaling") or {}
    return str(scaling.get("method", "none"))


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
