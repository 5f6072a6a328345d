"""The weights that a run begins from: which file ``checkpoint=`` means, and what is in it.

A checkpoint is a ``.ckpt`` of ours, with all weights or, where the run adapted a base model
(``peft=``), with the trained ones only; or the folder of a Llama in Hugging Face's format.
"""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape_exp.machine.files import sha256, short_hash, zip_is_sound
from tape_exp.runs.identity import variant
from tape_exp.runs.saved import saved
from tape_exp.settings import files
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal
from tape_exp.settings.plugins import changed_sources, sources_of, yaml_of

LOCAL = (".", "/", "~", "runs/", "data/")  # a path, where one of the hub's names could be
DEFAULTS = (None, "<s>", "</s>")  # of the tokenizer's special tokens
CHOSEN = re.compile(r"task\.tokenizer\.(bos|eos|add_bos|stops)")  # may differ from the Llama's
# What follows from a Llama, whatever else the config says.
OF_LLAMA = ("config.json", "adapter_config.json")  # which its folder has
LLAMA_KEYS = [
    *("task.arch", "model.theta", "model.scaling", "model.qk_norm", "model.window"),
    *("task.tokenizer.bos", "task.tokenizer.eos"),
    *("task.tokenizer.add_bos", "task.tokenizer.stops"),
]


def _llama() -> Any:
    """The module of Llamas, which imports torch."""
    from tape_exp.models import llama

    return llama


def is_task(spec: str) -> bool:
    """Whether ``checkpoint=<spec>`` is a task's name, which precedes a file of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


class NoRunError(ConfigError):
    """A task whose run is to be begun from has no finished one."""


def find(cfg: DictConfig) -> Path | None:
    """The checkpoint that a run begins from, if it does: a file, a run's newest, a task's run, or
    the folder of a Llama; a GGUF file becomes such a folder, below ``cache``.

    A task's name stands for its finished run of the same model, ``peft``, scale and seed below
    ``runs``, or, where a base model is adapted, for the base's run. ``owner/name`` is a repository
    of the Hugging Face hub. Raises :class:`ConfigError` where there is none, or are several.
    """
    if cfg.checkpoint is None:
        return None
    spec = str(cfg.checkpoint)
    path = Path(spec).expanduser()
    if (file := _gguf(path)) is not None:
        from tape_exp.models import gguf  # imports torch

        return gguf.converted(file, Path(cfg.cache).expanduser())
    if path.suffix in (".safetensors", ".json"):
        raise ConfigError(f"checkpoint={spec} is a file of a Llama; name its folder: {path.parent}")
    if path.is_file():
        return path
    if path.is_dir() and not is_task(spec):
        return path if _is_llama(path) else last_checkpoint(path)
    if _is_repository(spec, cfg.runs):
        return _llama().fetch(spec, f"checkpoint={spec}, which is no folder here")
    if "/" in spec:
        hint = " `make smollm2` brings it." if path.name == "smollm2" else ""
        raise ConfigError(
            f"checkpoint={spec} is no file, nor the folder of a run or a Llama.{hint}"
        )
    return _of_task(spec, cfg)


def _is_llama(folder: Path) -> bool:
    return any((folder / name).is_file() for name in OF_LLAMA)


def _is_repository(spec: str, runs: str) -> bool:
    """Whether ``checkpoint=<spec>`` is ``owner/name`` of the Hugging Face hub, and no path."""
    return spec.count("/") == 1 and not spec.startswith((*LOCAL, f"{runs}/"))


def _of_task(task: str, cfg: DictConfig) -> Path:
    """The newest checkpoint of a task's finished run."""
    models = [variant(cfg)]
    if cfg.peft.name != "none":
        models.append(cfg.peft.base)
    folders = [Path(cfg.runs).expanduser() / task / cfg.scale.name / model for model in models]
    runs = _finished_runs(folders[0], cfg) or _finished_runs(folders[-1], cfg)
    if not runs:
        raise NoRunError(
            f"checkpoint={task} is no file, nor the folder of a run or a Llama, nor a task with a "
            f"finished run of seed {cfg.seed} in {' or '.join(map(str, folders))}; train it."
        )
    if len(runs) > 1:
        choices = ", ".join(f"checkpoint={run}" for run in runs)
        raise ConfigError(f"checkpoint={task}: there are {len(runs)} finished runs, {choices}.")
    return last_checkpoint(runs[0])


