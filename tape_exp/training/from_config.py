"""Task, model and numbers of a run, each made from its section of the config."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of, random_positions
from tape_exp.models.peft import Adaptation
from tape_exp.runs import loading
from tape_exp.runs.starting_weights import base_of, find, init_checkpoint, title
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Surroundings, Task

log = logging.getLogger("tape_exp")


def build_task(cfg: DictConfig) -> Task:
    """The task, with the shortcuts of ``debug=``; no checkpoint is looked for."""
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    if cfg.debug.max_steps is not None and isinstance(section.get("optim"), dict):
        section["optim"]["max_steps"] = cfg.debug.max_steps
    if cfg.peft.get("lr") is not None and isinstance(section.get("optim"), dict):
        section["optim"]["lr"] = cfg.peft.lr
    task: Task = build(section, "task", seed=cfg.seed)
    cache = Path(cfg.cache).expanduser()
    task.surroundings = Surroundings(cache, None, cfg.trainer.workers, cfg.debug.overfit)
    return task


def build_adaptation(cfg: DictConfig) -> Adaptation | None:
    """The method of ``peft``, if there is one."""
    return None if cfg.peft.name == "none" else build(cfg.peft, "peft", name=cfg.peft.name)


def model_section(cfg: DictConfig, adaptation: Adaptation | None) -> dict[str, Any]:
    """The section ``model``, as the method of ``peft`` changes it."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    return model if adaptation is None else adaptation.positions(model)


def check_parts(cfg: DictConfig) -> None:
    """Raise :class:`ConfigError` where task, encoding or method cannot be made of their keys.

    Nothing is read and nothing is computed, so that it costs milliseconds: for many runs at once.
    """
    task = build_task(cfg)
    micro_batches(cfg, task)
    build_adaptation(cfg)
    with torch.device("meta"):
        kinds = kinds_of(model_section(cfg, None))
        random_positions(kinds, task.arch)
        for kind in dict.fromkeys(kinds):
            kind.position(task.arch)


def make_task(cfg: DictConfig) -> Task:
    """The task, with the checkpoint that its run begins from."""
    task, spec = build_task(cfg), init_checkpoint(cfg)
    checkpoint = find(spec, cfg) if spec else None
    task.surroundings = replace(task.surroundings, checkpoint=checkpoint)
    return task


def make_adaptation(cfg: DictConfig, task: Task) -> Adaptation | None:
    """The method of ``peft``, if there is one. Raises :class:`ConfigError` where there is nothing
    to adapt.
    """
    adaptation, checkpoint = build_adaptation(cfg), task.surroundings.checkpoint
    if adaptation is None:
        return None
    if checkpoint is None:
        raise ConfigError(
            f"peft={adaptation.name} adapts a trained model: name it in checkpoint=<run, folder or "
            "repository>."
        )
    return adaptation


def make_decoder(
    cfg: DictConfig, task: Task, adaptation: Adaptation | None = None, blank: bool = False
) -> Decoder:
    """The adapted model of the encoding and task, with the weights of ``checkpoint``; a ``blank``
    one is not initialised.
    """
    checkpoint = task.surroundings.checkpoint
    blank = blank or (checkpoint is not None and base_of(checkpoint).is_dir())
    kinds = kinds_of(model_section(cfg, adaptation))
    decoder = Decoder(task.arch, kinds, cfg.seed, cfg.trainer.attention, blank)
    if checkpoint is not None:
        loading.load_and_adapt(decoder, cfg, checkpoint, adaptation, task.trains)
        log.info("Weights of %s.", title(checkpoint))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)  # of a plan, which loads no weights
    decoder.recompute = cfg.trainer.checkpoint_activations
    if cfg.trainer.frozen_bf16:
        peft.freeze_in_bf16(decoder)
    return decoder


def micro_batches(cfg: DictConfig, task: Task) -> int:
    """The number of forward passes of each device per optimizer step.

    Raises:
        ConfigError: devices do not divide the batch, or micro-batches the share of a device.
    """
    if not task.trains:
        return 1
    devices, batch = cfg.trainer.devices * cfg.trainer.nodes, task.optim.batch
    if batch % devices:
        raise ConfigError(
            f"task.optim.batch={batch} cannot be shared by {devices} devices; "
            f"task.optim.batch={-(-batch // devices) * devices} could."
        )
    rows = batch // devices
    micro = min(cfg.trainer.micro_batch or rows, rows)
    if rows % micro:
        divisor = next(m for m in range(micro, 0, -1) if rows % m == 0)
        raise ConfigError(
            f"trainer.micro_batch={micro} does not divide the {rows} rows of a device; "
            f"trainer.micro_batch={divisor} does."
        )
    return rows // micro


def precision(name: str, accelerator: str) -> str:
    """bf16-mixed where a GPU has it, not emulated, and ``auto`` is asked for; 32-true on a CPU."""
    if name != "auto":
        return name
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    native = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "32-true"
