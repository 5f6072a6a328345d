"""The weights that a run begins from: the file of ``checkpoint=``, and how a model loads it.

A checkpoint is a ``.ckpt`` of ours, with all weights or, of a run that adapted a base model
(``peft=``), only with the trained ones, or the folder of a Llama in Hugging Face's format.
"""

import copy
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.machine.files import sha256
from tape_exp.settings.construct import takes
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_yaml
from tape_exp.settings.folders import TRAIN, path_of
from tape_exp.settings.overrides import literal
from tape_exp.settings.plugins import yaml_of
from tape_exp.settings.targets import locate

if TYPE_CHECKING:
    from tape_exp.models.decoder import Decoder
    from tape_exp.models.peft import Adaptation

log = logging.getLogger("tape_exp")

ADOPTED = ("task.arch", "model.theta", "model.scaling", "task.tokenizer.bos", "task.tokenizer.eos")
"""What follows from the Llama that a run begins from, whatever the config says."""


ROPE = "tape_exp.models.positions.rope.RoPE"


def stored_config(path: Path) -> Any:
    """The config.yaml of a run, which may be another user's.

    Raises:
        ConfigError: it cannot be read, or it refers to something outside of itself, as
            ``${oc.env:HF_TOKEN}`` does: a run writes values only.
    """
    cfg = read_yaml(path, "name another run")
    if "${" in OmegaConf.to_yaml(cfg) or not isinstance(cfg, DictConfig):
        raise ConfigError(
            f"{path} is not a config that a run wrote: it must hold keys with values and no "
            "${…}. Write the values out."
        )
    return cfg


def wanted(cfg: DictConfig) -> str | None:
    """What the config says to begin from: ``checkpoint``, or the task's own ``init_from``."""
    return cfg.checkpoint or cfg.task.get("init_from")


def variant(cfg: DictConfig) -> str:
    """The model and how it was adapted: ``tape``, ``rope-lora``."""
    return cfg.model.name if cfg.peft.name == "none" else f"{cfg.model.name}-{cfg.peft.name}"


def find(spec: str, cfg: DictConfig) -> Path:
    """The checkpoint ``checkpoint=<spec>`` means: a file, a run's newest, a task's run or a Llama.

    A task's name stands for its run of the same model, ``peft``, scale and seed below ``runs``, or,
    where a base model is adapted, for the base's run. ``owner/name`` is a repository of the Hugging
    Face hub.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if (path := _at(spec)) is not None:
        return path
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        from tape_exp.models import llama

        return llama.fetch(spec, f"checkpoint={spec}")
    names = [variant(cfg)] if cfg.peft.name == "none" else [variant(cfg), cfg.peft.base]
    places = [path_of("runs", cfg.runs) / spec / cfg.scale.name / name for name in names]
    for place in places:
        finished = _finished(place, cfg)
        if len(finished) > 1:
            raise ConfigError(
                f"checkpoint={spec}: {len(finished)} finished runs of this model, scale and seed "
                f"are in {place}; name one: " + ", ".join(f"checkpoint={f}" for f in finished)
            )
        if finished:
            return _newest(finished[0], spec)
    if not is_task(spec):
        raise ConfigError(
            f"checkpoint={spec} is neither a file, nor the folder of a run or of a Llama, nor a "
            "task; name one of these."
        )
    from tape_exp.settings.overrides import choice_of_model

    model = shlex.quote(f"model={choice_of_model(cfg.model)}")
    make = [f"{TRAIN} task={spec} {model} scale={cfg.scale.name} seed={cfg.seed}"]
    if cfg.peft.name != "none":
        base = make[0].replace(model, f"model={cfg.peft.base}")
        make = [f"{make[0]} peft={cfg.peft.name}", base]
    raise ConfigError(
        f"checkpoint={spec} is neither a file nor a run's folder, and no finished run of a task of "
        f"that name is in {' or '.join(map(str, places))}. To make it: {', or: '.join(make)}."
    )


def is_task(spec: str) -> bool:
    """Whether ``checkpoint=<spec>`` is a task's name, which goes before a file of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


def _at(spec: str) -> Path | None:
    """The checkpoint, or the Llama, that a path means; None of a name, and of what is not there."""
    path = path_of("checkpoint", spec)
    if not path.exists() or (path.is_dir() and is_task(spec)):
        return None
    from tape_exp.models import llama

    return path if path.is_file() or llama.is_llama(path) else _newest(path, spec)


