"""The weights that a run begins from: which file ``checkpoint=`` means, and what is in it.

A checkpoint is a ``.ckpt`` of ours, with all weights or, where the run adapted a base model
(``peft=``), with the trained ones only; or the folder of a Llama in Hugging Face's format.
What a run takes over from a Llama is in :mod:`tape_exp.runs.llama_base`.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.files import sha256, short_hash, zip_is_sound
from tape_exp.runs.identity import variant
from tape_exp.runs.saved import saved
from tape_exp.settings import files
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import changed_sources, sources_of, yaml_of

LOCAL = (".", "/", "~", "runs/", "data/")  # a path, where one of the hub's names could be
OF_LLAMA = ("config.json", "adapter_config.json")  # one of which the folder of a Llama has


def llama_module() -> Any:
    """Import the module of Llamas, which imports torch."""
    from tape_exp.models import llama

    return llama


def is_task(spec: str) -> bool:
    """Say whether ``checkpoint=<spec>`` is a task's name, which precedes a folder of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


class NoRunError(ConfigError):
    """A task whose run is to be begun from has no finished one."""


# ---- which checkpoint is meant ----


def find(cfg: DictConfig) -> Path | None:
    """Find the checkpoint that a run begins from, if it does: a file, or the folder of a Llama.

    ``checkpoint=`` names one of these:

    - a ``.ckpt``,
    - the folder of a Llama,
    - a ``.gguf``, or a folder with one: a Llama, whose folder is made below ``cache``,
    - the folder of a run: its newest checkpoint,
    - ``owner/name``: a repository of the Hugging Face hub, which is fetched,
    - a task: the newest checkpoint of its finished run of the same model, ``peft``, scale and seed
      below ``runs`` or, where a base model is adapted, of the base's run.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if cfg.checkpoint is None:
        return None
    spec = str(cfg.checkpoint)
    path = Path(spec).expanduser()
    gguf_file = _gguf(path)
    if gguf_file is not None:
        from tape_exp.models import gguf  # imports torch

        return gguf.converted(gguf_file, Path(cfg.cache).expanduser())
    if path.suffix in (".safetensors", ".json"):
        raise ConfigError(f"checkpoint={spec} is a file of a Llama; name its folder: {path.parent}")
    if path.is_file():
        return path
    if path.is_dir() and not is_task(spec):
        return path if _is_llama(path) else last_checkpoint(path)
    if _is_repository(spec, cfg.runs):
        return llama_module().fetch(spec, f"checkpoint={spec}, which is no folder here")
    if "/" in spec:
        hint = " `make smollm2` brings it." if path.name == "smollm2" else ""
        raise ConfigError(
            f"checkpoint={spec} is no file, nor the folder of a run or a Llama.{hint}"
        )
    return _of_task(spec, cfg)


def _is_llama(folder: Path) -> bool:
    return any((folder / name).is_file() for name in OF_LLAMA)


def _is_repository(spec: str, runs: str) -> bool:
    """Say whether ``checkpoint=<spec>`` is ``owner/name`` of the Hugging Face hub, and no path."""
    return spec.count("/") == 1 and not spec.startswith((*LOCAL, f"{runs}/"))


def _of_task(task: str, cfg: DictConfig) -> Path:
    """Find the newest checkpoint of a task's finished run."""
    models = [variant(cfg)]
    if cfg.peft.name != "none":
        models.append(cfg.peft.base)
    of_scale = Path(cfg.runs).expanduser() / task / cfg.scale.name
    runs: list[Path] = []
    for model in models:
        runs = runs or _finished_runs(of_scale / model, cfg)
    if not runs:
        searched = " or ".join(str(of_scale / model) for model in models)
        raise NoRunError(
            f"checkpoint={task} is no file, nor the folder of a run or a Llama, nor a task with a "
            f"finished run of seed {cfg.seed} in {searched}; train it."
        )
    if len(runs) > 1:
        choices = ", ".join(f"checkpoint={run}" for run in runs)
        raise ConfigError(f"checkpoint={task}: there are {len(runs)} finished runs, {choices}.")
    return last_checkpoint(runs[0])


def _gguf(path: Path) -> Path | None:
    """Find the GGUF file that is named, or that is alone in a folder without another Llama."""
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"checkpoint={path}: there is no such file.")
        return path
    files_here = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if not files_here or _is_llama(path):
        return None
    if len(files_here) > 1:
        choices = ", ".join(f"checkpoint={file}" for file in files_here)
        raise ConfigError(f"checkpoint={path} has {len(files_here)} GGUF files: {choices}.")
    return files_here[0]


def last_checkpoint(run: Path) -> Path:
    """Find the newest checkpoint in the folder of a run; raise :class:`ConfigError` without one."""
    checkpoints = saved(run / "checkpoints")
    if not checkpoints:
        raise ConfigError(f"checkpoint={run} is neither a Llama nor a run with checkpoints.")
    return checkpoints[-1]


