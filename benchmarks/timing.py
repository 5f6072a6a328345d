"""Times of several cases in turn, so that a slow moment meets them all, and a training step as a
case.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import common
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds
from tape_exp.settings.schema import Arch

Row = dict[str, Any]
LONG_ENOUGH, MOST_CALLS = 20.0, 50  # milliseconds of a round of one case on a GPU, and its calls
L2_BYTES = 256 * 2**20  # more than the L2 cache of any GPU holds
# Cycles of a GPU, about a millisecond: the CPU takes up to a third of that to launch attention.
QUEUED = 2_000_000


def round_robin(
    cases: dict[str, Callable[[], Any]], device: torch.device, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each case in each round after warm-up: for ``seconds``, at least 5 rounds.

    On a GPU a round is the mean of many calls of a short case, between events of its stream and
    without waiting, so that the CPU, which launches kernels, is ahead; what the L2 cache holds of
    the last call is overwritten before the next.
    """
    on_gpu = device.type == "cuda"
    keep_freed_memory()
    timed = timed_on_gpu(device) if on_gpu else timed_on_cpu
    often = {}
    for name, case in cases.items():
        case()
        often[name] = min(max(round(LONG_ENOUGH / timed(case, 1)), 1), MOST_CALLS) if on_gpu else 1
    times: dict[str, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < 5 or time.perf_counter() < deadline:
        for name, case in cases.items():
            times[name].append(timed(case, often[name]))
    return times


def keep_freed_memory() -> None:
    """Let glibc keep what a case frees for the next, as it does in a run, whose steps are alike.
    Cases in turn would give it back to the system and take it again, a page at a time.
    """
    with suppress(OSError, AttributeError):
        for option in (-3, -1):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes
            ctypes.CDLL(None).mallopt(option, 1 << 30)


def timed_on_cpu(case: Callable[[], Any], calls: int) -> float:
    """Milliseconds of one call."""
    return 1e3 * common.seconds(case)


def timed_on_gpu(device: torch.device) -> Callable[[Callable[[], Any], int], float]:
    """The mean milliseconds of several calls, of what the GPU does."""
    l2 = torch.empty(L2_BYTES, dtype=torch.int8, device=device)

    def timed(case: Callable[[], Any], calls: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for begin, end in events:
            l2.zero_()
            torch.cuda._sleep(QUEUED)  # while the CPU queues the call: its launches are not timed
            begin.record()
            case()
            end.record()
        torch.cuda.synchronize(device)
        return statistics.mean(begin.elapsed_time(end) for begin, end in events)

    return timed


def summary(times: list[float], base: list[float]) -> Row:
    """Median and quartiles of the times, and of their ratio to ``base`` in the same round."""
    ratios = [a / b for a, b in zip(times, base, strict=True)]
    quartiles, ratio_quartiles = statistics.quantiles(times, n=4), statistics.quantiles(ratios, n=4)
    return {
        "ms": round(quartiles[1], 4),
        "ms_quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "ratio_to_rope": round(ratio_quartiles[1], 4),
        "ratio_quartiles": [round(ratio_quartiles[0], 4), round(ratio_quartiles[2], 4)],
        "rounds": len(times),
    }


def step_case(
    arch: Arch,
    make: Kinds,
    batch: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    compiled: bool = False,
    updates_last: bool = False,
    attend: Callable[..., Any] | None = None,
) -> Callable[[], None]:
    """A whole training step as a case of :func:`round_robin`: forward, loss, backward, clipping,
    fused AdamW.

    Args:
        arch, make: sizes and positional encoding of the decoder, or the kinds of its layers.
        batch, length: rows and tokens of the input.
        dtype: of the autocast; fp32: none.
        compiled: by torch.compile, the model and the loss, as ``trainer.compile`` does.
        updates_last: whether the last layer also updates the position state, which nobody reads.
        attend: called instead of :func:`~tape_exp.models.attention.attend`.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(arch.vocab, (batch, length + 1), generator=generator).to(device)
    model = Decoder(arch, make).to(device)
    model.blocks()[-1].updates_state = updates_last
    for block in model.blocks():
        block.attend = attend
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    loss = cross_entropy
    if compiled:
        model.compile()
        loss = torch.compile(cross_entropy)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = model(tokens[:, :-1], sampler=RowSampler(0))
        loss(logits, tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean of -log softmax at the labels, in fp32."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten())
