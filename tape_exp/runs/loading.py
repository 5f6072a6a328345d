"""How a model takes the weights of a checkpoint, and what must agree between the two."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.models import llama, peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.models.sections import begins_as_rope
from tape_exp.runs.identity import flat
from tape_exp.runs.starting_weights import base_of, fingerprint, read_checkpoint, run_config, title
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal

log = logging.getLogger("tape_exp")
ROPE = "tape_exp.models.positions.rope.RoPE"
# Of keys of model that a config may lack.
ADDED = ("model.ssmax", "model.temperature", "model.qk_norm")  # to any encoding
DEFAULTS = dict.fromkeys(ADDED, False) | {"model.scaling.method": "none"}
# May differ from the checkpoint's: a name, and what only training reads.
FREE = {"model.name", "peft.lora.dropout", "peft.sparse_groups"}


def load_and_adapt(
    decoder: Decoder, cfg: DictConfig, checkpoint: Path, adaptation: Adaptation | None, trains: bool
) -> None:
    """Give the decoder the weights of a checkpoint, and adapt it. Raises :class:`ConfigError` where
    these are damaged, or of another model, size, adaptation or base.
    """
    run = run_config(checkpoint)
    name = cfg.peft.name
    partial = adaptation is not None and adaptation.partial
    adapted = run is not None and run.peft.name != "none"
    if adapted and run.peft.name != name:
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with peft={run.peft.name}; set "
            f"model={run.model.name} peft={run.peft.name}."
        )
    if partial and not adapted and not trains:
        raise ConfigError(
            f"checkpoint {checkpoint} is a base model, and peft={name} untrained changes nothing: "
            f"train it with task=extend, and then set checkpoint=extend; or set peft=none."
        )
    _check_config(cfg, run, checkpoint, adaptation, decoder)
    base = base_of(checkpoint) if partial else checkpoint
    if base != checkpoint:
        content = read_checkpoint(checkpoint)
        same = content.get("base_weights") in (None, fingerprint(base))
        if not same or content.get("base") not in (None, title(base)):
            raise ConfigError(
                f"checkpoint {checkpoint} was trained on top of {content['base']}; the base is "
                f"{title(base)} now{'' if same else ', with other weights'}. Restore that base, or "
                "train anew."
            )
    if base.is_dir():
        llama.load(decoder, base)
    else:
        trained = {*adaptation.train} if adaptation is not None else set()
        new_positions = (partial or not adapted) and bool(trained & {"positions", "everything"})
        load_weights(decoder, base, new_positions=new_positions)
    if adaptation is not None:
        adaptation.apply(decoder, cfg.seed)
    if base != checkpoint:
        load_weights(decoder, checkpoint, {name for name, _ in peft.trained(decoder)})


def load_weights(
    decoder: Decoder, checkpoint: Path, names: set[str] | None = None, new_positions: bool = False
) -> None:
    """Give the decoder the weights of a checkpoint, which are those of ``names``, by default all.
    With ``new_positions`` it may lack parameters of positions, which stay as initialised.
    """
    content = read_checkpoint(checkpoint)
    state = decoder.state_dict()
    weights = {}
    for key, value in content["state_dict"].items():
        weights[key.removeprefix("decoder.").removeprefix("_orig_mod.")] = value
    misfits = (set(state) if names is None else names) ^ weights.keys()
    if new_positions:
        misfits = {name for name in misfits if name in weights or ".position." not in name}
    for name in state.keys() & weights.keys():
        if state[name].shape != weights[name].shape:
            misfits.add(name)
    if misfits:
        name = min(misfits)
        stored = list(weights[name].shape) if name in weights else "absent"
        here = list(state[name].shape) if name in state else "absent"
        raise ConfigError(
            f"checkpoint {checkpoint} is of another model, size or peft: {name} is {stored} there "
            f"and {here} here. The config.yaml of its run says what to set."
        )
    decoder.load_state_dict(weights, strict=False)


def _check_config(
    cfg: DictConfig, run: Any, checkpoint: Path, adaptation: Adaptation | None, decoder: Decoder
) -> None:
    """Refuse weights that another encoding, or other numbers of ``peft``, would use wrongly; only
    warn where nothing is adapted. ``run`` is the config of the checkpoint's run, if it has one; a
    file outside of runs is taken as it is.
    """
    for key in sorted(_keys_to_agree(cfg, run, checkpoint, adaptation, decoder)):
        stored = OmegaConf.select(run, key, default=DEFAULTS.get(key))
        now = OmegaConf.select(cfg, key, default=DEFAULTS.get(key))
        if stored == now or (key, stored) == ("model.scaling.method", "none"):
            continue
        if key == "model._target_":
            key = "model"
            stored = run.model.name
            now = cfg.model.name
        sentence = (
            f"checkpoint {checkpoint} was trained with {key}={literal(stored)}, and {key} is "
            f"{literal(now)} here; set {key}={literal(stored)}"
        )
        if adaptation is not None:
            raise ConfigError(f"{sentence}.")
        log.warning("%s unless you mean it.", sentence)
        return


def _keys_to_agree(
    cfg: DictConfig, run: Any, checkpoint: Path, adaptation: Adaptation | None, decoder: Decoder
) -> set[str]:
    """List the keys in which a config must agree with that of the checkpoint's run; none without
    one.
    """
    is_base = checkpoint.is_dir() if run is None else run.peft.name == "none"
    if adaptation is not None and is_base:
        keys = _keys_of_adapted(cfg, run, adaptation, decoder)
        return keys if run is not None else set()
    if run is None:
        return set()
    section = "model" if adaptation is None else "peft"
    stored = flat(OmegaConf.to_container(run[section]), section)
    now = flat(OmegaConf.to_container(cfg[section]), section)
    return (stored.keys() & now.keys()) - FREE


def _keys_of_adapted(
    cfg: DictConfig, run: Any, adaptation: Adaptation, decoder: Decoder
) -> set[str]:
    """List these keys where a base model is adapted. Raises :class:`ConfigError` where the config's
    encoding cannot continue from the base's.
    """
    base = run.model if run is not None else {"_target_": ROPE}
    deciding = ("_target_", "layers", "random_range", "random_floats")
    same = all(base.get(key) == cfg.model.get(key) for key in deciding)
    if adaptation.drop or not same:
        model: Any = OmegaConf.to_container(cfg.model, resolve=True)
        reason = None
        if base.get("_target_") != ROPE or base.get("random_range"):
            reason = f"the base was trained with model={base['name']}"
        elif not adaptation.drop and not begins_as_rope(model, decoder.arch):
            reason = "its first logits are not RoPE's at the same theta and scaling"
        if reason:
            raise ConfigError(
                f"peft={adaptation.name} with model={cfg.model.name} cannot continue from "
                f"RoPE: {reason}."
            )
    keys = {*ADDED}
    if not adaptation.drop and not same:
        keys.add("model.scaling.method")
        if not adaptation.theta:
            keys.add("model.theta")
    return keys
