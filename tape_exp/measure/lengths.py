"""How the cost of each positional encoding grows with the length: ``python -m
tape_exp.measure.lengths``.

A training step of one middle layer is timed on the CPU: forward and backward of attention, SwiGLU
and the update of the state, without an optimizer. What is kept for the backward pass is counted in
bytes. On logarithmic axes the slope over the last lengths is the exponent of the cost. Beside it is
that of the matrix products of the same step with explicit attention over all pairs, counted and not
run; a layer's linear part is in all of them. Leaves ``results/speed/lengths-<machine>.json``.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_exp.drawing.markdown import aligned
from tape_exp.machine.hardware import machine_name
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.count import Counter
from tape_exp.measure.encodings import DIGITS, ENCODINGS
from tape_exp.measure.results import add_folder, write_record
from tape_exp.measure.speed import kept_bytes
from tape_exp.models.block import Block, Where
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.timing import Row, round_robin
from tape_exp.settings.commands import command
from tape_exp.settings.schema import Arch

WIDTH, HEADS, INNER = 256, 4, 768
LENGTHS = (256, 512, 1024, 2048, 4096)
FITTED = 3  # lengths, from the last on, that a slope is fitted to
CPU = torch.device("cpu")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.lengths",
        description="Measure how time and memory of a layer's training step grow with the length, "
        "for every positional encoding, on the CPU.",
    )
    add_folder(parser, "lengths")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="a step that would take longer is left out (default: %(default)s)",
    )
    parser.add_argument(
        "--gigabytes",
        type=float,
        default=6.0,
        help="a step that would keep more is left out (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    say = partial(print, flush=True)
    save = partial(write_record, "lengths", folder=given.out)
    record = measure(
        LENGTHS, given.seconds, given.gigabytes, say=say, save=partial(save, finished=False)
    )
    print("\n".join(table(record)))
    print(save(record))
    return 0


def measure(
    lengths: Sequence[int],
    seconds: float,
    gigabytes: float,
    names: Iterable[str] = tuple(ENCODINGS),
    rounds_s: float = 20.0,
    say: Callable[[str], Any] = print,
    save: Callable[[dict[str, Any]], Any] = lambda record: None,
) -> dict[str, Any]:
    """The record: a row for each encoding and length, and the slopes of each encoding.

    Args:
        lengths: tokens, from the least to the most.
        seconds, gigabytes: of a step, beyond which it is left out. Both are expected to grow with
            the square of the length, from the last one that was measured.
        names: of encodings.
        rounds_s: seconds that the rounds of a length go on for, at least five of them.
        save: called with the record so far after every length.
    """
    rows: list[Row] = []
    record: dict[str, Any] = {
        "machine": machine_name(CPU),
        "torch": torch.__version__,
        "arch": {"width": WIDTH, "heads": HEADS, "ffn": INNER},
        "limits": {"seconds": seconds, "gigabytes": gigabytes},
        "rows": rows,
    }
    last: dict[str, Row] = {name: {"T": 1, "ms": 0.0, "activation_bytes": 0} for name in names}
    for T in lengths:
        steps = {}
        for name, row in last.items():
            if reason := too_much(row, T, seconds, gigabytes):
                rows.append({"encoding": name, "T": T, "left_out": reason})
                say(f"{name} at {T} tokens is left out: it {reason}")
            else:
                steps[name] = Step(layers_of(name, T), T)
        if not steps:
            continue
        kept = {name: kept_bytes(step.block, step.forward) for name, step in steps.items()}
        times = round_robin({name: step.run for name, step in steps.items()}, CPU, rounds_s)
        for name, spent in times.items():
            low, middle, high = statistics.quantiles(spent, n=4)
            row = {"encoding": name, "T": T, "ms": round(middle, 3)}
            row["ms_quartiles"] = [round(low, 3), round(high, 3)]
            row |= {"rounds": len(spent), "activation_bytes": kept[name]}
            rows.append(row)
            last[name] = row
            say(f"{name:20} T {T:5} {middle:10.1f} ms {kept[name] / 2**20:8.1f} MiB")
        save(record | {"slopes": []})
    return record | {"slopes": [slopes(name, rows) for name in names]}


def too_much(row: Row, T: int, seconds: float, gigabytes: float) -> str:
    """What a step of T tokens would take too much of, judged by a shorter one; empty if nothing."""
    growth = (T / row["T"]) ** 2
    if (expected := growth * row["ms"] / 1e3) > seconds:
        return f"would take {expected:.0f} s, more than {seconds:g} s"
    if (expected := growth * row["activation_bytes"] / 1e9) > gigabytes:
        return f"would keep {expected:.1f} GB, more than {gigabytes:g} GB"
    return ""


def layers_of(name: str, T: int, backend: str = "auto") -> Decoder:
    """A decoder of two layers; the first hands on a state."""
    sizes = (2, WIDTH, HEADS, INNER)
    arch = Arch(*sizes, vocab=16, max_length=T, train_length=T, digits=DIGITS)
    return Decoder(arch, ENCODINGS[name], backend=backend)


class Step:
    """A training step of a middle layer: one row, the state as a layer before has updated it."""

    def __init__(self, decoder: Decoder, T: int) -> None:
        self.block: Block = decoder.blocks()[0]
        position = self.block.position
        self.where = Where(decoder.positions(1, T, CPU, RowSampler(0)), position.consecutive)
        self.x = torch.randn(1, T, WIDTH, requires_grad=True)
        self.state = position.initial_state(self.where.positions_BT)
        if type(position).update is not PositionEncoding.update:
            with torch.no_grad():
                _, updated = self.block(self.x, self.state, self.where)
            self.state = updated.detach().requires_grad_()

    def forward(self) -> Tensor:
        """A loss of everything that the layer hands on."""
        x, state = self.block(self.x, self.state, self.where)
        loss = x.square().mean()
        return loss + state.square().mean() if state is not None and state.requires_grad else loss

    def run(self) -> None:
        """Forward and backward."""
        self.forward().backward()
        self.block.zero_grad()
        self.x.grad = None
        if self.state is not None:
            self.state.grad = None


def slopes(name: str, rows: list[Row]) -> Row:
    """Exponents of an encoding over its last lengths; None where there are fewer."""
    own = [row for row in rows if row["encoding"] == name and "ms" in row][-FITTED:]
    lengths = [row["T"] for row in own]
    columns: dict[str, list[float]] = {
        "ms": [row["ms"] for row in own],
        "activation_bytes": [row["activation_bytes"] for row in own],
        "counted_flops": [counted_flops(name, T) for T in lengths],
    }
    found: Row = {"encoding": name, "lengths": lengths}
    return found | {key: slope(lengths, values) for key, values in columns.items()}


def slope(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """The least-squares slope of log value against log length."""
    if len(lengths) < FITTED:
        return None
    logs = [math.log(T) for T in lengths], [math.log(value) for value in values]
    return round(statistics.linear_regression(*logs).slope, 3)


def counted_flops(name: str, T: int) -> int:
    """Of the matrix products of a step, which is not run. PyTorch counts no triangular solves."""
    decoder = layers_of(name, T, "reference")
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = Step(decoder, T)
        with Counter() as counter:
            step.run()
    return counter.counts.products.flops


def table(record: dict[str, Any]) -> list[str]:
    """The lines of a Markdown table: the exponents, and time and memory at the last length."""
    lines = [["", "tokens", "ms", "MiB kept", "time ∝ T^", "memory ∝ T^", "counted products ∝ T^"]]
    for found in record["slopes"]:
        own = [row for row in record["rows"] if row["encoding"] == found["encoding"]]
        row = [row for row in own if "ms" in row][-1]
        cells = [found["encoding"], str(row["T"]), f"{row['ms']:.0f}"]
        cells.append(f"{row['activation_bytes'] / 2**20:.0f}")
        for key in ("ms", "activation_bytes", "counted_flops"):
            cells.append("–" if found[key] is None else f"{found[key]:.2f}")
        lines.append(cells)
    return aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
