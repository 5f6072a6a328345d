"""Task and model of a run, each made from its section of the config."""

import logging
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.peft import Adaptation
from tape_exp.runs import loading
from tape_exp.runs.checkpoint_info import edited_since, title
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import divisor, multiple
from tape_exp.tasks.base import RunContext, Task
from tape_exp.tasks.text import TextTask

log = logging.getLogger("tape_exp")


def make_task(cfg: DictConfig, start: Path | None = None) -> Task:
    """Make the task, with the shortcuts of ``debug=``, the learning rate of ``peft``, and the
    checkpoint that its run begins from.
    """
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    optim = section.get("optim")
    if isinstance(optim, dict):
        for key, value in [("max_steps", cfg.debug.max_steps), ("lr", cfg.peft.get("lr"))]:
            if value is not None:
                optim[key] = value
    task: Task = build(section, "task", seed=cfg.seed)
    cache = Path(cfg.cache).expanduser()
    workers = cfg.trainer.workers
    task.run_context = RunContext(cache, start, workers, cfg.debug.overfit)
    return task


def make_decoder(cfg: DictConfig, task: Task, blank: bool = False) -> Decoder:
    """Make the model of the encoding and task, adapted by the method of ``peft``, with the weights
    that the task begins from; a ``blank`` one is neither initialised nor loaded.

    Raises:
        ConfigError: there are no weights to adapt, or they do not fit.
    """
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    start = None if blank else task.run_context.checkpoint
    adaptation: Adaptation | None = None
    if cfg.peft.name != "none":
        adaptation = build(cfg.peft, "peft", name=cfg.peft.name)
        if start is None and not blank:
            raise ConfigError(
                f"peft={cfg.peft.name} adapts a trained model; name it in checkpoint=."
            )
        model = adaptation.positions(model)
    is_llama = start is not None and base_of(start).is_dir()
    uninitialised = blank or is_llama  # it is given every weight
    decoder = Decoder(task.arch, kinds_of(model), cfg.seed, cfg.trainer.attention, uninitialised)
    if start is not None:
        loading.load_and_adapt(decoder, cfg, start, adaptation, task.trains)
        log.info("Weights of %s.", title(start))
        edited = edited_since(start, model)
        if edited:
            log.warning("%s: trained with another version of %s.", start, " and ".join(edited))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)
    decoder.recompute = cfg.trainer.checkpoint_activations
    decoder.adaptation = adaptation
    if cfg.trainer.frozen_bf16:
        _freeze_in_bf16(decoder, cfg.trainer)
    return decoder


def _freeze_in_bf16(decoder: Decoder, trainer: DictConfig) -> None:
    """Hold frozen weights in bf16; refuse a ``trainer`` that could not train beside them."""
    if trainer.precision != "bf16-mixed" or trainer.strategy == "fsdp":
        raise ConfigError(
            "trainer.frozen_bf16=true needs trainer.precision=bf16-mixed and no strategy=fsdp."
        )
    peft.freeze_in_bf16(decoder)


def blank_parts(cfg: DictConfig) -> tuple[Decoder, Task]:
    """Make the adapted model without storage, and the task, whose data are not read: in
    milliseconds.

    Raises:
        ConfigError: they cannot be made of their keys.
    """
    task = make_task(cfg)
    micro_batches(cfg, task)
    if isinstance(task, TextTask) and not task.arch.vocab:  # no tokenizer is loaded
        byte = task.tokenization.kind == "byte"  # 256 and two special tokens
        task.size_vocabulary(258 if byte else task.tokenization.vocab)
    with torch.device("meta"):
        return make_decoder(cfg, task, blank=True), task


def micro_batches(cfg: DictConfig, task: Task) -> int:
    """Count the forward passes of each device per optimizer step.

    Raises:
        ConfigError: devices do not divide the batch, or micro-batches the share of a device.
    """
    if not task.trains:
        return 1
    devices = cfg.trainer.devices * cfg.trainer.nodes
    batch = task.optim.batch
    if batch % devices:
        raise ConfigError(
            f"task.optim.batch={batch} cannot be shared by {devices} devices; "
            f"task.optim.batch={multiple(devices, batch)} could."
        )
    rows = batch // devices
    micro = min(cfg.trainer.micro_batch or rows, rows)
    if rows % micro:
        raise ConfigError(
            f"trainer.micro_batch={micro} does not divide a device's {rows} rows; "
            f"trainer.micro_batch={divisor(rows, micro)} does."
        )
    return rows // micro
