"""What the compiler makes of our Triton programs: ``python -m tape_exp.measure.registers``.

Every program is compiled for an A100 and an H100 with each tile that autotuning may choose, without
a GPU: it is called as a model calls it, on a CPU, and what would be launched is compiled instead.
``cuobjdump``, which comes with triton, tells the registers of a thread, its stack, which is what it
spills, and the shared memory of a block. Leaves ``results/speed/registers.json``.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tape_exp.drawing.markdown import aligned
from tape_exp.measure.results import add_folder, span, write_record
from tape_exp.models.kernels import causal, maps, rotation, runtime, update
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError

CAPABILITIES = {"A100": 80, "H100": 90}
WIDTHS = (64, 128)  # of a head
BATCH, LENGTH = 2, 1024
HEADS, MORE = 12, 32  # of the 155 M model, and of one of 7 B
BENDS = 32  # of FIRE, one for each hidden unit
Row = dict[str, Any]
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]  # the program, its arguments and constants
USED = re.compile(r"REG:(\d+) STACK:(\d+)")


def attention(D: int, carries: bool) -> None:
    """Forward and backward, with a carried state that learns, as wide as the head, or without."""
    shape = (BATCH, LENGTH, HEADS, D)
    q, k, v, c = (torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    with patch.object(causal, "supports", lambda *_: None):
        out, out_c = causal.fused_attention(q, k, v, c if carries else None)
    (out.sum() + (0 if out_c is None else out_c.sum())).backward()


def biased_attention(D: int, carries: bool) -> None:
    """Forward and backward with a bias that learns: by distance, as T5's, in pieces, as FIRE's, and
    of keys, as FoX's. No encoding with such a bias carries anything.
    """
    if carries:
        return
    shape = (BATCH, LENGTH, HEADS, D)
    table, near, far, bends = (
        torch.empty(size, requires_grad=True) for size in ((HEADS, LENGTH), LENGTH, LENGTH, BENDS)
    )
    level, rise = (torch.empty(HEADS, BENDS + 1, requires_grad=True) for _ in range(2))
    pieces = causal.Piecewise(near, far, bends, level, rise)
    gates = torch.empty(BATCH, LENGTH, HEADS, requires_grad=True)
    for bias in ({"by_distance": table}, {"piecewise": pieces}, {"key_bias": gates}):
        q, k, v = (torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        with patch.object(causal, "supports", lambda *_: None):
            out, _ = causal.fused_attention(q, k, v, **bias)
        out.sum().backward()


def repeatable_attention(D: int, carries: bool) -> None:
    """All of it, by programs that give the same bits every time."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        attention(D, carries)
        biased_attention(D, carries)
    finally:
        torch.use_deterministic_algorithms(before)


def positions(D: int, carries: bool, heads: int = HEADS) -> None:
    """The rotation, by RoPE's state or by TAPE's, which learns; TAPE's maps, and its update."""
    shape = (BATCH, LENGTH, heads, D)
    q, k, attended = (torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in "qka")
    shared = shape[:3] if carries else (1, LENGTH, 1)
    state = torch.empty(*shared, 2, D // 2, requires_grad=carries)
    q_out, k_out = rotation.rotated(q, k, state)
    loss = q_out.sum() + k_out.sum()
    if carries:
        x, wx = (torch.empty(*size, heads * D) for size in (shape[:2], [4 * heads]))
        F = maps.maps(x.bfloat16(), wx.requires_grad_(), torch.empty(4 * heads, heads**2))
        p = torch.empty(heads, heads)
        pending = update.Update(state.flatten(3), attended, p, F.unflatten(-1, (heads, heads)))
        made = update.updated(q, k, pending, keeps=True, copies=True)
        loss = loss + sum(x.sum() for x in made if x is not None)
    loss.backward()


def positions_of_many_heads(D: int, carries: bool) -> None:
    """The same of 32 heads, whose maps take the most registers."""
    positions(D, carries, MORE)


CALLS: tuple[Callable[[int, bool], None], ...] = (
    attention,
    biased_attention,
    repeatable_attention,
    positions,
    positions_of_many_heads,
)


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile everything, print the table, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.registers",
        description="Compile our Triton programs for an A100 and an H100, with each tile that may "
        "be chosen, and tell their registers, spills and shared memory. No GPU is needed.",
    )
    add_folder(parser, "registers", "registers.json")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record = measure()
    print("\n".join(table(record)))
    print(write_record("registers", record, given.out))
    return 0


