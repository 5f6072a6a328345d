"""What the GPU path is meant to reach, and what can be said of it on paper: ``python -m
tape_exp.measure.goals``.

Three figures for each goal: what the floating-point operations alone would allow, what the design
before its fused kernels allowed, and what the design of today does. The last two add the bytes of
every operation that is no product; they are counted as :mod:`tape_exp.measure.count` counts them,
with the data sheet of an H100, so that no kernel reaches them. Nothing is measured here.
"""

import functools
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch

from tape_exp.drawing.markdown import aligned
from tape_exp.machine.hardware import PEAK_FLOPS
from tape_exp.measure import count
from tape_exp.measure.encodings import ENCODINGS
from tape_exp.models.decoder import Decoder
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.schema import Arch
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training.assembly import make_task

PEAK = PEAK_FLOPS[count.GPU]
LAYERS = 12  # of the 155 M model
MULTIPLE = 16  # that evaluation makes of lengths on a GPU
ADAMW_BYTES = 28  # a parameter: four numbers read, three written


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

# Rotation and update were made of PyTorch's operations, and the backward pass of TAPE's attention
# walked twice over all pairs: 13 products of a head's width in both passes, where 10 are enough.
BEFORE: Design = {
    "rope": {
        "forward": Work(50, 309.238e9, 25.770e9, 230.64),
        "backward": Work(87, 618.475e9, 64.424e9, 458.77),
    },
    "tape": {
        "forward": Work(63, 311.333e9, 38.655e9, 266.56),
        "backward": Work(130, 622.665e9, 128.849e9, 657.62),
    },
}
GRID_BEFORE = Work(63, 244.410e9, 51.540e9, 235.18)  # TAPE's forward pass in the model of addition


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = Parser(
        prog="python -m tape_exp.measure.goals",
        description="Print what the GPU path is meant to reach, beside what operations and bytes "
        f"allow on an {count.GPU}, before the fused kernels and now. Nothing is measured.",
    )
    parser.parse_args(arguments)
    now = design()
    print("\n".join(goals(now)), "", "\n".join(layers(now)), sep="\n")
    return 0


def design() -> Design:
    """The design of today."""
    return {
        name: {phase: work(name, phase, counts) for phase, counts in count.layer(name).items()}
        for name in BEFORE
    }


def work(name: str, phase: str, counts: count.Counts) -> Work:
    """What was counted of a phase, in the units of this table."""
    kinds = counts.products, counts.attention, counts.others
    return Work(
        sum(kind.launches for kind in kinds),
        counts.products.flops,
        count.attention_flops(name, phase == "backward"),
        counts.others.bytes / (count.BATCH * count.LENGTH * count.WIDTH),
    )


def goals(now: Design) -> list[str]:
    """The lines of the table of goals."""
    rope = {"before": step(BEFORE["rope"]), "now": step(now["rope"])}
    tape = {"before": step(BEFORE["tape"]), "now": step(now["tape"])}
    bare = step(now["rope"], bytes_count=False) / step(now["tape"], bytes_count=False)
    flops = model_flops()
    rows = [["goal", "operations alone", "the design before", "the design now"]]
    rows.append(
        [
            "TAPE's attention, forward and backward: at most 1.6 × RoPE's",
            *(f"{attention_ratio(x):.2f} ×" for x in (now, BEFORE, now)),
        ]
    )
    rows.append(
        [
            "a step with TAPE: at least 0.90 of RoPE's tokens a second",
            f"{bare:.2f}",
            *(f"{rope[x] / tape[x]:.2f}" for x in ("before", "now")),
        ]
    )
    rows.append(
        [
            "a step with TAPE: at least 40 % MFU",
            "100 %",
            *(f"{100 * flops / PEAK / tape[x]:.0f} %" for x in ("before", "now")),
        ]
    )
    after = grid_work()
    rows.append(
        [
            "the grid of addition with TAPE: less than 90 s",
            *(
                f"{grid_seconds(x, bytes_count):.0f} s"
                for x, bytes_count in ((after, False), (GRID_BEFORE, True), (after, True))
            ),
        ]
    )
    return aligned(rows)


def layers(now: Design) -> list[str]:
    """The lines of the table of what a middle layer's step consists of, before and now."""
    head = ["", "launches", "products: GFLOP", "attention: GFLOP", "others: bytes", "ms, at least"]
    rows = [head]
    for name, phases in now.items():
        for phase, after in phases.items():
            before = BEFORE[name][phase]
            pairs = [
                (f"{x.launches}", f"{x.products / 1e9:.0f}", f"{x.attention / 1e9:.0f}",
                 f"{x.bytes:.0f}", f"{1e3 * x.seconds():.2f}")
                for x in (before, after)
            ]  # fmt: skip
            cells = [a if a == b else f"{a} → {b}" for a, b in zip(*pairs, strict=True)]
            rows.append([f"{name}, {phase}", *cells])
    return aligned(rows)


def attention_ratio(work: Design) -> float:
    """FLOP of TAPE's attention in both phases over RoPE's."""
    tape, rope = (sum(x.attention for x in work[name].values()) for name in ("tape", "rope"))
    return tape / rope


def step(phases: dict[str, Work], bytes_count: bool = True) -> float:
    """The least seconds of a step of the 155 M model: all layers, the head, the loss and AdamW."""
    tokens = count.BATCH * count.LENGTH
    head = 3 * 2 * tokens * count.WIDTH * count.VOCABULARY / PEAK
    all_layers = LAYERS * sum(x.seconds(bytes_count=bytes_count) for x in phases.values())
    return all_layers + head + (moved_once() / count.BANDWIDTH if bytes_count else 0)


@functools.cache
def moved_once() -> int:
    """Bytes of a step's loss and of AdamW."""
    return count.loss_bytes() + ADAMW_BYTES * model().parameter_count()


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
    arch = addition().arch
    with patch.multiple(count, WIDTH=arch.width, HEADS=arch.heads, INNER=arch.ffn):
        return work("tape", "forward", count.layer("tape")["forward"])


def grid_seconds(layer: Work, bytes_count: bool) -> float:
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