def _gguf(path: Path) -> Path | None:
    """The GGUF file that is named, or that is alone in a folder without another Llama."""
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"checkpoint={path}: there is no such file.")
        return path
    here = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if not here or _is_llama(path):
        return None
    if len(here) > 1:
        choices = ", ".join(f"checkpoint={file}" for file in here)
        raise ConfigError(f"checkpoint={path} has {len(here)} GGUF files: {choices}.")
    return here[0]


def last_checkpoint(run: Path) -> Path:
    """The newest checkpoint in the folder of a run; raises :class:`ConfigError` without one."""
    checkpoints = saved(run / "checkpoints")
    if not checkpoints:
        raise ConfigError(f"checkpoint={run} is neither a Llama nor a run with checkpoints.")
    return checkpoints[-1]


def _finished_runs(place: Path, cfg: DictConfig) -> list[Path]:
    """The finished runs of the seed in a folder, without those of ``debug=``; of these only those
    on the same text, and of these only those of the same ``peft``, if there are any.
    """
    done = sorted(place.glob(f"seed{cfg.seed}-*/DONE"))
    configs = {path.parent: stored_config(path.with_name("config.yaml")) for path in done}
    runs = [run for run, stored in configs.items() if stored.debug.name == "none"]
    runs = [run for run in runs if configs[run].scale.text == cfg.scale.text] or runs
    return [run for run in runs if configs[run].peft == cfg.peft] or runs


def stored_config(path: Path) -> Any:
    """The config.yaml of a run, which may be another user's: values, with nothing to resolve."""
    cfg = files.read(path, "name another run")
    if not isinstance(cfg, DictConfig) or "${" in OmegaConf.to_yaml(cfg):
        raise ConfigError(f"{path} is not a config that a run wrote; name another run.")
    cfg.checkpoint = cfg.checkpoint or cfg.task.get("init_from")  # older runs wrote null
    return cfg


