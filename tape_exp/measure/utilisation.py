"""What a training step on the CPU makes of its arithmetic: ``python -m
tape_exp.measure.utilisation``.

The peak is what a large matrix product reaches in the same rounds, so that a slow minute of the
machine meets both. A step is measured as it is, in bf16 (``trainer.precision=bf16-mixed``),
compiled (``trainer.compile=true``) and on one thread. Leaves
``results/speed/utilisation-<machine>.json``.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tape_exp.drawing.markdown import aligned
from tape_exp.machine.hardware import machine_name
from tape_exp.measure.results import add_folder, spread, why, write_record
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.step import step_case
from tape_exp.models.timing import round_robin
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.schema import Arch
from tape_exp.training.assembly import make_task

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
VARIANTS = ("bf16", "compiled", "one thread")
Case = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """Of a training step."""

    arch: Arch
    batch: int
    length: int

    @property
    def flops(self) -> float:
        """Of a step, by the model's own count."""
        with torch.device("meta"):
            each = Decoder(self.arch, RoPE).flops_per_token(self.length)
        return each * self.batch * self.length


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.utilisation",
        description="Measure which part of the rate of a large matrix product a training step "
        "reaches on the CPU, and what bf16, torch.compile and a second thread gain.",
    )
    add_folder(parser, "utilisation")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="of which one is compared with all (default: %(default)s, the cores of this machine)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=240.0,
        help="that the rounds go on for (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    wide = Arch(2, 768, 12, 3072, vocab=1000, max_length=512, train_length=512)
    steps = {"addition at scale smoke": smoke(), "two layers of width 768": Sizes(wide, 2, 512)}
    record = measure(steps, given.threads, given.seconds)
    print("\n".join(table(record)))
    print(write_record("utilisation", record, given.out))
    return 0


def smoke() -> Sizes:
    """The sizes of a run of addition at scale smoke."""
    task = make_task(compose_config(["task=arithmetic", "model=rope"]))
    assert task.optim is not None
    return Sizes(task.arch, task.optim.batch, task.arch.train_length)


def measure(
    steps: dict[str, Sizes], threads: int, seconds: float, gemm: int = 2048
) -> dict[str, Any]:
    """The record: rates of matrix products, and of each step the share of them and the gains.

    Args:
        steps: what is measured, by name.
        threads: of everything but the variant on one thread.
        seconds: that the rounds go on for, at least five of them.
        gemm: rows and columns of the matrices.
    """
    before = torch.get_num_threads()
    failed: dict[str, str] = {}
    try:
        torch.set_num_threads(threads)
        machine = machine_name(CPU)
        cases = {f"gemm/{name}": product(gemm, dtype) for name, dtype in DTYPES.items()}
        for name, sizes in steps.items():
            cases |= variants(name, sizes, failed)
        times = round_robin(
            {
                name: on_threads(1 if name.endswith("/one thread") else threads, case)
                for name, case in cases.items()
            },
            CPU,
            seconds,
        )
    finally:
        torch.set_num_threads(before)
    rates = {name: [2 * gemm**3 / ms / 1e6 for ms in times[f"gemm/{name}"]] for name in DTYPES}
    return {
        "machine": machine,
        "torch": torch.__version__,
        "threads": threads,
        "rounds": len(times["gemm/fp32"]),
        "gemm_gflops": {"size": gemm} | {name: spread(rates[name]) for name in DTYPES},
        "steps": [figures(name, sizes, times, rates) for name, sizes in steps.items()],
        "failed": failed,
    }


def product(size: int, dtype: torch.dtype) -> Case:
    """One large matrix product."""
    a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
    return lambda: torch.mm(a, b)


def variants(name: str, sizes: Sizes, failed: dict[str, str]) -> dict[str, Case]:
    """A step in each of its ways; what does not compile is left out, and told in ``failed``."""

    def step(dtype: torch.dtype = torch.float32, compiled: bool = False) -> Case:
        return step_case(sizes.arch, RoPE, sizes.batch, sizes.length, dtype, CPU, compiled=compiled)

    cases = {f"{name}/fp32": step(), f"{name}/bf16": step(torch.bfloat16)}
    cases[f"{name}/one thread"] = step()
    try:
        compiled = step(compiled=True)
        compiled()
        cases[f"{name}/compiled"] = compiled
    # Whatever the compiler raises: the other measurements must not be lost.
    except Exception as error:
        failed[f"{name}/compiled"] = why(error)
    return cases


def on_threads(threads: int, case: Case) -> Case:
    """The case with so many threads."""

    def run() -> None:
        torch.set_num_threads(threads)
        case()

    return run


def figures(
    name: str, sizes: Sizes, times: dict[str, list[float]], rates: dict[str, list[float]]
) -> dict[str, Any]:
    """Of a step: its share of the peak of its dtype, and what each variant gains, by rounds."""
    base, gflop = times[f"{name}/fp32"], sizes.flops / 1e9
    share = {
        dtype: spread(
            [
                1e3 * gflop / ms / rate
                for ms, rate in zip(times[f"{name}/{dtype}"], rates[dtype], strict=True)
            ]
        )
        for dtype in DTYPES
    }
    gains = {
        variant: spread([a / b for a, b in zip(base, times[f"{name}/{variant}"], strict=True)])
        for variant in VARIANTS
        if f"{name}/{variant}" in times
    }
    # Of one thread the others' gain is told.
    gains["all threads"] = {
        key: round(1 / gains["one thread"][other], 4)
        for key, other in (
            ("median", "median"),
            ("lower_quartile", "upper_quartile"),
            ("upper_quartile", "lower_quartile"),
        )
    }
    del gains["one thread"]
    return {
        "step": name,
        "batch": sizes.batch,
        "length": sizes.length,
        "gflop": round(gflop, 3),
        "ms": spread(base),
        "share_of_peak": share,
        "gains": gains,
    }


def table(record: dict[str, Any]) -> list[str]:
    """The lines of a Markdown table, medians with quartiles."""
    threads = record["threads"]
    lines = [["", *(row["step"] for row in record["steps"])]]
    for dtype in DTYPES:
        cells = [told(row["share_of_peak"][dtype], 100, " %") for row in record["steps"]]
        lines.append([f"share of a {dtype} matrix product's rate", *cells])
    for variant, name in (
        ("bf16", "`trainer.precision=bf16-mixed` gains"),
        ("compiled", "`trainer.compile=true` gains"),
        ("all threads", f"{threads} threads instead of one gain"),
    ):
        cells = [told(row["gains"].get(variant), 1, " ×") for row in record["steps"]]
        lines.append([name, *cells])
    return aligned(lines)


def told(figure: dict[str, float] | None, factor: float, unit: str) -> str:
    """A median with its quartiles; a dash where there is none."""
    if figure is None:
        return "–"
    middle, low, high = (
        f"{factor * figure[key]:.3g}" for key in ("median", "lower_quartile", "upper_quartile")
    )
    return f"{middle}{unit} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
