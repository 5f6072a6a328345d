"""What the GPU path is meant to reach, and what can be said of it on paper: ``python -m
tape_exp.measure.goals``.

Four figures for each goal: what the floating-point operations alone would allow, what the design
before its fused kernels allowed, what the design of today does, and the same where torch.compile
fuses the rest. The last three add the bytes of every operation that is no product, counted as
:mod:`tape_exp.measure.count` and :mod:`tape_exp.measure.fusion` do, with the data sheet of an H100,
so that no kernel reaches them. Nothing is measured here.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from tape_exp.drawing.markdown import aligned
from tape_exp.machine.hardware import PEAK_FLOPS
from tape_exp.measure import count
from tape_exp.measure.encodings import ENCODINGS
from tape_exp.models.decoder import Decoder
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.schema import Arch
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training.assembly import make_task

PEAK = PEAK_FLOPS[count.GPU]
LAYERS = 12  # of the 155 M model
MULTIPLE = 16  # that evaluation makes of lengths on a GPU
# A parameter: AdamW reads four numbers and writes three; clipping reads the gradient and scales it.
OPTIMIZER_BYTES = 28 + 12
# What attention's backward pass moves beside its products, a token and unit of width: zeros for the
# gradient of the queries in fp32 (4), its 16-bit copy (6), and outputs times their gradients (4, of
# a layer that carries TAPE's state 8). Without fused kernels no gradient is added up in fp32.
BESIDE_ATTENTION = {
    "rope": {"unfused": 4 * LAYERS, "fused": 14 * LAYERS},
    "tape": {"unfused": 8 * LAYERS, "fused": 18 * LAYERS - 4},
}
FUSED = ROOT / "results" / "speed" / "fusion.json"  # of tape_exp.measure.fusion


@dataclass(frozen=True)
class Work:
    """Of one phase of a middle layer: launches, FLOP of products and of attention, and bytes that
    everything else moves, for each token and unit of width.
    """

    launches: int
    products: float
    attention: float
    bytes: float

    def seconds(self, width: int = count.WIDTH, bytes_count: bool = True) -> float:
        """The least that an H100 needs for the counted batch."""
        moved = self.bytes * count.BATCH * count.LENGTH * width if bytes_count else 0
        return (self.products + self.attention) / PEAK + moved / count.BANDWIDTH


Design = dict[str, dict[str, Work]]  # encoding -> phase -> work
# Of the first and the last layer together; without fused kernels they are taken to be like others.
Ends = dict[str, dict[str, Work]]

# Without fused kernels: rotation and update made of PyTorch's operations, and a backward pass of
# TAPE's attention that walks twice over all pairs, 13 products of a head's width in both passes,
# where 10 are enough. This code has no such path on a GPU, so that the counts are constants.
UNFUSED: Design = {
    "rope": {
        "forward": Work(50, 309.238e9, 25.770e9, 230.64),
        "backward": Work(87, 618.475e9, 64.424e9, 458.77),
    },
    "tape": {
        "forward": Work(63, 311.333e9, 38.655e9, 266.56),
        "backward": Work(130, 622.665e9, 128.849e9, 657.62),
    },
}
GRID_UNFUSED = Work(63, 244.410e9, 51.540e9, 235.18)  # TAPE's forward pass in the model of addition


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.goals",
        description="Print what the GPU path is meant to reach, beside what operations and bytes "
        f"allow on an {count.GPU}: without fused kernels, with them, and compiled. Nothing is "
        "measured.",
    )
    parser.parse_args(arguments)
    ours = design()
    print("\n".join(goals(ours)), "", "\n".join(layers(ours)), sep="\n")
    return 0


def design() -> Design:
    """This code, with fused kernels."""
    return {
        name: {phase: work(name, phase, counts) for phase, counts in count.layer(name).items()}
        for name in UNFUSED
    }


@functools.cache
def fused() -> dict[str, Any]:
    """The record of what torch.compile leaves.

    Raises:
        ConfigError: there is none.
    """
    if not FUSED.exists():
        raise ConfigError(f"{FUSED} is missing; python -m tape_exp.measure.fusion writes it.")
    found: dict[str, Any] = json.loads(FUSED.read_text())
    return found


def compiled(ours: Design) -> Design:
    """This code where torch.compile fuses what is neither product nor attention."""
    found = fused()["layers"]
    return {
        name: {phase: replace(after, **found[name][phase]) for phase, after in phases.items()}
        for name, phases in ours.items()
    }


def ends(ours: Design, fused_ends: dict[str, Any] | None = None) -> Ends:
    """The first and the last layer together. RoPE's are like all its layers. TAPE's begin with a
    state that rows and heads share, and the last updates none: they differ from RoPE's by as much
    as a model of two layers does.

    Args:
        ours: middle layers.
        fused_ends: what torch.compile leaves of models of two layers, if that is meant.
    """
    found: Ends = {}
    for name in ours:
        found[name] = {}
        for phase, rope in ours["rope"].items():
            more, less = (two_layers(other)[phase] for other in (name, "rope"))
            if fused_ends is not None:
                moved = (fused_ends[other][phase]["bytes"] for other in (name, "rope"))
                more, less = (replace(x, bytes=y) for x, y in zip((more, less), moved, strict=True))
            found[name][phase] = Work(
                2 * rope.launches + more.launches - less.launches,
                2 * rope.products + more.products - less.products,
                2 * rope.attention + more.attention - less.attention,
                2 * rope.bytes + more.bytes - less.bytes,
            )
    return found


@functools.cache
def two_layers(name: str) -> dict[str, Work]:
    """A model of two layers. Its last one carries nothing."""
    counted = count.model(name, 2)
    return {
        phase: replace(
            work(name, phase, counts),
            attention=sum(
                count.attention_flops(other, phase == "backward") for other in (name, "rope")
            ),
        )
        for phase, counts in counted.items()
    }


def work(name: str, phase: str, counts: count.Counts) -> Work:
    """What was counted of a phase, in the units of this table."""
    return Work(
        counts.launches,
        counts.products.flops + counts.others.flops,
        count.attention_flops(name, phase == "backward"),
        counts.others.bytes / (count.BATCH * count.LENGTH * count.WIDTH),
    )


def goals(ours: Design) -> list[str]:
    """The lines of the table of goals."""
    per_logit = fused()["loss"] * count.BATCH * count.LENGTH * count.VOCABULARY
    last = compiled(ours)
    designs = [
        (UNFUSED, None, count.loss_bytes()),
        (ours, ends(ours), count.loss_bytes()),
        (last, ends(last, fused()["two layers"]), per_logit),
    ]
    unit = count.BATCH * count.LENGTH * count.WIDTH
    rope, tape = (
        [
            step(
                x[name], None if y is None else y[name], loss + unit * BESIDE_ATTENTION[name][when]
            )
            for (x, y, loss), when in zip(designs, ("unfused", "fused", "fused"), strict=True)
        ]
        for name in ("rope", "tape")
    )
    bare = step(ours["rope"]) / step(ours["tape"], ends(ours)["tape"])
    flops = model_flops()
    after = grid_work()
    grids = GRID_UNFUSED, after, replace(after, **fused()["grid"])
    return aligned(
        [
            ["goal", "operations alone", "without fused kernels", "with them", "compiled"],
            [
                "TAPE's attention, forward and backward: at most 1.6 × RoPE's",
                *(f"{attention_ratio(x):.2f} ×" for x in (ours, UNFUSED, ours, ours)),
            ],
            [
                "a step with TAPE: at least 0.90 of RoPE's tokens a second",
                f"{bare:.2f}",
                *(f"{a / b:.2f}" for a, b in zip(rope, tape, strict=True)),
            ],
            [
                "a step with TAPE: at least 40 % MFU",
                "100 %",
                *(f"{100 * flops / PEAK / seconds:.0f} %" for seconds in tape),
            ],
            [
                "the grid of addition with TAPE: less than 90 s",
                f"{grid_seconds(after, bytes_count=False):.0f} s",
                *(f"{grid_seconds(x):.0f} s" for x in grids),
            ],
        ]
    )


def layers(ours: Design) -> list[str]:
    """The lines of the table of what a middle layer's step consists of: without fused kernels,
    with them, compiled.
    """
    head = ["", "launches", "products: GFLOP", "attention: GFLOP", "others: bytes", "ms, at least"]
    rows, last = [head], compiled(ours)
    for name, phases in ours.items():
        for phase, after in phases.items():
            works = [
                (f"{x.launches}", f"{x.products / 1e9:.0f}", f"{x.attention / 1e9:.0f}",
                 f"{x.bytes:.0f}", f"{1e3 * x.seconds():.2f}")
                for x in (UNFUSED[name][phase], after, last[name][phase])
            ]  # fmt: skip
            changes = (itertools.groupby(values) for values in zip(*works, strict=True))
            cells = [" → ".join(value for value, _ in values) for values in changes]
            rows.append([f"{name}, {phase}", *cells])
    return aligned(rows)


def attention_ratio(work: Design) -> float:
    """FLOP of TAPE's attention in both phases over RoPE's."""
    tape, rope = (sum(x.attention for x in work[name].values()) for name in ("tape", "rope"))
    return tape / rope


def step(
    phases: dict[str, Work], outer: dict[str, Work] | None = None, once_bytes: float | None = None
) -> float:
    """The least seconds of a step of the 155 M model: all layers, the head, the loss, clipping and
    AdamW; as if nothing but products and attention took time without ``once_bytes``, those of the
    loss and beside attention. The first and the last layer are ``outer``, or else like the others.
    """
    tokens, bytes_count = count.BATCH * count.LENGTH, once_bytes is not None
    head = 3 * 2 * tokens * count.WIDTH * count.VOCABULARY / PEAK
    middle, two = (
        sum(x.seconds(bytes_count=bytes_count) for x in each.values())
        for each in (phases, outer or {})
    )
    all_layers = (LAYERS - 2) * middle + (two if outer else 2 * middle)
    if once_bytes is None:
        return all_layers + head
    once = once_bytes + OPTIMIZER_BYTES * model().parameter_count()
    return all_layers + head + once / count.BANDWIDTH


@functools.cache
def model() -> Decoder:
    """The 155 M model with TAPE, without storage."""
    sizes = LAYERS, count.WIDTH, count.HEADS, count.INNER
    arch = Arch(*sizes, count.VOCABULARY, max_length=count.LENGTH, train_length=count.LENGTH)
    with torch.device("meta"):
        return Decoder(arch, ENCODINGS["tape"])


def model_flops() -> float:
    """Of a step, as MFU counts them."""
    return model().flops_per_token(count.LENGTH) * count.BATCH * count.LENGTH


@functools.cache
def addition() -> Arithmetic:
    """The task whose grid is evaluated, at the paper's scale."""
    task = make_task(compose_config(["task=arithmetic", "model=tape", "scale=paper"]))
    assert isinstance(task, Arithmetic)
    return task


