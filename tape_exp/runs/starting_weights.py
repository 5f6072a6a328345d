"""Which weights a run begins from: what ``checkpoint=`` (or ``task.init_from=``) names.

Read on: :mod:`~tape_exp.runs.finished_runs` finds the run of a task,
:mod:`~tape_exp.runs.checkpoint_info` says what a checkpoint is, :mod:`~tape_exp.runs.llama_base`
what a run takes over from a Llama, and :mod:`~tape_exp.runs.loading` gives a model the weights.
"""

from pathlib import Path

from omegaconf import DictConfig

from tape_exp.runs.checkpoint_files import last_checkpoint
from tape_exp.runs.checkpoint_info import folder_of_runs, llama_module, run_config
from tape_exp.runs.finished_runs import finished_run
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import yaml_of

LOCAL = (".", "/", "~", "runs/", "data/")  # a path, where one of the hub's names could be
OF_LLAMA = ("config.json", "adapter_config.json")  # one of which the folder of a Llama has
FILES = (
    ".ckpt",
    ".gguf",
    ".safetensors",
    ".json",
)  # names of files, also of those that are not there


def starting_checkpoint(cfg: DictConfig, any_text: bool = False) -> Path | None:
    """Find the checkpoint that a run begins from, if it does: a file, or the folder of a Llama.

    ``checkpoint=`` names one of these:

    - a ``.ckpt``,
    - the folder of a Llama,
    - a ``.gguf``, or a folder with one: a Llama, whose folder is made below ``cache``,
    - the folder of a run: its newest checkpoint,
    - ``owner/name``: a repository of the Hugging Face hub, which is fetched,
    - a task: the newest checkpoint of its finished run of the same model, ``peft``, scale, text
      and seed below ``runs`` or, where a base model is adapted, of the base's run.

    Args:
        any_text: take a task's run on other text where there is none on the same.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if cfg.checkpoint is None:
        return None
    spec = str(cfg.checkpoint)
    path = Path(spec).expanduser()
    if path.is_file() or (path.suffix in FILES and not path.is_dir()):
        return _of_file(path, cfg)
    if path.is_dir() and not is_task(spec):
        return _of_folder(path, cfg)
    if is_repository(spec, cfg.runs):
        return llama_module().fetch(spec, f"checkpoint={spec}, which is no folder here")
    if "/" in spec:
        hint = " `make smollm2` brings it." if path.name == "smollm2" else ""
        raise ConfigError(
            f"checkpoint={spec} is no file, nor the folder of a run or a Llama.{hint}"
        )
    return last_checkpoint(finished_run(spec, cfg, any_text))


def base_of(checkpoint: Path) -> Path:
    """Find the checkpoint, or the Llama, that an adapted run adapts; any other is a base itself."""
    cfg = run_config(checkpoint)
    if cfg is None or cfg.peft.name == "none":
        return checkpoint
    cfg.runs = folder_of_runs(checkpoint.parents[1], cfg)
    try:
        # On whatever text, since it has begun: loading refuses another base than it began from.
        start = starting_checkpoint(cfg, any_text=True)
        return checkpoint if start is None else base_of(start)
    except ConfigError as error:
        raise ConfigError(f"the base of the adapted {checkpoint} is missing: {error}") from error


# ---- what a word or a path is ----


def is_task(spec: str) -> bool:
    """Say whether ``checkpoint=<spec>`` is a task's name, which precedes a folder of that name."""
    return "/" not in spec and yaml_of("task", spec) is not None


def is_repository(spec: str, runs: str) -> bool:
    """Say whether ``checkpoint=<spec>`` is ``owner/name`` of the Hugging Face hub, and no path."""
    return spec.count("/") == 1 and not spec.startswith((*LOCAL, f"{runs}/"))


def is_llama(folder: Path) -> bool:
    """Say whether a folder holds a Llama in Hugging Face's format, or an adapter of one."""
    return any((folder / name).is_file() for name in OF_LLAMA)


# ---- the checkpoint of a file or a folder ----


def _of_file(path: Path, cfg: DictConfig) -> Path:
    """Return a ``.ckpt``, or the folder that is made of a ``.gguf``; refuse part of a Llama."""
    if path.suffix in (".safetensors", ".json"):
        raise ConfigError(f"checkpoint={path} is a file of a Llama; name its folder: {path.parent}")
    if not path.is_file():
        raise ConfigError(f"checkpoint={path}: there is no such file.")
    if path.suffix == ".gguf":
        return _converted(path, cfg)
    return path


def _of_folder(folder: Path, cfg: DictConfig) -> Path:
    """Return the folder of a Llama, that which is made of the only ``.gguf`` in it, or the newest
    checkpoint of a run's folder.
    """
    if is_llama(folder):
        return folder
    quantised = sorted(folder.glob("*.gguf"))
    if len(quantised) > 1:
        choices = ", ".join(f"checkpoint={file}" for file in quantised)
        raise ConfigError(f"checkpoint={folder} has {len(quantised)} GGUF files: {choices}.")
    if quantised:
        return _converted(quantised[0], cfg)
    return last_checkpoint(folder)


def _converted(gguf_file: Path, cfg: DictConfig) -> Path:
    """Make the folder of a Llama below ``cache`` of a GGUF file."""
    from tape_exp.models import gguf  # imports torch

    return gguf.converted(gguf_file, Path(cfg.cache).expanduser())
