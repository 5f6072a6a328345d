"""The weights that a run begins from: which file ``checkpoint=`` means, and what it is.

A checkpoint is a ``.ckpt`` of ours, with all weights or, of a run that adapted a base model
(``peft=``), only with the trained ones, or the folder of a Llama in Hugging Face's format.
"""

import copy
import hashlib
import shlex
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.machine.files import parse_json, sha256
from tape_exp.settings.construct import takes
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json, read_yaml
from tape_exp.settings.folders import TRAIN, path_of
from tape_exp.settings.plugins import yaml_of
from tape_exp.settings.targets import locate

ADOPTED = ("task.arch", "model.theta", "model.scaling", "task.tokenizer.bos", "task.tokenizer.eos")
"""What follows from the Llama that a run begins from, whatever the config says."""


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


def _key(cfg: DictConfig) -> str:
    return "checkpoint" if cfg.checkpoint else "task.init_from"


def variant(cfg: DictConfig) -> str:
    """The model and how it was adapted: ``tape``, ``rope-lora``."""
    return cfg.model.name if cfg.peft.name == "none" else f"{cfg.model.name}-{cfg.peft.name}"


def find(spec: str, cfg: DictConfig) -> Path:
    """The checkpoint that a config names: a file, a run's newest, a task's run or a Llama.

    A task's name stands for its run of the same model, ``peft``, scale and seed below ``runs``, or,
    where a base model is adapted, for the base's run. ``owner/name`` is a repository of the Hugging
    Face hub.

    Raises:
        ConfigError: there is none, or there are several.
    """
    asked = f"{_key(cfg)}={spec}"
    if (path := _at(spec, asked)) is not None:
        return path
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        from tape_exp.models import llama

        return llama.fetch(spec, f"{asked}, which is no folder here")
    names = [variant(cfg)] if cfg.peft.name == "none" else [variant(cfg), cfg.peft.base]
    places = [path_of("runs", cfg.runs) / spec / cfg.scale.name / name for name in names]
    for place in places:
        finished = _finished(place, cfg)
        if len(finished) > 1:
            raise ConfigError(
                f"{asked}: {len(finished)} finished runs of this model, scale and seed are in "
                f"{place}; name one: " + ", ".join(f"{_key(cfg)}={f}" for f in finished)
            )
        if finished:
            return _newest(finished[0], asked)
    if not is_task(spec):
        raise ConfigError(
            f"{asked} is neither a file, nor the folder of a run or of a Llama, nor a task; name "
            "one of these."
        )
    from tape_exp.settings.overrides import choice_of_model

    model = shlex.quote(f"model={choice_of_model(cfg.model)}")
    make = [f"{TRAIN} task={spec} {model} scale={cfg.scale.name} seed={cfg.seed}"]
    if cfg.peft.name != "none":
        base = make[0].replace(model, f"model={cfg.peft.base}")
        make = [f"{make[0]} peft={cfg.peft.name}", base]
    raise ConfigError(
        f"{asked} is neither a file nor a run's folder, and no finished run of a task of that name "
        f"is in {' or '.join(map(str, places))}. To make it: {', or: '.join(make)}."
    )


def is_task(spec: str) -> bool:
    """Whether ``checkpoint=<spec>`` is a task's name, which goes before a file of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


def _at(spec: str, asked: str = "") -> Path | None:
    """The checkpoint, or the Llama, that a path means; None of a name, and of what is not there."""
    path = path_of("checkpoint", spec)
    if not path.exists() or (path.is_dir() and is_task(spec)):
        return None
    from tape_exp.models import llama

    return path if path.is_file() or llama.is_llama(path) else _newest(path, asked)


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


def _newest(folder: Path, asked: str) -> Path:
    saved = sorted((folder / "checkpoints").glob("step*.ckpt"))
    if not saved and (folder / "FAILED").exists():
        raise ConfigError(f"{asked}: the run {folder} failed before its first checkpoint.")
    if not saved:
        raise ConfigError(
            f"{asked}: {folder} is neither the folder of a run with checkpoints nor a Llama."
        )
    return saved[-1]


def signature_of(checkpoint: Path) -> Path:
    """The file with the SHA-256 of a checkpoint of ours."""
    return checkpoint.with_suffix(".json")


def companion(checkpoint: Path, name: str) -> Path | None:
    """A file that the checkpoint's run, or the Llama, keeps in its folder, if it does."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent.parent) / name
    return path if path.is_file() else None