def _finished_runs(folder: Path, cfg: DictConfig) -> list[Path]:
    """List the finished runs of the seed in a folder, without those of ``debug=``; of these only
    those on the same text, and of these only those of the same ``peft``, if there are any.
    """
    configs = {}
    for path in sorted(folder.glob(f"seed{cfg.seed}-*/DONE")):
        stored = stored_config(path.with_name("config.yaml"))
        if stored.debug.name == "none":
            configs[path.parent] = stored
    runs = list(configs)
    same_text = [run for run in runs if configs[run].scale.text == cfg.scale.text]
    runs = same_text or runs
    same_peft = [run for run in runs if configs[run].peft == cfg.peft]
    return same_peft or runs


# ---- what is known of a checkpoint ----


def stored_config(path: Path) -> Any:
    """Read the config.yaml of a run, which may be another user's: values, nothing to resolve."""
    cfg = files.read(path, "name another run")
    if not isinstance(cfg, DictConfig) or "${" in OmegaConf.to_yaml(cfg):
        raise ConfigError(f"{path} is not a config that a run wrote; name another run.")
    cfg.checkpoint = cfg.checkpoint or cfg.task.get("init_from")  # older runs wrote null
    return cfg


def file_beside(checkpoint: Path, name: str) -> Path | None:
    """Find a file in the folder of the checkpoint's run, or of the Llama, if it is there."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent.parent
    path = folder / name
    return path if path.is_file() else None


def run_config(checkpoint: Path) -> Any:
    """Read the config of the run that wrote a checkpoint; None of a Llama or a file outside of
    runs.
    """
    path = file_beside(checkpoint, "config.yaml")
    return stored_config(path) if path else None


def folder_of_runs(run: Path, cfg: DictConfig) -> str:
    """Find the folder of all runs, wherever it is now; of a run that was moved out of it, what its
    config says.
    """
    if run.parts[-4:-1] == (cfg.task.name, cfg.scale.name, variant(cfg)):
        return str(run.parents[3])
    return cfg.runs


def edited_since(checkpoint: Path, model: Any) -> list[str]:
    """List the files of the encodings of ``model`` that have changed since the run that wrote a
    checkpoint.
    """
    manifest = file_beside(checkpoint, "manifest.json")
    if manifest is None or run_config(checkpoint) is None:
        return []
    sources = files.read(manifest).get("sources", {})
    return changed_sources({name: sources[name] for name in sources_of(model) if name in sources})


def base_of(checkpoint: Path) -> Path:
    """Find the checkpoint, or the Llama, that an adapted run adapts; any other is a base itself."""
    cfg = run_config(checkpoint)
    if cfg is None or cfg.peft.name == "none":
        return checkpoint
    cfg.runs = folder_of_runs(checkpoint.parents[1], cfg)
    try:
        return base_of(find(cfg) or checkpoint)
    except ConfigError as error:
        raise ConfigError(f"the base of the adapted {checkpoint} is missing: {error}") from error


def trained_length(checkpoint: Path) -> int | None:
    """Return the longest row that the weights were trained on, where their run or the Llama says
    so.
    """
    if checkpoint.is_dir():
        return llama_module().read_config(checkpoint).max_positions
    cfg = run_config(checkpoint)
    if cfg is None:
        return None
    return cfg.task.get("skip_to") or cfg.task.get("train_length")


def chat_template(checkpoint: Path) -> str | None:
    """Read the template of a chat that the Llama has, or that a run has from its Llama."""
    if checkpoint.is_dir():
        return llama_module().read_config(checkpoint).chat_template
    path = file_beside(checkpoint, "chat_template.jinja")
    return path.read_text(encoding="utf-8") if path else None


def trained_tokenizer(checkpoint: Path) -> str | None:
    """Read the fingerprint of the tokenizer that a checkpoint was trained with, where one of the
    states in it says so.
    """
    for state in read_checkpoint(checkpoint).values():
        if isinstance(state, dict) and "tokenizer" in state:
            return state["tokenizer"]
    return None


def title(checkpoint: Path) -> str:
    """Name a checkpoint by its run and step, or by the name and a fingerprint of a file outside of
    runs.
    """
    if checkpoint.is_dir():
        return f"{checkpoint.name}-{llama_module().fingerprint(checkpoint)[:10]}"
    checkpoint = checkpoint.resolve()  # a link may lead to another run tomorrow
    if file_beside(checkpoint, "config.yaml"):
        return "-".join(checkpoint.parent.parent.parts[-4:]) + "/" + checkpoint.stem
    return f"{checkpoint.name}-{sha256(checkpoint)[:10]}"


def fingerprint(checkpoint: Path) -> str | None:
    """Hash a run's weights, and those of the base that they adapt, to sixteen digits: a run that
    was removed and trained again on other text has the same title. None of a Llama, or of a file
    outside of runs, whose title tells its weights.
    """
    checkpoint = checkpoint.resolve()
    if checkpoint.is_dir() or file_beside(checkpoint, "config.yaml") is None:
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
    """Read what a checkpoint holds, mapped into memory: tensors and plain values, nothing that
    runs. Raises :class:`ConfigError` where it is damaged, or no checkpoint.
    """
    return _read(checkpoint.resolve(), checkpoint.stat().st_mtime_ns)


@lru_cache(maxsize=2)  # checking the sums reads the whole file
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
