"""Task, model and numbers of a run, each made from its section of the config."""

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
from tape_exp.runs.starting_weights import base_of, title
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Surroundings, Task
from tape_exp.tasks.text import TextTask

log = logging.getLogger("tape_exp")


def make_task(cfg: DictConfig, start: Path | None = None) -> Task:
    """The task, with the shortcuts of ``debug=`` and the checkpoint that its run begins from."""
    section: Any = OmegaConf.to_container(cfg.task, resolve=True)
    if isinstance(optim := section.get("optim"), dict):
        instead = {"max_steps": cfg.debug.max_steps, "lr": cfg.peft.get("lr")}
        optim |= {key: value for key, value in instead.items() if value is not None}
    task: Task = build(section, "task", seed=cfg.seed)
    cache, workers = Path(cfg.cache).expanduser(), cfg.trainer.workers
    return task.placed_in(Surroundings(cache, start, workers, cfg.debug.overfit))


def make_decoder(cfg: DictConfig, task: Task, blank: bool = False) -> Decoder:
    """The model of the encoding and task, adapted by the method of ``peft``, with the weights that
    the task begins from; a ``blank`` one is neither initialised nor loaded.

    Raises:
        ConfigError: there are no weights to adapt, or they do not fit.
    """
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    start = None if blank else task.surroundings.checkpoint
    adaptation: Adaptation | None = None
    if cfg.peft.name != "none":
        adaptation = build(cfg.peft, "peft", name=cfg.peft.name)
        if start is None and not blank:
            raise ConfigError(
                f"peft={cfg.peft.name} adapts a trained model: name it in checkpoint=<run, folder "
                "or repository>."
            )
        model = adaptation.positions(model)
    unset = blank or (start is not None and base_of(start).is_dir())
    decoder = Decoder(task.arch, kinds_of(model), cfg.seed, cfg.trainer.attention, unset)
    if start is not None:
        loading.load_and_adapt(decoder, cfg, start, adaptation, task.trains)
        log.info("Weights of %s.", title(start))
    elif adaptation is not None:
        adaptation.apply(decoder, cfg.seed)
    decoder.recompute, decoder.adaptation = cfg.trainer.checkpoint_activations, adaptation
    if cfg.trainer.frozen_bf16:
        if cfg.trainer.precision != "bf16-mixed" or cfg.trainer.strategy == "fsdp":
            raise ConfigError(
                "trainer.frozen_bf16=true needs trainer.precision=bf16-mixed, and whole weights on "
                "every device, as trainer.strategy=ddp has them."
            )
        peft.freeze_in_bf16(decoder)
    return decoder


def blank_parts(cfg: DictConfig) -> tuple[Decoder, Task]:
    """The adapted model without storage, and the task, whose data are not read: milliseconds.

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
    """The number of forward passes of each device per optimizer step.

    Raises:
        ConfigError: devices do not divide the batch, or micro-batches the share of a device.
    """
    if not task.trains:
        return 1
    devices, batch = cfg.trainer.devices * cfg.trainer.nodes, task.optim.batch
    if batch % devices:
        raise ConfigError(f"task.optim.batch={batch} cannot be shared by {devices} devices.")
    rows = batch // devices
    micro = min(cfg.trainer.micro_batch or rows, rows)
    if rows % micro:
        raise ConfigError(f"trainer.micro_batch={micro} does not divide a device's {rows} rows.")
    return rows // micro


def precision(name: str, accelerator: str) -> str:
    """bf16-mixed where a GPU has it, not emulated, and ``auto`` is asked for; 32-true on a CPU."""
    if name != "auto":
        return name
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    native = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "32-true"
