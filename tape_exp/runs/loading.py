"""How a model takes the weights of a checkpoint, and what must agree between the two."""

import logging
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.starting_weights import (
    adapted_config,
    base_of,
    fingerprint,
    read_checkpoint,
    run_config,
    title,
)
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal

if TYPE_CHECKING:
    from tape_exp.models.decoder import Decoder
    from tape_exp.models.peft import Adaptation

log = logging.getLogger("tape_exp")
ROPE = "tape_exp.models.positions.rope.RoPE"
# Keys of model that a run recorded before they existed lacks, and what it had.
DEFAULTS = {"model.ssmax": False, "model.qk_norm": False, "model.scaling.method": "none"}


def load_and_adapt(
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
    run, name = adapted_config(checkpoint), adaptation.name if adaptation is not None else "none"
    partial = adaptation is not None and adaptation.partial
    if run is not None and run.peft.name != name:
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with peft={run.peft.name}; set "
            f"model={run.model.name} peft={run.peft.name}."
        )
    if run is None and partial and not trains:
        raise ConfigError(
            f"checkpoint {checkpoint} is a base model, and peft={name} untrained changes nothing. "
            f"Train it: tape-exp train task=extend peft={name}, then checkpoint=extend; or set "
            "peft=none."
        )
    base = base_of(checkpoint) if partial else checkpoint
    if base != checkpoint:
        _check_base(checkpoint, base)
    if base.is_dir():
        from tape_exp.models import llama

        llama.load(decoder, base)
    else:
        trained_parts = {*adaptation.train} if adaptation is not None else set()
        new_positions = (partial or run is None) and trained_parts & {"positions", "everything"}
        load_weights(decoder, base, new_positions=bool(new_positions))
    if adaptation is not None:
        adaptation.apply(decoder, seed)
    if base != checkpoint:
        from tape_exp.models.peft import trained

        load_weights(decoder, checkpoint, {name for name, _ in trained(decoder)})


def load_weights(
    decoder: "Decoder",
    checkpoint: Path,
    names: AbstractSet[str] | None = None,
    new_positions: bool = False,
) -> None:
    """Give the decoder the weights of a checkpoint.

    Args:
        names: of all parameters that the checkpoint must hold; None: those of the decoder.
        new_positions: parameters of positions that it lacks may stay as they were initialised.

    Raises:
        ConfigError: the checkpoint is damaged, or of another model, size or adaptation.
    """
    content, own = read_checkpoint(checkpoint), decoder.state_dict()
    weights = {
        key.removeprefix("decoder.").removeprefix("_orig_mod."): value
        for key, value in content["state_dict"].items()
    }
    misfits = (own.keys() if names is None else names) ^ weights.keys()
    if new_positions:
        misfits = {name for name in misfits if name in weights or ".position." not in name}
    misfits |= {n for n in own.keys() & weights.keys() if own[n].shape != weights[n].shape}
    if misfits:
        name = min(misfits)
        there, here = (list(x[name].shape) if name in x else "absent" for x in (weights, own))
        raise ConfigError(
            f"checkpoint {checkpoint} is of another model, size or peft: {name} is {there} there "
            f"and {here} here. The config.yaml of its run says what to set."
        )
    decoder.load_state_dict(weights, strict=False)


def _check_base(checkpoint: Path, base: Path) -> None:
    """Refuse an adapted run whose base is not the one that it was trained on."""
    content = read_checkpoint(checkpoint)
    same = content.get("base_weights") in (None, fingerprint(base))
    if not same or content.get("base") not in (None, title(base)):
        raise ConfigError(
            f"checkpoint {checkpoint} was trained on top of {content['base']}; the base is "
            f"{title(base)} now{'' if same else ', with other weights'}. Restore that base, or "
            "train anew."
        )


def check_config(
    cfg: DictConfig, checkpoint: Path, adaptation: "Adaptation | None", decoder: "Decoder"
) -> None:
    """Refuse weights that another encoding, or other numbers of ``peft``, would use wrongly.

    Without an adaptation, positions that differ are only warned of. A file outside of runs is
    taken as it is.

    Raises:
        ConfigError: which key differs, and what to set.
    """
    run = run_config(checkpoint)
    if adaptation is None:
        if run is not None:
            _warn_of_other_positions(cfg.model, run.model, checkpoint)
        return
    if run is not None and run.peft.name == adaptation.name:  # another name is refused at loading
        keys = {f"peft.{key}" for key in _flatten(cfg.peft).keys() & _flatten(run.peft).keys()}
        keys -= {"peft.lora.dropout", "peft.sparse_groups"}  # which only training reads
    elif checkpoint.is_dir() or (run is not None and run.peft.name == "none"):
        keys = _keys_of_base(cfg, run, adaptation, decoder)
    else:
        return
    for key in sorted(keys) if run is not None else ():
        default = DEFAULTS.get(key)
        stored, now = (OmegaConf.select(x, key, default=default) for x in (run, cfg))
        if stored != now and (key, stored) != ("model.scaling.method", "none"):
            raise ConfigError(
                f"checkpoint {checkpoint} was trained with {key}={literal(stored)}, and {key} is "
                f"{literal(now)} here; set {key}={literal(stored)}."
            )


def _keys_of_base(
    cfg: DictConfig, base: Any, adaptation: "Adaptation", decoder: "Decoder"
) -> set[str]:
    """The keys that must be those of the base's run (None: of a Llama).

    Raises:
        ConfigError: the base has no RoPE, or the model does not begin as RoPE.
    """
    keys = {"model.ssmax", "model.qk_norm"}
    if base is not None and not adaptation.drop and _encoding(base.model) == _encoding(cfg.model):
        return keys
    reasons = [block.position.unlike_rope for block in decoder.blocks() if not adaptation.drop]
    if base is not None and base.model.get("_target_") != ROPE:
        reasons = [f"the base was trained with model={base.model.name}"]
    if reason := next(filter(None, reasons), None):
        raise ConfigError(
            f"peft={adaptation.name} with model={cfg.model.name} cannot continue from RoPE: "
            f"{reason}."
        )
    if adaptation.drop:
        return keys
    return keys | {"model.scaling.method", *(() if adaptation.theta else ("model.theta",))}


def _warn_of_other_positions(model: DictConfig, trained: DictConfig, checkpoint: Path) -> None:
    """Warn where weights were trained with other positions, although all of them fit."""
    before, now = _flatten(trained), _flatten(model)
    differ = [key for key in before.keys() & now.keys() - {"name"} if before[key] != now[key]]
    if differ:
        log.warning(
            "checkpoint %s was trained with other positions, model=%s (model.%s differs); set "
            "that unless you mean it.",
            *(checkpoint, trained.name, min(differ)),
        )


def _encoding(model: DictConfig) -> Any:
    return model.get("_target_", model.get("layers"))


def _flatten(section: Any, above: str = "") -> dict[str, Any]:
    """The values of nested sections by their keys, ``{"lora.rank": 8}``."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        inner = isinstance(value, DictConfig)
        flat |= _flatten(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return flat
