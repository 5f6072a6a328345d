"""The cost of a positional encoding: parameters and operations of a model of 155 M."""

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds
from tape_exp.models.places import Places
from tape_exp.models.positions import alibi, fire, nope, rope, t5, tape, xpos
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.scores import Scores
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.schema import Arch, Count
from tape_exp.tasks.base import NO_OPTIM, Model, Progress, Task

VOCABULARY = 32_000  # Llama-2's
# Of their operations the paper's counter sees none.
UNSEEN = nope.NoPE, rope.RoPE, xpos.XPos, alibi.ALiBi, t5.T5


class Efficiency(Task):
    """Counts parameters and operations; nothing is trained. It gives table flops of the paper.

    Metrics: ``count/parameters``; ``count/flops``, what this code computes in a forward pass of
    batch 1 with causal attention fused; of the paper's encodings ``count/macs_paper`` and
    ``count/flops_paper`` too, in the paper's convention. Times are those of ``benchmarks.speed``.
    """

    trains = False

    def __init__(self, arch: Arch, seed: int, length: Count = 1024) -> None:
        sizes = {"vocab": VOCABULARY, "max_length": length, "train_length": length}
        super().__init__(arch, NO_OPTIM, seed, **sizes)
        self.length = length

    def fingerprint(self) -> str:
        """Return a constant: no data are read."""
        return "none"

    def metric_names(self) -> list[str]:
        """Name all counts, those of the paper's encodings among them."""
        return [f"count/{kind}" for kind in ("parameters", "flops", "macs_paper", "flops_paper")]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Count parameters and operations."""
        decoder: Decoder = model.decoder
        metrics = {
            "count/parameters": float(decoder.parameter_count()),
            "count/flops": true_flops(self.arch, decoder.pattern, self.length),
        }
        counts = paper_convention(decoder, self.length)
        if counts is not None:
            macs, flops = counts
            metrics["count/macs_paper"] = macs
            metrics["count/flops_paper"] = flops
        return Evaluation(metrics)


def paper_convention(decoder: Decoder, length: int) -> tuple[float, float] | None:
    """Count (MACs, FLOPs) of a forward pass of batch 1 as the paper's table counts them; None where
    a layer's encoding is none of the paper's.

    Its counter sees linear layers, matrix products without regard to causality, and, only as FLOPs,
    einsums, softmax and activation functions. Norms, residuals and rotations are not seen.
    """
    arch = decoder.arch
    linear = sum(
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear) and ".position." not in name
    )
    scores = arch.layers * arch.heads * length**2
    macs = linear * length + 2 * scores * arch.head_dim
    other_flops = scores + arch.layers * arch.ffn * length  # softmax and activations
    for block in decoder.blocks():
        counts = added(block.position, length)
        if counts is None:
            return None
        added_macs, added_flops = counts
        macs += added_macs
        other_flops += added_flops
    return float(macs), float(2 * macs + other_flops)


def added(position: PositionEncoding, T: int) -> tuple[int, int] | None:
    """Count (MACs, further FLOPs) that a layer's encoding adds by the operations of the paper's
    public code, not of this one; None where it has no such encoding.
    """
    arch = position.arch
    H = arch.heads
    d = arch.head_dim
    C = arch.width
    if type(position) in UNSEEN:
        return 0, 0
    if type(position) is fire.FIRE:  # the MLP on every pair
        hidden = position.inner.out_features
        return T**2 * (hidden + hidden * H), T**2 * hidden
    if type(position) is not tape.TAPE:
        return None
    # Attention and ψ, for cosines and for sines; the einsums over heads.
    inner = position.update_net["wx"].shape[0] if position.feed_forward else 0
    attends = 1 if position.attention else 0
    macs = attends * 2 * H * d * T**2 + 2 * T * inner * C
    einsums = 2 * T * inner * H * 2 * d + attends * T * H * H * 2 * d
    return macs, 2 * einsums + 2 * T * inner


def true_flops(arch: Arch, position: Kinds, length: int) -> float:
    """Count the FLOPs of the matrix products that this code computes in a forward pass of batch 1.

    Torch counts them on a model without storage. Attention is counted there with a full square of
    scores; the fused kernels skip the half above the diagonal, which is taken off.
    """
    full = 0

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        nonlocal full
        carried = block.position.carry(state, places) if block.updates_state else None
        width = arch.head_dim + (0 if carried is None else carried.shape[-1])
        full += 2 * arch.heads * length**2 * (scores.q.shape[-1] + width)

    with torch.inference_mode(False), torch.no_grad(), torch.device("meta"):
        model = Decoder(arch, position, backend="explicit")
        positions = torch.zeros(1, length)
        tokens = torch.zeros(1, length, dtype=torch.long)
        places = Places.at(positions)
        with FlopCounterMode(display=False) as counter:
            model(tokens, positions_BT=positions, watch=watch)
    return float(counter.get_total_flops() - full / 2)