def companion(checkpoint: Path, name: str) -> Path | None:
    """A file in the folder of the checkpoint's run, or of the Llama, if it is there."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent.parent) / name
    return path if path.is_file() else None


def run_config(checkpoint: Path) -> Any:
    """The config of the run that wrote a checkpoint; None of a Llama or a file outside of runs."""
    path = companion(checkpoint, "config.yaml")
    return stored_config(path) if path else None


def folder_of_runs(run: Path, cfg: DictConfig) -> str:
    """The folder of all runs, wherever it is now; of a run that was moved out of it, what its
    config says.
    """
    place = (cfg.task.name, cfg.scale.name, variant(cfg))
    return str(run.parents[3]) if run.parts[-4:-1] == place else cfg.runs


def edited_since(checkpoint: Path, model: Any) -> list[str]:
    """The files of the encodings of ``model`` that have changed since the run that wrote a
    checkpoint.
    """
    manifest = companion(checkpoint, "manifest.json") if run_config(checkpoint) else None
    sources = files.read(manifest).get("sources", {}) if manifest else {}
    return changed_sources({name: sources[name] for name in sources_of(model) if name in sources})


def base_of(checkpoint: Path) -> Path:
    """The checkpoint, or the Llama, that an adapted run adapts; any other one is a base itself."""
    cfg = run_config(checkpoint)
    if cfg is None or cfg.peft.name == "none":
        return checkpoint
    cfg.runs = folder_of_runs(checkpoint.parents[1], cfg)
    try:
        return base_of(find(cfg) or checkpoint)
    except ConfigError as error:
        raise ConfigError(f"the base of the adapted {checkpoint} is missing: {error}") from error


def trained_length(checkpoint: Path) -> int | None:
    """The longest row that the weights were trained on, where their run or the Llama says so."""
    if checkpoint.is_dir():
        return _llama().read_config(checkpoint).max_positions
    cfg = run_config(checkpoint)
    return cfg and (cfg.task.get("skip_to") or cfg.task.get("train_length"))


def chat_template(checkpoint: Path) -> str | None:
    """The template of a chat that the Llama has, or that a run has from its Llama."""
    if checkpoint.is_dir():
        return _llama().read_config(checkpoint).chat_template
    path = companion(checkpoint, "chat_template.jinja")
    return path.read_text(encoding="utf-8") if path else None


def trained_tokenizer(checkpoint: Path) -> str | None:
    """The fingerprint of the tokenizer that a checkpoint was trained with, where it says so."""
    states = (value for value in read_checkpoint(checkpoint).values() if isinstance(value, dict))
    return next((state["tokenizer"] for state in states if "tokenizer" in state), None)


def title(checkpoint: Path) -> str:
    """The run's name and the step, or the name and a fingerprint of a file outside of runs."""
    if checkpoint.is_dir():
        return f"{checkpoint.name}-{_llama().fingerprint(checkpoint)[:10]}"
    checkpoint = checkpoint.resolve()  # a link may lead to another run tomorrow
    if companion(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def fingerprint(checkpoint: Path) -> str | None:
    """Sixteen hexadecimal digits of a run's weights, and of those of the base that they adapt: a
    run that was removed and trained again on other text has the same title. None of a Llama, or of
    a file outside of runs, whose title tells its weights.
    """
    checkpoint = checkpoint.resolve()
    if checkpoint.is_dir() or companion(checkpoint, "config.yaml") is None:
        return None
    return _hash_of_weights(checkpoint, checkpoint.stat().st_mtime_ns)


@cache
def _hash_of_weights(path: Path, modified: int) -> str:
    import torch

    content = read_checkpoint(path)
    weights: list[Any] = [str(content.get("base_weights"))]
    for name, value in sorted(content["state_dict"].items()):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        weights += [f"{name} {value.dtype} {tuple(value.shape)}", data]
    return short_hash(weights)


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds, mapped into memory: tensors and plain values, nothing that runs.
    Raises :class:`ConfigError` where it is damaged, or no checkpoint.
    """
    return _read(checkpoint.resolve(), checkpoint.stat().st_mtime_ns)


@cache  # checking the sums reads the whole file
def _read(path: Path, modified: int) -> dict[str, Any]:
    import torch

    try:
        if not zip_is_sound(path):
            raise ValueError("its checksums do not fit")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        dict(content["state_dict"])
    except Exception as error:  # torch raises whatever the broken content leads to
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{path} is damaged or not a checkpoint ({reason}); name the one before it."
        ) from error
    return content


def llama_title(checkpoint: Path) -> str | None:
    """The title of the Llama that the weights are, adapt, or were before they were fine-tuned."""
    if (base := base_of(checkpoint)).is_dir():
        return title(base)
    record = companion(checkpoint, "record.json")
    return files.read(record).get("llama") if record else None


def stretched(asked: Any, own: Any, length: int | None, base: Path) -> Any:
    """The scaling of weights with one of their ``own``, stretched as a config asks; by the same
    method again the factors multiply. ``length`` is that of weights that are not stretched yet,
    ``base`` the Llama that they are or were.

    Raises:
        ConfigError: they are stretched already, by another method or by as much as is asked.
    """
    from tape_exp.models.positions.rope import Scaling

    method, factor = ((asked or {}).get(key) for key in ("method", "factor"))
    Scaling(method or "none", factor)  # it refuses a factor without a method
    if method in (None, "none"):
        return own
    if own["method"] == "none":
        return {**asked, "original": asked.get("original") or length}
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
    longer = {**own, "factor": own["factor"] * factor}
    if base.is_dir():  # whose attention_factor may be a function of the factor
        theirs = _llama().read_config(base).scaling
        if theirs.get("attention_factor") == own.get("attention_factor"):
            further = longer["factor"] / theirs["factor"]
            again = _llama().read_config(base, further).scaling
            longer["attention_factor"] = again.get("attention_factor")
    return longer


def apply_llama_config(cfg: DictConfig, start: Path) -> DictConfig:
    """The config of a run that begins from ``start`` with the sizes, positions and special tokens
    of the Llama that this is, adapts or was fine-tuned from; the config itself of another.

    Raises:
        ConfigError: ``model`` cannot take up a Llama's positions, the task reads no text, or what
            was asked for has no effect.
    """
    cfg = copy.deepcopy(cfg)
    run = run_config(start)
    with open_dict(cfg):
        asked = cfg.pop("asked", [])  # the keys that a command line gives
    if (base := base_of(start)).is_dir():
        llama = _llama().read_config(base)
        values = {key: getattr(llama, key.rpartition(".")[2]) for key in LLAMA_KEYS}
    elif llama_title(start):  # which was fine-tuned whole: the config of that run has them
        values = {key: OmegaConf.select(run, key) for key in LLAMA_KEYS}
    else:
        return cfg
    _check_fit(cfg, values)
    # An adapted run may have stretched the base's positions itself.
    own = values["model.scaling"] if run is None else OmegaConf.select(run, "model.scaling")
    scaling = cfg.model.get("scaling")
    values["model.scaling"] = stretched(scaling, own, trained_length(start), base)
    applied = copy.deepcopy(cfg)
    for key, value in values.items():
        # Of the tokenizer, what differs from our own default was asked for.
        chosen = key in asked or OmegaConf.select(cfg, key) not in DEFAULTS
        if value is not None and not (chosen and CHOSEN.fullmatch(key)):
            OmegaConf.update(applied, key, value, merge=key == "model.scaling", force_add=True)
    for key in asked:
        _refuse_unheeded(key, cfg, applied)
    return applied


def _check_fit(cfg: DictConfig, values: dict[str, Any]) -> None:
    """Refuse a model and a task that cannot begin from a Llama with these ``values``."""
    if "tokenizer" not in cfg.task:
        raise ConfigError(
            f"checkpoint={cfg.checkpoint} is a Llama, which reads text, and task={cfg.task.name} "
            "has none: choose one that does, such as task=perplexity, c4 or benchmarks."
        )
    model = cfg.model
    scaling = ("ssmax", "temperature", "qk_norm")
    added = [key for key in scaling if model.get(key)]
    added = [key for key in added if not values.get(f"model.{key}")]
    rotary = (
        "layers" not in model
        and "scaling" in arguments_model(locate(model._target_, "model")).model_fields
    )
    if added or not rotary:
        differs = f"adds {added[0]}" if rotary else "has others"
        raise ConfigError(
            f"checkpoint={cfg.checkpoint} is a Llama, whose positions are RoPE, and "
            f"model={model.name} {differs}: it cannot take these weights; use model=rope."
        )


def _refuse_unheeded(key: str, cfg: DictConfig, applied: DictConfig) -> None:
    """Refuse a key that a command line gives, and that the Llama decides otherwise."""
    requested = OmegaConf.select(cfg, key)
    of_llama = OmegaConf.select(applied, key)
    if key.startswith("task.tokenizer.") and not CHOSEN.fullmatch(key):
        why = "its own tokenizer comes with it"
    elif requested != of_llama and key != "model.scaling.factor":  # factors multiply
        why = f"it has {literal(of_llama)}"
    else:
        return
    raise ConfigError(
        f"{key}={literal(requested)} has no effect: checkpoint={cfg.checkpoint} is of a Llama, and "
        f"{why}. Leave it out."
    )
