"""Warnings of a run: settings that are valid, and whose results would mislead."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.runs.checkpoint_info import longest_trained_row
from tape_exp.tasks.base import Task


def cautions(cfg: DictConfig, task: Task, decoder: Decoder, start: Path | None) -> list[str]:
    """Write a sentence for each setting that has no effect or asks too much, also of the machine.

    Args:
        start: the checkpoint that the run begins from, if it does.
    """
    sentences = [*unread_states(decoder), *busy_processor(cfg)]
    if task.trains:
        sentences += unused_position_rate(cfg, task, decoder)
        if start is not None:
            sentences += rows_beyond_the_base(cfg, task, decoder, start)
    return sentences


def unread_states(decoder: Decoder) -> Iterator[str]:
    """Warn of each encoding that updates a state in one layer only: TAPE of one layer is RoPE."""
    for block in decoder.blocks():
        updates = type(block.position).update is not PositionEncoding.update
        if updates and block.is_first_of_kind and not block.updates_state:
            layers = decoder.arch.layers
            yield (
                f"No layer reads the state that {type(block.position).__name__} updates, since "
                "only one layer has this encoding: its positions stay as they begin (those of "
                f"TAPE are RoPE's). Give it two or more, as by task.arch.layers={2 * layers}."
            )


def busy_processor(cfg: DictConfig) -> Iterator[str]:
    """Warn of several threads on a processor that has more to do than it has cores."""
    if cfg.trainer.accelerator != "cpu" and torch.cuda.is_available():
        return
    load = os.getloadavg()[0]
    allowed = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    if load > cores and torch.get_num_threads() > 1:
        yield (
            f"This machine has a load of {load:.1f} on {cores} cores: threads that wait for each "
            "other make a run many times slower. Put OMP_NUM_THREADS=1 in front of the command."
        )


def unused_position_rate(cfg: DictConfig, task: Task, decoder: Decoder) -> Iterator[str]:
    """Warn of a learning rate of positions where no parameter of positions is trained."""
    rate = task.optim.position_lr
    if rate != 1 and not any(".position." in name for name, _ in peft.trained(decoder)):
        yield (
            f"task.optim.position_lr={rate} has no effect: model={cfg.model.name} trains no "
            "parameters of positions. Leave it at 1.0."
        )


def rows_beyond_the_base(
    cfg: DictConfig, task: Task, decoder: Decoder, start: Path
) -> Iterator[str]:
    """Warn of rows that are longer than what the base was trained on times ``peft.interpolation``,
    where nothing else (another theta, a scaling of one's own, no positions) covers them.
    """
    adaptation = decoder.adaptation
    if adaptation is None or adaptation.theta is not None or adaptation.drop:
        return
    scaling = OmegaConf.select(cfg, "model.scaling.method", default="none")
    if scaling != "none" and start.is_file():  # the length of a Llama counts its own scaling
        return
    base_length = longest_trained_row(start)
    length = task.skip_to or task.arch.train_length
    if base_length and length > base_length * adaptation.interpolation:
        yield (
            f"Rows of {length} positions are longer than the {base_length} tokens that the base "
            f"was trained on, times peft.interpolation={adaptation.interpolation:g}. Set "
            f"peft.interpolation={math.ceil(length / base_length)}."
        )
