"""The cost of a positional encoding: parameters, operations and training steps at 155 M."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tape_exp.models.attention import Scores
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds
from tape_exp.models.positions import path, tape_householder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.cope import CoPE
from tape_exp.models.positions.dape import DAPE
from tape_exp.models.positions.fire import FIRE
from tape_exp.models.positions.fox import FoX
from tape_exp.models.positions.grape import GRAPE
from tape_exp.models.positions.path import PaTH
from tape_exp.models.positions.pope import PoPE
from tape_exp.models.positions.repo import RePo
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.selective_rope import SelectiveRoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_householder import HouseholderTAPE
from tape_exp.models.positions.wall import Wall
from tape_exp.models.timing import round_robin, step_case, summary
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.schema import Arch, Count
from tape_exp.tasks.base import NO_OPTIM, Model, Progress, Task

VOCABULARY = 32_000  # Llama-2's


@dataclass(frozen=True)
class Timing:
    """The training step that is timed, RoPE's and this encoding's in turn."""

    layers: Count = 2
    batch: Count = 2
    length: Count = 512
    seconds: Annotated[float, Interval(ge=1e-3, le=3600)] = 20.0


class Efficiency(Task):
    """Counts operations and measures times; nothing is trained. It gives table flops of the paper.

    Metrics: ``count/parameters``; ``count/macs_paper`` and ``count/flops_paper``, a forward pass of
    batch 1 in the paper's convention; ``count/flops``, what this code computes with causal
    attention fused; ``time/step_ms`` and ``time/step_ratio_to_rope``, a training step at the width
    of ``arch``, both models timed in turn.

    Args:
        length: tokens of the counted forward pass.
        timing: see :class:`Timing`; null only counts.
    """

    trains = False

    def __init__(
        self, arch: Arch, seed: int, length: Count = 1024, timing: Timing | None = None
    ) -> None:
        sizes = {"vocab": VOCABULARY, "max_length": length, "train_length": length}
        super().__init__(arch, NO_OPTIM, seed, **sizes)
        self.length, self.timing = length, timing

    def fingerprint(self) -> str:
        """There is no data."""
        return "none"

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
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
        given, arch = self.timing, self.arch
        assert given is not None
        timed = Arch(given.layers, arch.width, arch.heads, arch.ffn, vocab=1000)
        timed = replace(timed, max_length=given.length, train_length=given.length)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        full = torch.autocast(device.type, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), full:
            cases = {
                name: step_case(timed, kind, given.batch, given.length, dtype, device)
                for name, kind in (("rope", RoPE), ("this", decoder.make_position))
            }
            times = round_robin(cases, device, given.seconds)
        row = summary(times["this"], times["rope"])
        low, high = row["ratio_quartiles"]
        ratio = {"time/step_ratio_to_rope": row["ratio_to_rope"]}
        return {"time/step_ms": row["ms"]} | ratio | {"time/step_ratio_spread": high - low}


def paper_convention(decoder: Decoder, length: int) -> tuple[float, float]:
    """(MACs, FLOPs) of a forward pass of batch 1 as the paper's table counts them.

    Its counter sees linear layers, matrix products without regard to causality, and, only as FLOPs,
    einsums, softmax and activation functions. Norms, residuals and rotations are not seen.
    """
    arch = decoder.arch
    linear = sum(
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear) and ".position." not in name
    )
    extra = [added(block.position, length) for block in decoder.blocks()]
    extra_macs, extra_flops = (sum(counts) for counts in zip(*extra, strict=True))
    scores = arch.layers * arch.heads * length**2
    macs = linear * length + 2 * scores * arch.head_dim + extra_macs
    flops = 2 * macs + scores + arch.layers * arch.ffn * length + extra_flops
    return float(macs), float(flops)


def added(position: PositionEncoding, T: int) -> tuple[int, int]:
    """(MACs, further FLOPs) that a layer's encoding adds, 0 where it is not named here. Of those in
    the paper these are the operations of its public code, not of this one.
    """
    arch = position.arch
    H, d, C = arch.heads, arch.head_dim, arch.width
    size = {name: parameter.numel() for name, parameter in position.named_parameters()}
    everything = sum(size.values())
    if isinstance(position, FIRE):  # the MLP on every pair
        hidden = position.inner.out_features
        return T**2 * (hidden + hidden * H), T**2 * hidden
    if isinstance(position, CoPE):  # logits of the gates, q·e; sigmoid, count, interpolation
        return H * T * (T * d + size["e"]), 5 * H * T**2
    if isinstance(position, DAPE):  # the logits once more, and f on every pair
        hidden = position.inner.out_features
        return T**2 * H * (d + 3 * hidden), T**2 * hidden
    if isinstance(position, Wall):  # gates and logits; gates and exponentials
        return T * size["w"] + T**2 * H * d // 2, 10 * T * H * d
    if isinstance(position, FoX | PaTH):  # gate; gate, sum and difference
        gates = size.get("w_forget", 0), H * T * (3 + T) if "w_forget" in size else 0
        if isinstance(position, FoX):
            return T * gates[0], gates[1]
        c = min(T, path.BLOCK)  # maps; products and solves within blocks, four of two blocks
        blocks, maps = -(-T // c), sum(size[name] for name in ("down", "up", "taps", "b"))
        within = blocks * (3 * c**2 * d + 2 * c**3) * (1 if blocks == 1 else 2)
        macs = T * (maps + gates[0]) + H * (within + 2 * blocks * (blocks - 1) * c**2 * d)
        return macs, gates[1]
    if isinstance(position, PoPE):  # the other half of the logits; softplus, phases, products
        return H * d * T**2, 12 * H * d * T
    if isinstance(position, RePo):  # three maps; SiLU and product
        return T * everything, 5 * T * len(position.wg)
    if isinstance(position, GRAPE):  # the map to the planes, the phase
        planes = (H + arch.key_heads) * d**2 if "skew" in size else 0
        return T * (planes + size.get("w", 0)), 0
    if isinstance(position, SelectiveRoPE):  # maps; gate, bias, sum and rotation
        maps = sum(size.get(name, 0) for name in ("down", "up", "taps", "w"))
        return T * maps, 8 * T * position.taps.shape[1]
    if not isinstance(position, TAPE):
        return 0, 0
    # Attention and ψ, for cosines and for sines; the einsums over heads.
    inner = size.get("update_net.wx", 0) // C
    attends = 1 if position.attention else 0
    macs = attends * 2 * H * d * T**2 + 2 * T * inner * C
    einsums = 2 * T * inner * H * 2 * d + attends * T * H * H * 2 * d
    if isinstance(position, HouseholderTAPE):  # maps, Ξ Ξᵀ of a block, the solve, the sums
        maps = sum(size[f"update_net.{name}"] for name in ("down", "up", "up_apart"))
        macs += T * (maps + 5 * H * d * position.R)
        macs += 8 * H * d * T * min(T, tape_householder.BLOCK)
    return macs, 2 * einsums + 2 * T * inner


def true_flops(arch: Arch, position: Kinds, length: int) -> float:
    """FLOPs of the matrix products that this code computes in a forward pass of batch 1.

    Torch counts them on a model without storage. Attention is counted there with a full square of
    scores; the fused kernels skip the half above the diagonal, which is taken off.
    """
    full = 0

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        nonlocal full
        carried = block.position.carry(state) if block.updates_state else None
        width = arch.head_dim + (0 if carried is None else carried.shape[-1])
        full += 2 * arch.heads * length**2 * (scores.q.shape[-1] + width)

    with torch.inference_mode(False), torch.no_grad(), torch.device("meta"):
        model = Decoder(arch, position, backend="explicit")
        places, tokens = torch.zeros(1, length), torch.zeros(1, length, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens, positions_BT=places, watch=watch)
    return float(counter.get_total_flops() - full / 2)