def _finished(place: Path, cfg: DictConfig) -> list[Path]:
    """The finished runs of the seed in a folder, except those of ``debug=``.

    If there are several, those on the same text count, and among these the unchanged task's.
    """
    configs = {
        done.parent: stored_config(done.with_name("config.yaml"))
        for done in place.glob(f"seed{cfg.seed}-*/DONE")
    }
    runs = {
        run: kept
        for run, kept in configs.items()
        if OmegaConf.select(kept, "debug.name", default="none") == "none"
    }
    for same in (lambda kept: kept.scale.text == cfg.scale.text, _is_plain):
        if len(runs) > 1:
            runs = {run: kept for run, kept in runs.items() if same(kept)} or runs
    return sorted(runs)


def _is_plain(kept: Any) -> bool:
    """Whether a run's config is what its choices compose to."""
    from tape_exp.settings.compose import compose_config
    from tape_exp.settings.overrides import choice_of

    words = [
        f"task={choice_of('task', kept.task.name)}",
        f"scale={kept.scale.name}",
        f"scale.text={kept.scale.text}",
    ]
    plain = OmegaConf.to_container(compose_config(words).task, resolve=True)
    return plain == OmegaConf.to_container(kept.task, resolve=True)


def _newest(folder: Path, spec: str) -> Path:
    saved = sorted((folder / "checkpoints").glob("step*.ckpt"))
    if not saved:
        raise ConfigError(
            f"checkpoint={spec}: {folder} is neither the folder of a run with checkpoints nor a "
            "Llama."
        )
    return saved[-1]