def title(checkpoint: Path) -> str:
    """The run's name and the step, or the name and a fingerprint of a file outside of runs."""
    if checkpoint.is_dir():
        from tape_exp.models import llama

        return f"{checkpoint.name}-{llama.fingerprint(checkpoint)[:10]}"
    checkpoint = checkpoint.resolve()  # a link may lead to another run tomorrow
    if companion(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def path_if_any(spec: str | None) -> Path | None:
    """What ``checkpoint=<spec>`` means if that is a path; None for a name or a missing file."""
    return None if spec is None else _at(spec)


def fingerprint(checkpoint: Path) -> str | None:
    """Sixteen hexadecimal digits of a run's weights, and of those of the base that they adapt.

    The title says which run it is, not what is in it: a run that was removed and trained again on
    other text has the same one. None where the title says both: of a Llama, or of a file outside
    of runs.
    """
    if checkpoint.is_dir() or companion(checkpoint.resolve(), "config.yaml") is None:
        return None
    found = checkpoint.stat()
    return _fingerprint(checkpoint.resolve(), found.st_size, found.st_mtime_ns)


@cache
def _fingerprint(path: Path, size: int, changed: int) -> str:
    """Computed once for as long as the file is not written to."""
    import torch

    content = content_of(path)
    digest = hashlib.sha256(str(content.get("base_weights")).encode())
    for name, value in sorted(content["state_dict"].items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


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


def base_below(checkpoint: Path) -> Path:
    """The base model that a run from the checkpoint adapts or continues to adapt."""
    cfg = adapted(checkpoint)
    return checkpoint if cfg is None else base_of(checkpoint, cfg)


def llama_below(checkpoint: Path) -> Path | None:
    """The Llama that the weights are, or that they adapt."""
    if checkpoint.is_dir():
        return checkpoint
    cfg = adapted(checkpoint)
    return None if cfg is None else llama_below(base_of(checkpoint, cfg))


def llama_title(checkpoint: Path) -> str | None:
    """The title of the Llama that the weights are, that they adapt, or that their finished run has
    fine-tuned.
    """
    if folder := llama_below(checkpoint):
        return title(folder)
    record = companion(checkpoint, "record.json")
    return read_json(record).get("llama") if record else None


class _Decided(NamedTuple):
    """What follows from a Llama, whatever a config says."""

    arch: dict[str, Any]
    theta: float
    scaling: dict[str, Any]
    tokens: dict[str, str | None]  # bos and eos


def _decided(checkpoint: Path) -> _Decided | None:
    """What the Llama decides that the weights are, adapt, or were before they were fine-tuned."""
    if folder := llama_below(checkpoint):
        from tape_exp.models import llama

        config = llama.read_config(folder)
        tokens = {"bos": config.bos, "eos": config.eos}
        return _Decided(config.sizes(), config.theta, config.scaling, tokens)
    if llama_title(checkpoint) is None:
        return None
    path = companion(checkpoint, "config.yaml")
    assert path is not None  # beside the record
    kept: Any = OmegaConf.to_container(stored_config(path))
    tokens = {kind: kept["task"]["tokenizer"].get(kind) for kind in ("bos", "eos")}
    return _Decided(kept["task"]["arch"], kept["model"]["theta"], kept["model"]["scaling"], tokens)


def adopt(cfg: DictConfig) -> DictConfig:
    """The config with the sizes, positions and special tokens of the Llama it begins from, if any.

    Raises:
        ConfigError: the checkpoint is missing, is no Llama, or ``model`` is not rotary.
    """
    spec = wanted(cfg)
    decided = _decided(find(spec, cfg)) if spec else None
    if decided is None:
        return cfg
    asked = f"{_key(cfg)}={spec}"
    if "layers" in cfg.model or not takes(locate(cfg.model._target_, "model"), "scaling"):
        raise ConfigError(
            f"{asked} is a Llama, whose positions are RoPE's; model={cfg.model.name} "
            "cannot take them up."
        )
    for key in ("ssmax", "qk_norm"):
        if cfg.model.get(key):
            raise ConfigError(
                f"{asked} is a Llama, which has learned to attend without model.{key}; leave it "
                "out."
            )
    _refuse_unheeded(cfg, decided)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        cfg.task.arch = decided.arch
        cfg.model.theta = decided.theta
        own = cfg.model.get("scaling") or {}
        cfg.model.scaling = OmegaConf.merge(own, decided.scaling)
        for kind, token in decided.tokens.items():
            if token is not None:
                cfg.task.tokenizer[kind] = token
    return cfg


def _refuse_unheeded(cfg: DictConfig, decided: _Decided) -> None:
    """Raise where the user has set what the Llama decides, and to something else."""
    from tape_exp.settings.compose import compose_config

    words = [f"model={cfg.model.name}", f"task={cfg.task.name}", f"scale={cfg.scale.name}"]
    usual = compose_config(words)
    theirs = {f"task.arch.{key}": value for key, value in decided.arch.items()}
    theirs["model.theta"] = decided.theta
    theirs["model.scaling.method"] = decided.scaling.get("method", "none")
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


def trained_tokenizer(checkpoint: Path) -> str | None:
    """The fingerprint of the tokenizer that a checkpoint was trained with, where it says so."""
    if checkpoint.is_dir():
        return None
    fingerprints = (
        value["tokenizer"]
        for value in content_of(checkpoint).values()
        if isinstance(value, dict) and "tokenizer" in value
    )
    return next(fingerprints, None)


def content_of(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds, mapped and not yet read.

    Raises:
        ConfigError: it is no checkpoint, or not the one that was signed.
    """
    import torch

    _refuse_damaged(checkpoint)
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        state = content["state_dict"]
        if not isinstance(state, dict) or not all(map(_is_weight, state, state.values())):
            raise ValueError("state_dict is no dictionary of names and weights")
    except Exception as error:  # torch raises whatever the broken content leads to
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{checkpoint} is not a readable checkpoint ({reason}); name another in checkpoint=."
        ) from error
    return content


def _is_weight(name: Any, value: Any) -> bool:
    """Whether an entry of a state is a name with a dense tensor of real numbers or of integers."""
    import torch

    dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta
    return isinstance(name, str) and dense and not value.is_complex()


def _refuse_damaged(checkpoint: Path) -> None:
    """Refuse a checkpoint that is not the one that was signed. One without a signature is taken."""
    if _fits_signature(checkpoint) is not False:
        return
    before = [p for p in sorted(checkpoint.parent.glob("step*.ckpt")) if p.name < checkpoint.name]
    intact = next((path for path in reversed(before) if _fits_signature(path)), None)
    advice = (
        "restore it, or name another run"
        if intact is None
        else f"{intact} before it is intact: name that one, or move the damaged file away"
    )
    raise ConfigError(
        f"{checkpoint} is damaged: its SHA-256 is not the one of its signature, "
        f"{signature_of(checkpoint).name}; {advice}."
    )


def _fits_signature(checkpoint: Path) -> bool | None:
    """Whether a checkpoint is the one that was signed; None: it has no signature."""
    try:
        signature = parse_json(signature_of(checkpoint).read_bytes())
    except OSError:
        return None
    except ValueError:
        return False
    if not isinstance(signature, dict) or "sha256" not in signature:
        return None  # of another file, which only has the same name
    try:
        found = checkpoint.stat()
        return _digest(checkpoint, found.st_size, found.st_mtime_ns) == signature["sha256"]
    except OSError:
        return None  # whoever reads it says why it cannot be read


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    """The SHA-256 of a file, read once for as long as it is not written to."""
    return sha256(path)