def measure(widths: Sequence[int] = WIDTHS) -> dict[str, Any]:
    """The record: a row for each GPU, program, width, with or without what is carried, and tile.

    Raises:
        ConfigError: there is no triton, or its interpreter is on, which compiles nothing.
    """
    if not runtime.installed():
        raise ConfigError("triton is not installed; it comes with pip install -e '.[dev]'.")
    if runtime.interpreted():
        raise ConfigError("TRITON_INTERPRET=1 is set, which compiles nothing; run this without it.")
    import triton

    rows: list[Row] = []
    for gpu, D, carries, call in itertools.product(CAPABILITIES, widths, (False, True), CALLS):
        heads = MORE if call is positions_of_many_heads else HEADS
        for found in compiled(CAPABILITIES[gpu], call, D, carries):
            row = {"gpu": gpu, "D": D, "heads": heads, "carries": carries, **found}
            if row not in rows:  # calls share programs
                rows.append(row)
    return {"triton": triton.__version__, "dtype": "bfloat16", "rows": rows}


def compiled(
    capability: int, call: Callable[[int, bool], None], D: int, carries: bool
) -> Iterator[Row]:
    """A row for each tile of each program that the call would launch on such a GPU."""
    from triton.runtime.autotuner import Autotuner

    with as_if_on(capability), instead_of_launching() as launches:
        call(D, carries)
    for program, arguments, constants in launches:
        tiles: list[dict[str, Any]] = [{}]
        if isinstance(program, Autotuner):
            program.nargs = dict(zip(program.arg_names, arguments, strict=False))
            tiles = [tile.all_kwargs() for tile in program.prune_configs(constants)]
            program = program.fn
        for tile in tiles:
            with as_if_on(capability):
                kernel = program.warmup(*arguments, grid=(1,), **constants, **tile)
            registers, spilled = used(kernel.asm["cubin"])
            yield {
                "program": program.__name__,
                "pass": passes(constants),
                "bias": bias(constants),
                "tile": {name: size for name, size in tile.items() if name.isupper()},
                "warps": kernel.metadata.num_warps,
                "stages": kernel.metadata.num_stages,
                "registers": registers,
                "spilled_bytes": spilled,
                "shared_bytes": kernel.metadata.shared,
            }


def passes(constants: dict[str, Any]) -> str:
    """Which of its two kinds ``key_gradient`` is: it adds up the gradient of the queries too, or
    leaves this to ``query_gradient``; "" for other programs.
    """
    kinds = {True: "one pass", False: "two passes", None: ""}
    return kinds[constants.get("ONE_PASS")]


def bias(constants: dict[str, Any]) -> str:
    """What such a program adds to the logits; "no" where it knows of none."""
    if constants.get("BENDS"):
        return "in pieces"
    if constants.get("KEYED"):
        return "of keys"
    return "by distance" if constants.get("BY_DISTANCE") else "no"


@contextmanager
def instead_of_launching() -> Iterator[list[Launch]]:
    """Collect what would be launched, and compute nothing."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launches: list[Launch] = []

    def collect(program: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        launches.append((program, arguments, constants))

    with patch.object(Autotuner, "run", collect), patch.object(JITFunction, "run", collect):
        yield launches


@contextmanager
def as_if_on(capability: int) -> Iterator[None]:
    """Triton compiles for such a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    gpu: Any = SimpleNamespace(
        get_current_device=lambda: capability,  # what is compiled is kept apart by this number
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
    )
    with patch.object(driver, "_active", gpu):
        yield


def used(cubin: bytes) -> tuple[int, int]:
    """Registers and spilled bytes of a thread."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        told = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    (found,) = USED.findall(told)
    return int(found[0]), int(found[1])


def table(record: dict[str, Any]) -> list[str]:
    """The lines of a Markdown table: of all tiles of a program the ranges."""
    head = ["program", "bias", "D", "heads", "carried", "tiles"]
    for gpu in CAPABILITIES:
        head += [f"{gpu}: registers", "spilled bytes", "shared KiB"]
    lines = [head]
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in record["rows"]:
        key = tuple(row[name] for name in ("program", "pass", "bias", "D", "heads", "carries"))
        groups.setdefault(key, {}).setdefault(row["gpu"], []).append(row)
    for (program, kind, added, D, heads, carries), by_gpu in sorted(groups.items()):
        name = f"{program}, {kind}" if kind else program
        cells = [name, added, str(D), str(heads), "yes" if carries else "no"]
        cells.append(span(map(len, by_gpu.values())))
        for gpu in CAPABILITIES:
            rows = by_gpu[gpu]
            cells += [span(row["registers"] for row in rows)]
            cells += [span(row["spilled_bytes"] for row in rows)]
            cells += [span(round(row["shared_bytes"] / 1024) for row in rows)]
        lines.append(cells)
    return aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
