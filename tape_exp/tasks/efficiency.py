"""The cost of a positional encoding: parameters, operations and training steps at 155 M."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.step import step_case
from tape_exp.models.timing import round_robin, summary
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import at_least_one, between, positive
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM, NothingTrained, Task

LONGEST = 3600.0  # seconds of timing
VOCABULARY = 32_000  # Llama-2's


@dataclass(frozen=True)
class Timing:
    """The training step that is timed, RoPE's and this encoding's in turn."""

    layers: int = 2
    batch: int = 2
    length: int = 512
    seconds: float = 20.0

    def __post_init__(self) -> None:
        at_least_one("task.timing", layers=self.layers, batch=self.batch, length=self.length)
        positive("task.timing", seconds=self.seconds)
        between("task.timing", 0, LONGEST, seconds=self.seconds)


class Efficiency(NothingTrained, Task):
    """Counts operations and measures times; nothing is trained. It gives table flops of the paper.

    Metrics: ``count/parameters``; ``count/macs_paper`` and ``count/flops_paper``, a forward pass of
    batch 1 in the paper's convention; ``count/flops``, what this code computes with causal
    attention fused; ``time/step_ms`` and ``time/step_ratio_to_rope``, a training step at the width
    of ``arch``, both models timed in turn.

    Args:
        length: tokens of the counted forward pass.
        timing: see :class:`Timing`; null only counts.
    """

    def __init__(
        self, arch: Arch, seed: int, length: int = 1024, timing: Timing | None = None
    ) -> None:
        at_least_one("task", length=length)
        super().__init__(
            arch, NO_OPTIM, seed, vocab=VOCABULARY, max_length=length, train_length=length
        )
        self.length, self.timing = length, timing

    def fingerprint(self) -> str:
        """There is no data."""
        return "none"

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Count, then time unless ``limit`` asks for a short evaluation."""
        decoder: Decoder = model.decoder
        device = decoder.head.weight.device
        macs, flops = paper_convention(decoder, self.length)
        metrics = {
            "count/parameters": float(decoder.parameter_count()),
            "count/macs_paper": macs,
            "count/flops_paper": flops,
            "count/flops": true_flops(self.arch, decoder.make_position, self.length),
        }
        if self.timing is not None and limit is None:
            metrics |= self._time(decoder, device)
        return Evaluation(metrics)

    def _time(self, decoder: Decoder, device: torch.device) -> dict[str, float]:
        assert self.timing is not None
        given = self.timing
        arch = Arch(
            given.layers,
            self.arch.width,
            self.arch.heads,
            self.arch.ffn,
            vocab=1000,
            max_length=given.length,
            train_length=given.length,
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        sizes = (given.batch, given.length, dtype, device)
        full = torch.autocast(device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), full:
            cases = {
                "rope": step_case(arch, RoPE, *sizes),
                "this": step_case(arch, decoder.make_position, *sizes),
            }
            times = round_robin(cases, device, given.seconds)
        row = summary(times["this"], times["rope"])
        return {
            "time/step_ms": row["ms"],
            "time/step_ratio_to_rope": row["ratio_to_rope"],
            "time/step_ratio_spread": row["ratio_quartiles"][1] - row["ratio_quartiles"][0],
        }


def paper_convention(decoder: Decoder, length: int) -> tuple[float, float]:
    """(MACs, FLOPs) of a forward pass of batch 1 as the paper's table counts them.

    Its counter sees linear layers, matrix products without regard to causality, and, only as FLOPs,
    einsums, softmax and activation functions. What a positional encoding adds is its own
    ``counted_operations``. Norms, residuals and rotations are not seen.
    """
    arch = decoder.arch
    linear = sum(
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear) and ".position." not in name
    )
    extra = [block.position.counted_operations(length) for block in decoder.blocks()]
    extra_macs, extra_flops = (sum(counts) for counts in zip(*extra, strict=True))
    scores = arch.layers * arch.heads * length**2
    macs = linear * length + 2 * scores * arch.head_dim + extra_macs
    flops = 2 * macs + scores + arch.layers * arch.ffn * length + extra_flops
    return float(macs), float(flops)


def true_flops(arch: Arch, position: Kinds, length: int) -> float:
    """FLOPs of the matrix products that this code computes in a forward pass of batch 1.

    Torch counts them on a model without storage. Attention is counted there with a full square of
    scores; the fused kernels skip the half above the diagonal, which is taken off.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.device("meta"):
        model = Decoder(arch, position, backend="reference")
        positions = torch.zeros(1, length)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, length, dtype=torch.long), positions_BT=positions)
        full = 0
        states = model.initial_states(positions)
        for layer in model.blocks():
            state = states[layer.chain]
            carried = layer.position.carried(state) if layer.updates_state else None
            width = arch.head_dim + (0 if carried is None else carried.shape[-1])
            first = None if state is None else state[:, :1]
            one = torch.zeros(1, 1, arch.heads, arch.head_dim)
            features = layer.position.features(torch.zeros(1, 1, arch.width), first, {})
            q, _ = layer.position.rotate(one, one, first, features)
            full += 2 * arch.heads * length**2 * (q.shape[-1] + width)
    return float(counter.get_total_flops() - full / 2)
