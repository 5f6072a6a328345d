"""Times of several cases in turn, so that a slow moment meets them all."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as autograd_config

Row = dict[str, Any]
LONG_ENOUGH, MOST_CALLS = 20.0, 50  # milliseconds of a round of one case on a GPU, and its calls
L2_BYTES = 256 * 2**20  # more than the L2 cache of any GPU holds
# Cycles of a GPU, about a millisecond: the CPU takes up to a third of that to launch attention.
QUEUED = 2_000_000


def round_robin(
    cases: dict[str, Callable[[], Any]], device: torch.device, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each case in each round after warm-up: for ``seconds``, at least 5 rounds.

    On a GPU a round calls a short case many times, between events of its stream and without
    waiting, so that the CPU, which launches kernels, is ahead; what the L2 cache holds of the last
    call is overwritten before the next.
    """
    timed = clock(device)
    often = {}
    for name, case in cases.items():
        timed(case, 1)
        often[name] = min(max(round(LONG_ENOUGH / timed(case, 1)), 1), MOST_CALLS)
    times: dict[str, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < 5 or time.perf_counter() < deadline:
        for name, case in cases.items():
            times[name].append(timed(case, often[name] if device.type == "cuda" else 1))
    return times


def clock(device: torch.device) -> Callable[[Callable[[], Any], int], float]:
    """What times calls on a device: :func:`timed_on_cpu`, or its like for a GPU."""
    return timed_on_gpu(device) if device.type == "cuda" else timed_on_cpu


@contextmanager
def apart() -> Iterator[None]:
    """Where what is computed, gradients included, does not show in the pass that it interrupts:
    checkpointed activations do not count it, and inference does not forbid it.
    """
    # Detached, since an operation that kept its own output in this way would never be freed.
    unchanged = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda x: x)
    # While a graph is built, whose constant this is, no backward pass can be compiled by itself:
    # torch would take it for a part of that compilation, and fail.
    at_once = autograd_config.patch(force_non_lazy_backward_lowering=True)
    with torch.inference_mode(False), torch.enable_grad(), unchanged, at_once:
        yield


def timed_on_cpu(case: Callable[[], Any], calls: int) -> float:
    """Milliseconds of a call, the mean of several."""
    began = time.perf_counter()
    for _ in range(calls):
        case()
    return 1e3 * (time.perf_counter() - began) / calls


def timed_on_gpu(device: torch.device) -> Callable[[Callable[[], Any], int], float]:
    """As :func:`timed_on_cpu`, of what the GPU does."""
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
