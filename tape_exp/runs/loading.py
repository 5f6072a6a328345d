"""How a model takes the weights of a checkpoint, adapted or not."""

from pathlib import Path

from omegaconf import DictConfig

from tape_exp.models import llama, peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import Adaptation
from tape_exp.runs.agreement import check_config
from tape_exp.runs.checkpoint_info import fingerprint, read_checkpoint, run_config, title
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.errors import ConfigError


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
    check_config(decoder, cfg, run, checkpoint, adaptation)
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