def grid_work() -> Work:
    """TAPE's forward pass of a layer of the model of addition."""
    with in_model_of_addition():
        return work("tape", "forward", count.layer("tape")["forward"])


@contextmanager
def in_model_of_addition() -> Iterator[None]:
    """What is counted has the sizes of the model of addition."""
    arch = addition().arch
    with patch.multiple(count, WIDTH=arch.width, HEADS=arch.heads, INNER=arch.ffn):
        yield


def grid_seconds(layer: Work, bytes_count: bool = True) -> float:
    """The least seconds of evaluating the grid. Attention is quadratic in each batch's length."""
    arch, rows = addition().arch, grid_rows()
    tokens = sum(n * length for n, length in rows)
    pairs = sum(n * length**2 for n, length in rows)
    share = tokens / (count.BATCH * count.LENGTH)
    attention = layer.attention * pairs / (count.BATCH * count.LENGTH**2)
    moved = layer.bytes * tokens * arch.width if bytes_count else 0
    seconds = (layer.products * share + attention) / PEAK + moved / count.BANDWIDTH
    return arch.layers * seconds


def grid_rows() -> list[tuple[int, int]]:
    """Rows and length of every batch of the grid, as a GPU is given them."""
    task = addition()
    digits = range(1, task.test_digits + 1)
    lengths = sorted(a + b + max(a, b) + 3 for a, b in itertools.product(digits, digits))
    cells = max(task.rows_per_batch // task.samples_per_cell, 1)
    batches = (lengths[first : first + cells] for first in range(0, len(lengths), cells))
    return [
        (len(batch) * task.samples_per_cell, -(-batch[-1] // MULTIPLE) * MULTIPLE)
        for batch in batches
    ]


if __name__ == "__main__":
    sys.exit(main())
