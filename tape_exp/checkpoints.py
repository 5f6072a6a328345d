"""Checkpoints that are written atomically, carry a checksum, and load without pickle."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from tape_exp.config import ConfigError
from tape_exp.files import sha256, write_atomically

log = logging.getLogger("tape_exp")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes ``step….ckpt`` beside its final place and renames it, then a ``.json`` with its SHA-256 and config hash.

    A file without that signature was cut short and is not used. Loading allows tensors and plain values only.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write, flush to the disk, rename, sign."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.writing")
        try:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            signature = {
                "sha256": sha256(temporary),
                "config_hash": checkpoint["config_hash"],
                "step": checkpoint["global_step"],
            }
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        write_atomically(signature_of(path), json.dumps(signature) + "\n")

    def load_checkpoint(self, path: Any, map_location: Any = lambda s, _: s, weights_only: bool | None = True) -> Any:
        """Load tensors and plain values; anything else is refused."""
        return super().load_checkpoint(path, map_location, weights_only=True)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint and its signature."""
        signature_of(Path(path)).unlink(missing_ok=True)
        super().remove_checkpoint(path)


def signature_of(path: Path) -> Path:
    """The signature's file."""
    return path.with_suffix(".json")


def newest(folder: Path, config_hash: str) -> tuple[Path | None, int]:
    """The newest intact checkpoint and its step, or (None, 0). A damaged one is put aside and said so.

    Raises:
        ConfigError: the checkpoint belongs to a run of another config.
    """
    for path in sorted(folder.glob("step*.ckpt"), reverse=True):
        try:
            signature = json.loads(signature_of(path).read_text())
            intact = signature["sha256"] == sha256(path)
        except (OSError, ValueError, KeyError):
            intact = False
        if not intact:
            aside = path.with_suffix(".damaged")
            os.replace(path, aside)
            signature_of(path).unlink(missing_ok=True)
            log.warning("checkpoint %s is damaged: put aside as %s, going back to the one before.", path.name, aside.name)
            continue
        if signature["config_hash"] != config_hash:
            raise ConfigError(
                f"{path} belongs to a run of another config ({signature['config_hash']}, this one is {config_hash}); "
                "remove it from there to begin anew."
            )
        return path, signature["step"]
    return None, 0
