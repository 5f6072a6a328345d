"""Times of training steps of several encodings, in turn, so that a slow moment meets them all."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch

Row = dict[str, Any]


def round_robin(
    cases: dict[str, Callable[[], Any]], device: torch.device, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each case in each round after warm-up: for ``seconds``, at least 5 rounds."""

    def timed(case: Callable[[], Any]) -> float:
        began = time.perf_counter()
        case()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1e3 * (time.perf_counter() - began)

    for case in cases.values():
        timed(case)
        timed(case)
    times: dict[str, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < 5 or time.perf_counter() < deadline:
        for name, case in cases.items():
            times[name].append(timed(case))
    return times


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
    make: Callable[[Arch], PositionEncoding],
    batch: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    backend: str = "auto",
    compiled: bool = False,
    updates_last: bool = False,
) -> Callable[[], None]:
    """A whole training step as a case of :func:`round_robin`: forward, loss, backward, fused AdamW.

    Args:
        arch: sizes of the decoder.
        make: its positional encoding.
        batch, length: rows and tokens of the input.
        dtype: of the autocast; fp32: none.
        device: where it runs.
        backend: of attention.
        compiled: by torch.compile.
        updates_last: whether the last layer also updates the position state, which nobody reads.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(arch.vocab, (batch, length + 1), generator=generator).to(device)
    model = Decoder(arch, make, backend=backend).to(device)
    model.blocks()[-1].updates_state = updates_last
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    if compiled:
        model.compile()

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = model(tokens[:, :-1], sampler=RowSampler(0))
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
