"""Which backend of attention is the fastest for a kind of call on this machine: timed once, and
kept in a file.

The file is ``<cache>/attention/<GPU>-<versions of torch and triton>.json``: other versions have
another file, and a file that is removed is measured anew. Where a backend lacks memory, which
another run may have for it, the times serve this run alone. Nothing is measured before
:func:`keep_in` has said where.
"""

import functools
import importlib.metadata
import json
import logging
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.files import file_lock, parse_json, write_atomically
from tape_exp.machine.hardware import file_name, machine_name
from tape_exp.models.attention.window import Window
from tape_exp.models.timing import apart, clock

log = logging.getLogger("tape_exp")

# A call is timed at the greatest of these lengths that is not above its own, or at the last, with
# as many rows as make so many tokens.
LENGTHS = (4096, 1024, 256)
TOKENS = 8192
ROUNDS, CALLS = 3, 10  # whose median is a time, and of which each round is the mean

Row = dict[str, Any]  # fastest: a name or None; ms: by name; failed: why, by name
Call = dict[str, Any]  # the fields of tape_exp.models.attention.Inputs
Compute = Callable[[str, Call], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Kind:
    """What distinguishes calls of attention for which different backends may be the fastest."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    width: int
    carried: int  # width of what is carried, 0 where nothing is
    # "none", "slopes", "by_distance", "shared by rows" or "of each row"; ends with "and of keys"
    # where keys have a bias too
    bias: str
    length: int  # one of LENGTHS
    window: int = 0  # the tokens that a query sees, 0: all; and the sinks
    sinks: int = 0

    def __str__(self) -> str:
        parts = asdict(self) | {"device": self.device.type, "dtype": str(self.dtype)}
        if not self.window:  # the key of calls without a window has no word on it
            del parts["window"], parts["sinks"]
        return ", ".join(f"{name} {value}" for name, value in parts.items())

    def call(self) -> tuple[Call, list[Tensor]]:
        """Such a call, and the leaves of it that get gradients."""
        generator = torch.Generator(self.device).manual_seed(0)
        rows, T, H = max(1, TOKENS // self.length), self.length, self.heads
        learns = []

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            x = torch.randn(shape, generator=generator, device=self.device).to(dtype)
            learns.append(x.requires_grad_())
            return x

        def heads(count: int, width: int) -> Tensor:
            """Laid out as projections leave them."""
            return make(rows, T, count, width, dtype=self.dtype).transpose(1, 2)

        call: Call = dict.fromkeys(("carried", "bias", "by_distance", "slopes"))
        call["window"] = Window(self.window, self.sinks) if self.window else None
        bias = self.bias.removesuffix(" and of keys")
        call["q"] = heads(H, self.width)
        call["k"], call["v"] = heads(self.key_heads, self.width), heads(self.key_heads, self.width)
        if self.carried:
            call["carried"] = heads(H, self.carried)
        if bias != self.bias:
            call["key_bias"] = make(rows, H, T)
        if bias == "slopes":
            slopes = torch.full((H,), 0.1, device=self.device)
            distances = torch.arange(T, device=self.device)
            call |= {"slopes": slopes, "by_distance": -slopes[:, None] * distances}
        elif bias == "by_distance":
            call["by_distance"] = make(H, T)
        elif bias != "none":
            call["bias"] = make(1 if bias == "shared by rows" else rows, H, T, T)
        return call, learns


_cache: Path | None = None
_chosen: dict[tuple[Kind, tuple[str, ...]], Row] = {}


def keep_in(cache: Path | None) -> None:
    """Measure from now on, and keep the times in the folder ``cache``; None: measure nothing."""
    global _cache
    _cache = cache
    _chosen.clear()


def choose(kind: Kind, candidates: tuple[str, ...], compute: Compute) -> Row | None:
    """The row of this kind and these candidates, timed where it is not known yet, forward and
    backward; None where nothing is to be measured.

    Of several processes that time a kind at once, all take the row of the first to write it, so
    that they choose alike; none waits for another, since not all need meet the same kinds.
    Where a candidate lacked memory or a disk, which another run may have, no file keeps the row.
    """
    if _cache is None:
        return None
    if (kind, candidates) in _chosen:
        return _chosen[kind, candidates]
    key = f"{kind}: {' '.join(candidates)}"
    machine = f"{machine_name(kind.device)} {versions()}"
    path = _cache / "attention" / f"{file_name(machine)}.json"
    row = _read(path).get(key)
    if row is not None and _candidates(row) != {*candidates}:
        log.warning("%s has no times of %s: attention is timed again.", path, key)
        row = None
    if row is None:
        log.info("Timing attention, once on this machine (%s).", key)
        row = measured(kind, candidates, compute)
        if not _may_do_later(row):
            row = _keep(path, key, row)
    _chosen[kind, candidates] = row
    return row


def measured(kind: Kind, candidates: Sequence[str], compute: Compute) -> Row:
    """Milliseconds of each candidate; why it failed, where it did."""
    ms: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in candidates:
        try:
            with apart():
                ms[name] = round(_time(kind, functools.partial(compute, name)), 4)
        # Whatever a compiler, a driver or the allocator raises: another candidate may do.
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return {"fastest": min(ms, key=ms.__getitem__) if ms else None, "ms": ms, "failed": failed}


def _time(kind: Kind, compute: Callable[[Call], tuple[Tensor, Tensor | None]]) -> float:
    """Milliseconds of a forward and a backward pass."""
    call, learns = kind.call()

    def case() -> None:
        outputs = [x for x in compute(call) if x is not None]
        torch.autograd.grad(outputs, learns, [torch.ones_like(x) for x in outputs])

    timed = clock(kind.device)
    timed(case, 1)  # compiled and tuned
    return statistics.median(timed(case, CALLS) for _ in range(ROUNDS))


def in_words(row: Row, length: int) -> str:
    """``the fastest with 1024 tokens: triton 1.2 ms, sdpa 1.9 ms, flex failed (…)``."""
    parts = [f"{name} {ms:.3g} ms" for name, ms in sorted(row["ms"].items(), key=lambda x: x[1])]
    parts += [f"{name} failed ({why})" for name, why in row["failed"].items()]
    found = f"the fastest with {length} tokens" if row["ms"] else "none could be timed"
    return f"{found}: {', '.join(parts)}"


def versions() -> str:
    """Of what the times depend on, besides the GPU."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return f"torch {torch.__version__} triton {triton}"


def _keep(path: Path, key: str, row: Row) -> Row:
    """Keep a row for later runs, if the file can be written; returns the one that it then has,
    which is another process's where that was earlier.
    """
    try:
        with file_lock(path.with_name(f".{path.name}.lock")):
            rows = _read(path)
            if key in rows and _candidates(rows[key]) == _candidates(row):
                return rows[key]
            write_atomically(path, json.dumps(rows | {key: row}, indent=1) + "\n")
    except OSError as error:
        log.warning("The times of attention are not kept for later runs: %s", error)
    return row


def _candidates(row: Row) -> set[str]:
    return {*row["ms"], *row["failed"]}


def _read(path: Path) -> dict[str, Row]:
    """The rows of a file; none where it is absent or no such file."""
    try:
        rows = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): attention is timed again.", path, error)
        return {}
    whole = isinstance(rows, dict) and all(_is_row(row) for row in rows.values())
    if not whole:
        log.warning("%s is no table of times: attention is timed again.", path)
    return rows if whole else {}


def _may_do_later(row: Row) -> bool:
    """Whether a candidate failed for what else the GPU held, for a disk or after another's error,
    or none could be timed: that is no property of the machine.
    """
    reasons = "OutOfMemory|out of memory|ALLOC_FAILED|CUDA error|Errno"
    return not row["ms"] or any(re.search(reasons, str(why)) for why in row["failed"].values())


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or row.keys() != {"fastest", "ms", "failed"}:
        return False
    ms, failed = row["ms"], row["failed"]
    tables = isinstance(ms, dict) and isinstance(failed, dict)
    return (
        tables and all(isinstance(x, float) for x in ms.values()) and row["fastest"] in [None, *ms]
    )
