"""How the cost of each positional encoding grows with the length.

``python -m benchmarks.lengths`` times a training step of one middle layer: forward and backward of
attention, SwiGLU and the update of the state, without an optimizer. What is kept for the backward
pass is counted in bytes. On logarithmic axes the slope over the last lengths is the exponent of the
cost, to which the layer's linear part belongs.
"""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from benchmarks.common import DIGITS, ENCODINGS, encoding, parser, write_record
from benchmarks.timing import Row, round_robin
from tape_exp.machine.hardware import machine_name
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block, ForwardContext
from tape_exp.models.decoder import Decoder
from tape_exp.models.places import Places
from tape_exp.settings.commands import command
from tape_exp.settings.schema import Arch

WIDTH, HEADS, INNER = 256, 4, 768
LENGTHS = (256, 512, 1024, 2048, 4096)
FITTED = 3  # lengths, from the last on, that a slope is fitted to
SECONDS, GIGABYTES = 20.0, 6.0  # a step that is expected to take or keep more is left out
ROUNDS_S = 20.0  # seconds that the rounds of a length go on for
CPU = torch.device("cpu")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the record."""
    args = parser("lengths", "How time and memory of a layer grow, on the CPU.")
    path, rows = args.parse_args(arguments).out, list[Row]()
    record: dict[str, Any] = {
        "machine": machine_name(CPU),
        "torch": torch.__version__,
        "arch": {"width": WIDTH, "heads": HEADS, "ffn": INNER},
        "limits": {"seconds": SECONDS, "gigabytes": GIGABYTES},
        "rows": rows,
    }
    for T in LENGTHS:
        rows += measured(T, rows)
        write_record("lengths", record, path)
    record["slopes"] = [slopes(name, rows) for name in ENCODINGS]
    print(table(record), write_record("lengths", record, path), sep="\n")
    return 0


def measured(T: int, earlier: Sequence[Row]) -> list[Row]:
    """A row for each encoding at one length; one whose cost, which is expected to grow with the
    square of the length, would be beyond a limit is left out.
    """
    last = {row["encoding"]: row for row in earlier}
    rows, steps = [], {}
    for name in ENCODINGS:
        before = last.get(name, {"T": T, "ms": 0, "activation_bytes": 0})
        growth = (T / before["T"]) ** 2
        slow = "ms" not in before or growth * before["ms"] / 1e3 > SECONDS
        if slow or growth * before["activation_bytes"] / 1e9 > GIGABYTES:
            print(f"{name} at {T} tokens is left out")
        else:
            steps[name] = Step(layers_of(name, T), T)
    kept = {name: kept_bytes(step.block, step.forward) for name, step in steps.items()}
    times = round_robin({name: step.run for name, step in steps.items()}, CPU, ROUNDS_S)
    for name, spent in times.items():
        low, middle, high = statistics.quantiles(spent, n=4)
        row = {"encoding": name, "T": T, "ms": round(middle, 3)}
        row["ms_quartiles"] = [round(low, 3), round(high, 3)]
        rows.append(row | {"rounds": len(spent), "activation_bytes": kept[name]})
        print(f"{name:20} T {T:5} {middle:10.1f} ms {kept[name] / 2**20:8.1f} MiB", flush=True)
    return rows


def layers_of(name: str, T: int) -> Decoder:
    """A decoder of two layers; the first hands on a state."""
    sizes = (2, WIDTH, HEADS, INNER)
    arch = Arch(*sizes, vocab=16, max_length=T, train_length=T, digits=DIGITS)
    return Decoder(arch, encoding(name))


class Step:
    """A training step of a middle layer: one row, the state as a layer before has updated it."""

    def __init__(self, decoder: Decoder, T: int) -> None:
        self.block: Block = decoder.blocks()[0]
        position = self.block.position
        positions = decoder.positions(1, T, CPU, RowSampler(0))
        places = Places.at(positions, consecutive=decoder.random is None)
        self.context = ForwardContext(places)
        self.x = torch.randn(1, T, WIDTH, requires_grad=True)
        self.state = position.start(places)
        if hasattr(position, "update_net"):
            with torch.no_grad():
                _, updated = self.block(self.x, self.state, self.context)
            self.state = updated.detach().requires_grad_()

    def forward(self) -> Tensor:
        """A loss of everything that the layer hands on."""
        x, state = self.block(self.x, self.state, self.context)
        loss = x.square().mean()
        return loss + state.square().mean() if state is not None and state.requires_grad else loss

    def run(self) -> None:
        """Forward and backward."""
        self.forward().backward()
        self.block.zero_grad()
        self.x.grad = None
        if self.state is not None:
            self.state.grad = None


def kept_bytes(module: torch.nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes that ``forward`` keeps for its backward, each storage once, none of the module's."""
    own = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x.detach()  # an operation that kept its own output would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        forward()
    return sum(kept.values())


def slopes(name: str, rows: Sequence[Row]) -> Row:
    """Exponents of an encoding over its last lengths; None where there are fewer."""
    own = [row for row in rows if row["encoding"] == name and "ms" in row][-FITTED:]
    lengths = [row["T"] for row in own]
    columns: dict[str, list[float]] = {
        "ms": [row["ms"] for row in own],
        "activation_bytes": [row["activation_bytes"] for row in own],
    }
    exponents = {key: slope(lengths, values) for key, values in columns.items()}
    return {"encoding": name, "lengths": lengths, **exponents}


def slope(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """The least-squares slope of log value against log length."""
    if len(lengths) < FITTED:
        return None
    logs = [math.log(T) for T in lengths], [math.log(value) for value in values]
    return round(statistics.linear_regression(*logs).slope, 3)


def table(record: dict[str, Any]) -> str:
    """In Markdown: the exponents, and time and memory at the last length."""
    head = ["", "tokens", "ms", "MiB kept", "time ∝ T^", "memory ∝ T^"]
    lines = []
    for exponents in record["slopes"]:
        own = [row for row in record["rows"] if row["encoding"] == exponents["encoding"]]
        row = [row for row in own if "ms" in row][-1]
        cells = [row["encoding"], str(row["T"]), f"{row['ms']:.0f}"]
        cells.append(f"{row['activation_bytes'] / 2**20:.0f}")
        for key in ("ms", "activation_bytes"):
            cells.append("–" if exponents[key] is None else f"{exponents[key]:.2f}")
        lines.append(cells)
    return tabulate(lines, head, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