def companion(checkpoint: Path, name: str) -> Path | None:
    """A file that the checkpoint's run, or the Llama, keeps in its folder, if it does."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent.parent) / name
    return path if path.is_file() else None


def title(checkpoint: Path) -> str:
    """The run's name and the step, or the name and a fingerprint of a file outside of runs."""
    if checkpoint.is_dir():
        from tape_exp.models import llama

        return f"{checkpoint.name}-{llama.fingerprint(checkpoint)[:10]}"
    if companion(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def title_of(spec: str | None) -> str | None:
    """The title of ``checkpoint=<spec>`` if that is a path; None for a name or a missing file."""
    path = None if spec is None else _at(spec)
    return None if path is None else title(path)


def adapted(checkpoint: Path) -> DictConfig | None:
    """The config of the run that the checkpoint is of, if it adapted a base model."""
    kept = None if checkpoint.is_dir() else companion(checkpoint, "config.yaml")
    cfg: Any = stored_config(kept) if kept else None
    return cfg if kept and cfg.peft.name != "none" else None


def base_of(checkpoint: Path, cfg: DictConfig) -> Path:
    """The checkpoint from which an adapted run of that config began."""
    cfg.runs = str(checkpoint.parents[5])
    spec = wanted(cfg)
    try:
        assert spec is not None
        return find(spec, cfg)
    except ConfigError as error:
        raise ConfigError(
            f"{checkpoint} holds only what was trained on top of its base, and the base is "
            f"missing: {error}"
        ) from error


def base_title(checkpoint: Path | None) -> str | None:
    """The title of the base model that a run from the checkpoint adapts or continues to adapt."""
    if checkpoint is None:
        return None
    cfg = adapted(checkpoint)
    return title(checkpoint if cfg is None else base_of(checkpoint, cfg))


def llama_below(checkpoint: Path) -> Path | None:
    """The Llama that the weights are, or that they adapt."""
    if checkpoint.is_dir():
        return checkpoint
    cfg = adapted(checkpoint)
    return None if cfg is None else llama_below(base_of(checkpoint, cfg))


def adopt(cfg: DictConfig) -> DictConfig:
    """The config with the sizes, positions and special tokens of the Llama it begins from, if any.

    Raises:
        ConfigError: the checkpoint is missing, is no Llama, or ``model`` is not rotary.
    """
    spec = wanted(cfg)
    folder = llama_below(find(spec, cfg)) if spec else None
    if folder is None:
        return cfg
    from tape_exp.models import llama

    llama_config = llama.read_config(folder)
    if "layers" in cfg.model or not takes(locate(cfg.model._target_, "model"), "scaling"):
        raise ConfigError(
            f"checkpoint={spec} is a Llama, whose positions are RoPE's; model={cfg.model.name} "
            "cannot take them up."
        )
    for key in ("ssmax", "qk_norm"):
        if cfg.model.get(key):
            raise ConfigError(
                f"checkpoint={spec} is a Llama, which has learned to attend without model.{key}; "
                "leave it out."
            )
    _refuse_unheeded(cfg, llama_config.sizes(), llama_config.theta, llama_config.scaling)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        cfg.task.arch = llama_config.sizes()
        cfg.model.theta = llama_config.theta
        own = cfg.model.get("scaling") or {}
        cfg.model.scaling = OmegaConf.merge(own, llama_config.scaling)
        for kind, token in (("bos", llama_config.bos), ("eos", llama_config.eos)):
            if token is not None:
                cfg.task.tokenizer[kind] = token
    return cfg


def _refuse_unheeded(
    cfg: DictConfig, sizes: dict[str, Any], theta: float, scaling: dict[str, Any]
) -> None:
    """Raise where the user has set what the Llama decides, and to something else."""
    from tape_exp.settings.compose import compose_config

    words = [f"model={cfg.model.name}", f"task={cfg.task.name}", f"scale={cfg.scale.name}"]
    usual = compose_config(words)
    theirs = {f"task.arch.{key}": value for key, value in sizes.items()}
    theirs |= {"model.theta": theta, "model.scaling.method": scaling.get("method", "none")}
    for key, value in theirs.items():
        given = OmegaConf.select(cfg, key)
        if given is not None and given != value and given != OmegaConf.select(usual, key):
            further = (
                "; a Llama's frequencies are stretched by peft.interpolation and peft.theta"
                if key.startswith("model.")
                else ""
            )
            raise ConfigError(
                f"{key}={given} has no effect: {wanted(cfg)} is a Llama, which has {value}; leave "
                f"it out{further}."
            )


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


def without_adopted(config: dict[str, Any]) -> dict[str, Any]:
    """A recorded config without the keys that :func:`adopt` sets."""
    config = copy.deepcopy(config)
    for path in ADOPTED:
        *above, last = path.split(".")
        node = config
        for key in above:
            node = node.get(key, {})
        node.pop(last, None)
    return config


def trained_length(checkpoint: Path) -> int | None:
    """The longest row that the weights were trained on, where their run or the Llama says so."""
    if checkpoint.is_dir():
        from tape_exp.models import llama

        return llama.read_config(checkpoint).max_positions
    kept = companion(checkpoint, "config.yaml")
    return stored_config(kept).task.get("train_length") if kept else None


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
        else:
            _warn_of_other_positions(decoder, checkpoint)
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


def _warn_of_other_positions(decoder: "Decoder", checkpoint: Path) -> None:
    """Say that weights were trained with another encoding, where all fit since neither has any."""
    kept = None if checkpoint.is_dir() else companion(checkpoint, "config.yaml")
    if kept is None:
        return
    trained: Any = stored_config(kept).model
    own = [type(block.position) for block in decoder.blocks()]
    entries = trained.get("layers", [trained])
    theirs = [entries[layer % len(entries)].get("_target_") for layer in range(len(own))]
    if theirs != [f"{one.__module__}.{one.__qualname__}" for one in own]:
        log.warning(
            "checkpoint %s was trained with model=%s, whose weights fit this model too, but its "
            "positions are others; set model=%s unless that is meant.",
            checkpoint,
            trained.name,
            trained.name,
        )


def check_base(checkpoint: Path) -> None:
    """Refuse an adapted run whose base is another now. Raises :class:`ConfigError`."""
    cfg = adapted(checkpoint)
    known = _content(checkpoint).get("base") if cfg is not None else None
    if cfg is None or known is None:
        return
    base = title(base_of(checkpoint, cfg))
    if known != base:
        raise ConfigError(
            f"checkpoint {checkpoint} was trained on top of another base, {known}, than the "
            f"one that is there now, {base}. Restore that base, or train anew."
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

    weights = _named(_content(checkpoint)["state_dict"])
    own = dict(trained(decoder))
    if wrong := sorted(
        weights.keys() ^ own.keys()
        | {n for n in weights.keys() & own.keys() if weights[n].shape != own[n].shape}
    ):
        raise ConfigError(
            f"checkpoint {checkpoint} was adapted with other settings of peft: {wrong[0]} does not "
            "fit. Its run's config.yaml holds them."
        )
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
    content = _content(checkpoint)
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
    decoder.load_state_dict(weights)


def trained_tokenizer(checkpoint: Path) -> str | None:
    """The fingerprint of the tokenizer that a checkpoint was trained with, where it says so."""
    if checkpoint.is_dir():
        return None
    fingerprints = (
        value["tokenizer"]
        for value in _content(checkpoint).values()
        if isinstance(value, dict) and "tokenizer" in value
    )
    return next(fingerprints, None)


def _content(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds, mapped and not yet read. Raises :class:`ConfigError`."""
    import torch

    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        content["state_dict"]
    except Exception as error:  # torch raises whatever the broken content leads to
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{checkpoint} is not a readable checkpoint ({reason}); name another in checkpoint=."
        ) from error
    return content


def _sizes(config: Path) -> str:
    """What a run's config says of its model, as words of the command line."""
    cfg = stored_config(config)
    arch = " ".join(f"task.arch.{key}={value}" for key, value in cfg.task.arch.items())
    return f"model={cfg.model.name} scale={cfg.scale.name} {arch}"
