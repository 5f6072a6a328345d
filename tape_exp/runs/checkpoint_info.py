"""What is known of a checkpoint: the run that wrote it, its name, and the weights in it.

A checkpoint is a ``.ckpt`` of ours, with all weights or, where the run adapted a base model
(``peft=``), with the trained ones only; or the folder of a Llama in Hugging Face's format.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.files import sha256, short_hash, zip_is_sound
from tape_exp.runs.identity import variant
from tape_exp.settings import files
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import changed_sources, sources_of


def llama_module() -> Any:
    """Import the module of Llamas, which imports torch."""
    from tape_exp.models import llama

    return llama


# ---- the run that wrote it ----


def stored_config(path: Path) -> DictConfig:
    """Read the config.yaml of a run, which may be another user's: values, nothing to resolve."""
    cfg = files.read(path, "name another run")
    if not isinstance(cfg, DictConfig) or "${" in OmegaConf.to_yaml(cfg):
        raise ConfigError(f"{path} is not a config that a run wrote; name another run.")
    cfg.checkpoint = cfg.checkpoint or cfg.task.get("init_from")  # older runs wrote null
    return cfg


def reads_text(cfg: DictConfig) -> bool:
    """Say whether the task of a config reads text, as addition does not."""
    return "tokenizer" in cfg.task


def file_beside(checkpoint: Path, name: str) -> Path | None:
    """Find a file in the folder of the checkpoint's run, or of the Llama, if it is there."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent.parent
    path = folder / name
    return path if path.is_file() else None


def run_config(checkpoint: Path) -> DictConfig | None:
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


def longest_trained_row(checkpoint: Path) -> int | None:
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


# ---- its name and its weights ----


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


def trained_tokenizer(checkpoint: Path) -> str | None:
    """Read the fingerprint of the tokenizer that a checkpoint was trained with, where one of the
    states in it says so.
    """
    for state in read_checkpoint(checkpoint).values():
        if isinstance(state, dict) and "tokenizer" in state:
            return state["tokenizer"]
    return None


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
