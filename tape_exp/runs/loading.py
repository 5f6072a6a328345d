"""How a model takes the weights of a checkpoint, and what must agree between the two."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.models import llama, peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.models.sections import begins_as_rope
from tape_exp.runs.checkpoint_info import fingerprint, read_checkpoint, run_config, title
from tape_exp.runs.identity import flat
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal

log = logging.getLogger("tape_exp")
ROPE = "tape_exp.models.positions.rope.RoPE"
# Keys that change the logits of any encoding, and may be missing from a config.
OPTIONAL = ("model.ssmax", "model.temperature", "model.qk_norm")
VALUE_WITHOUT = dict.fromkeys(OPTIONAL, False) | {"model.scaling.method": "none"}
# May differ from the checkpoint's: a name, and what only training reads.
FREE = {"model.name", "peft.lora.dropout", "peft.sparse_groups"}


def load_and_adapt(
    decoder: Decoder, cfg: DictConfig, checkpoint: Path, adaptation: Adaptation | None, trains: bool
) -> None:
    """Give the decoder the weights of a checkpoint, and adapt it.

    The weights of an adapted run are in two files: those that it trained are in its own, and the
    rest in that of its base, which is loaded first.

    Raises:
        ConfigError: the weights are damaged, or of another model, size, adaptation or base.
    """
    run = run_config(checkpoint)
    is_adapted = run is not None and run.peft.name != "none"
    partial = adaptation is not None and adaptation.partial
    if run is not None and is_adapted and run.peft.name != cfg.peft.name:
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with peft={run.peft.name}; set "
            f"model={run.model.name} peft={run.peft.name}."
        )
    if partial and not is_adapted and not trains:
        raise ConfigError(
            f"checkpoint {checkpoint} is a base model, and peft={cfg.peft.name} untrained changes "
            "nothing: train it with task=extend, and then set checkpoint=extend; or set peft=none."
        )
    _check_config(decoder, cfg, run, checkpoint, adaptation)
    base = base_of(checkpoint) if partial else checkpoint
    if base != checkpoint:
        _check_base(checkpoint, base)
    if base.is_dir():
        llama.load(decoder, base)
    else:
        trained = set(adaptation.train) if adaptation is not None else set()
        new_positions = bool(trained & {"positions", "everything"}) and (partial or not is_adapted)
        load_weights(decoder, base, new_positions=new_positions)
    if adaptation is not None:
        adaptation.apply(decoder, cfg.seed)
    if base != checkpoint:
        load_weights(decoder, checkpoint, {name for name, _ in peft.trained(decoder)})


def _check_base(checkpoint: Path, base: Path) -> None:
    """Refuse the weights of an adapted run whose base has changed since; older checkpoints do not
    say what it was.
    """
    content = read_checkpoint(checkpoint)
    same_name = content.get("base") in (None, title(base))
    same_weights = content.get("base_weights") in (None, fingerprint(base))
    if same_name and same_weights:
        return
    change = "" if same_weights else ", with other weights"
    raise ConfigError(
        f"checkpoint {checkpoint} was trained on top of {content['base']}; the base is "
        f"{title(base)} now{change}. Restore that base, or train anew."
    )


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


# ---- what must agree between a config and that of the checkpoint's run ----


def _check_config(
    decoder: Decoder,
    cfg: DictConfig,
    run: DictConfig | None,
    checkpoint: Path,
    adaptation: Adaptation | None,
) -> None:
    """Refuse weights that another encoding, or other numbers of ``peft``, would use wrongly; only
    warn where nothing is adapted. ``run`` is the config of the checkpoint's run; a file without one
    is taken as it is.
    """
    is_base = checkpoint.is_dir() if run is None else run.peft.name == "none"
    if adaptation is not None and is_base:
        _check_continuity(decoder, cfg, run, adaptation)
    if run is None:
        return
    if adaptation is None:
        keys = _common_keys("model", run, cfg)
    elif is_base:
        keys = _keys_of_positions(cfg, run, adaptation)
    else:
        keys = _common_keys("peft", run, cfg)
    for key in sorted(keys):
        stored = OmegaConf.select(run, key, default=VALUE_WITHOUT.get(key))
        now = OmegaConf.select(cfg, key, default=VALUE_WITHOUT.get(key))
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
        if key == "model":  # whose other keys mean something else
            return


def _common_keys(section: str, run: DictConfig, cfg: DictConfig) -> set[str]:
    """List the keys of a section that both configs have, but those that may differ."""
    stored = flat(OmegaConf.to_container(run[section]), section)
    now = flat(OmegaConf.to_container(cfg[section]), section)
    return (stored.keys() & now.keys()) - FREE


def _keys_of_positions(cfg: DictConfig, run: DictConfig, adaptation: Adaptation) -> set[str]:
    """List the keys in which a model must agree with the base that it adapts, so that it begins
    with the base's logits.
    """
    keys = set(OPTIONAL)
    if not adaptation.drop and not _is_same_encoding(cfg, run):
        keys.add("model.scaling.method")
        if not adaptation.theta:
            keys.add("model.theta")
    return keys


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
    deciding = ("_target_", "layers", "random_range", "random_floats")
    return all(base.get(key) == cfg.model.get(key) for key in deciding)
