"""How a model takes the weights of a checkpoint, and what must agree between the two."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.weights import (
    adapted,
    base_of,
    companion,
    content_of,
    fingerprint,
    stored_config,
    title,
)
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import TRAIN
from tape_exp.settings.overrides import literal

if TYPE_CHECKING:
    from tape_exp.models.decoder import Decoder
    from tape_exp.models.peft import Adaptation

log = logging.getLogger("tape_exp")

ROPE = "tape_exp.models.positions.rope.RoPE"


def check_adaptation(cfg: DictConfig, checkpoint: Path) -> None:
    """Refuse other numbers of ``peft`` than an adapted checkpoint was trained with, but for those
    that training alone has.

    Raises:
        ConfigError: which key differs, and what to set.
    """
    run = adapted(checkpoint)
    if run is None or run.peft.name != cfg.peft.name:
        return  # other names are refused where the weights are loaded
    theirs, ours = (_flat(OmegaConf.to_container(c.peft, resolve=True)) for c in (run, cfg))
    for key in theirs.keys() & ours.keys() - {"lora.dropout", "sparse_groups"}:
        if theirs[key] != ours[key]:
            raise ConfigError(
                f"checkpoint {checkpoint} was adapted with peft.{key}={literal(theirs[key])}, and "
                f"peft.{key} is {literal(ours[key])} here; set peft.{key}={literal(theirs[key])}."
            )


def _flat(node: Any, above: str = "") -> dict[str, Any]:
    """The values of nested sections by their keys, ``{"lora.rank": 8}``."""
    if not isinstance(node, dict):
        return {above: node}
    parts = (_flat(child, f"{above}.{key}" if above else key) for key, child in node.items())
    return {key: value for part in parts for key, value in part.items()}


def begin(
    decoder: "Decoder",
    checkpoint: Path,
    adaptation: "Adaptation | None",
    seed: int,
    trains: bool = True,
) -> None:
    """Give the decoder the weights of a checkpoint, and adapt it.

    Raises:
        ConfigError: the file is damaged, of another model, size, adaptation or base; the sentence
            says which key to change.
    """
    cfg = adapted(checkpoint)
    if cfg is None:
        if adaptation is not None and adaptation.partial and not trains:
            raise ConfigError(
                f"checkpoint {checkpoint} is a base model, and peft={adaptation.name} untrained "
                f"changes nothing. Train it: {TRAIN} task=extend peft={adaptation.name}, "
                "then checkpoint=extend; or set peft=none."
            )
        _load_base(decoder, checkpoint, adaptation)
        if adaptation is not None:
            adaptation.apply(decoder, seed)
        return
    if adaptation is None or adaptation.name != cfg.peft.name:
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with peft={cfg.peft.name}; set "
            f"model={cfg.model.name} peft={cfg.peft.name}."
        )
    if not adaptation.partial:
        load_weights(decoder, checkpoint)
        adaptation.apply(decoder, seed)
        return
    _load_base(decoder, base_of(checkpoint, cfg), adaptation)
    adaptation.apply(decoder, seed)
    _load_trained(decoder, checkpoint)


def check_encoding(
    cfg: DictConfig, checkpoint: Path, adaptation: "Adaptation", decoder: "Decoder"
) -> None:
    """Refuse a base whose encoding the adapted model does not begin as, or has no RoPE to drop.

    A base with the model's own encoding is taken as it is, and so is one whose run is not known.

    Raises:
        ConfigError: the base has no RoPE, or one of another theta, or the model does not begin as
            RoPE; the sentence says which key to change.
    """
    kept = None if checkpoint.is_dir() else companion(checkpoint, "config.yaml")
    if adapted(checkpoint) is not None or (kept is None and not checkpoint.is_dir()):
        return
    base = stored_config(kept).model if kept else None  # a Llama's positions are adopted
    for key in ("ssmax", "qk_norm"):
        if base is not None and bool(cfg.model.get(key)) != bool(base.get(key)):
            theirs = str(bool(base.get(key))).lower()
            raise ConfigError(
                f"checkpoint {checkpoint} was trained with model.{key}={theirs}, which changes the "
                f"logits; set model.{key}={theirs}."
            )
    ours, of_base = (x and x.get("_target_", x.get("layers")) for x in (cfg.model, base))
    if ours == of_base and not adaptation.drop:
        return
    if base is not None and of_base != ROPE:
        raise ConfigError(
            f"checkpoint {checkpoint} was trained with model={base.name}, and peft="
            f"{adaptation.name} with model={cfg.model.name} goes on from model=rope; name a run of "
            "that."
        )
    reasons = (block.position.unlike_rope for block in decoder.blocks())
    reason = None if adaptation.drop else next(filter(None, reasons), None)
    if reason is not None:
        raise ConfigError(
            f"model={cfg.model.name} cannot go on from a model that was trained with RoPE, since "
            f"{reason}."
        )
    if base is None or adaptation.drop:
        return
    for key, free in (("theta", adaptation.theta is not None), ("scaling.method", False)):
        theirs = OmegaConf.select(base, key)
        own = OmegaConf.select(cfg.model, key, default="none")
        if theirs not in ("none", own) and not free:
            raise ConfigError(
                f"checkpoint {checkpoint} was trained with model.{key}={theirs}, and "
                f"model={cfg.model.name} has {own}; set model.{key}={theirs}."
            )


def warn_of_other_positions(cfg: DictConfig, checkpoint: Path) -> None:
    """Say that weights were trained with other positions, where all of them fit none the less."""
    kept = None if checkpoint.is_dir() else companion(checkpoint, "config.yaml")
    if kept is None:
        return
    trained = stored_config(kept).model
    theirs, ours = (_flat(OmegaConf.to_container(x, resolve=True)) for x in (trained, cfg.model))
    differ = [key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]]
    if {"_target_", "layers"} & (theirs.keys() ^ ours.keys() | {*differ}):
        other, own = f"model={trained.name}", f"model={cfg.model.name}"
    elif differ := sorted({*differ} - {"name"}):
        other, own = (f"model.{differ[0]}={literal(x[differ[0]])}" for x in (theirs, ours))
    else:
        return
    log.warning(
        "checkpoint %s was trained with %s, whose weights fit %s too, but its positions are "
        "others; set %s unless that is meant.",
        checkpoint,
        other,
        own,
        other,
    )


def check_base(checkpoint: Path) -> None:
    """Refuse an adapted run whose base is another now. Raises :class:`ConfigError`."""
    cfg = adapted(checkpoint)
    content = content_of(checkpoint) if cfg is not None else {}
    known = content.get("base")
    if cfg is None or known is None:
        return
    path = base_of(checkpoint, cfg)
    base = title(path)
    if known != base:
        raise ConfigError(
            f"checkpoint {checkpoint} was trained on top of another base, {known}, than the "
            f"one that is there now, {base}. Restore that base, or train anew."
        )
    if content.get("base_weights") not in (None, fingerprint(path)):
        raise ConfigError(
            f"checkpoint {checkpoint} was trained on top of {base}, which has other weights now. "
            "Restore that base, or train anew."
        )


def _load_base(decoder: "Decoder", checkpoint: Path, adaptation: "Adaptation | None") -> None:
    if checkpoint.is_dir():
        from tape_exp.models import llama

        llama.load(decoder, checkpoint)
    else:
        load_weights(
            decoder,
            checkpoint,
            without_positions=adaptation is not None
            and not {"positions", "everything"}.isdisjoint(adaptation.train),
        )


def _load_trained(decoder: "Decoder", checkpoint: Path) -> None:
    """The trained parameters of an adapted run, which holds no others."""
    from tape_exp.models.peft import trained

    weights = _named(content_of(checkpoint)["state_dict"])
    own = dict(trained(decoder))
    if wrong := sorted(
        weights.keys() ^ own.keys()
        | {n for n in weights.keys() & own.keys() if weights[n].shape != own[n].shape}
    ):
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with other settings of peft: {wrong[0]} does not "
            "fit. Its run's config.yaml holds them."
        )
    _refuse_unsound(checkpoint, weights, own)
    decoder.load_state_dict(weights, strict=False)


def _named(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix("decoder.").removeprefix("_orig_mod."): value
        for key, value in state.items()
    }


def load_weights(decoder: Any, checkpoint: Path, without_positions: bool = False) -> None:
    """Give the decoder the weights of a checkpoint that holds all of them.

    Args:
        without_positions: what the checkpoint lacks of the positional encoding may stay as it was
            initialised.

    Raises:
        ConfigError: the file is damaged, or of another model or size; the sentence says which key
            of the config to change.
    """
    content = content_of(checkpoint)
    weights = _named(content["state_dict"])
    if "base" in content:
        raise ConfigError(
            f"{checkpoint} holds only what was trained on top of a base model; name its run's "
            "folder in checkpoint=."
        )
    own = decoder.state_dict()
    if without_positions:
        weights = {name: value for name, value in own.items() if ".position." in name} | weights
    kept = companion(checkpoint, "config.yaml")
    hint = f" Its run has {_sizes(kept)}." if kept else ""
    for key in sorted(own.keys() | weights.keys()):
        if key not in weights or key not in own:
            whose = "the model" if key in own else "the checkpoint"
            raise ConfigError(
                f"checkpoint {checkpoint} is of another model: {key} is only in {whose}.{hint}"
            )
        if own[key].shape != weights[key].shape:
            raise ConfigError(
                f"checkpoint {checkpoint} is of another size: {key} is {list(weights[key].shape)} "
                f"there and {list(own[key].shape)} here.{hint}"
            )
    _refuse_unsound(checkpoint, weights, own)
    decoder.load_state_dict(weights)


def _refuse_unsound(checkpoint: Path, weights: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse integers in the place of real weights, and what is not finite."""
    for key, value in weights.items():
        if own[key].is_floating_point() and not value.is_floating_point():
            wrong = f"of type {value.dtype}, where {own[key].dtype} or another real type belongs"
        elif not value.isfinite().all():
            wrong = "not finite"
        else:
            continue
        raise ConfigError(f"checkpoint {checkpoint}: {key} is {wrong}; name another checkpoint.")


def _sizes(config: Path) -> str:
    """What a run's config says of its model, as words of the command line."""
    cfg = stored_config(config)
    words = [f"model={cfg.model.name}", f"scale={cfg.scale.name}"]
    for key, value in cfg.task.arch.items():
        plus = "" if key in ("layers", "width", "heads", "ffn") else "+"  # which every scale has
        words.append(f"{plus}task.arch.{key}={literal(value)}")
    return shlex.join(words)
