"""What the positional state of a trained model is: its size and turn, layer by layer.

In TAPE a block of the state of layer l is one complex number, E_l = E_1 c with c = r e^{iφ} for
each token, head and block of two channels. The gain r makes logits larger or smaller, as a
temperature does; φ turns the position. What the model needs of them is asked by
:mod:`~tape_exp.tasks.diagnostics.interventions`.

Shape suffixes: B rows, T tokens, N tokens that count, H heads, M blocks.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import LastLogits
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.models.scores import Scores
from tape_exp.models.trace import rotation_matrices
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Model


def updates_positions(decoder: Decoder) -> bool:
    """Say whether the layers hand on a state that they update: TAPE and its variants."""
    return any(isinstance(block.position, TAPE) for block in decoder.blocks())


def has_factors(block: Block) -> bool:
    """Say whether the state of a layer is one complex number for each block: TAPE and the variants
    of it that are not of the general layout.
    """
    return isinstance(block.position, TAPE) and not isinstance(block.position, TensorTAPE)


def complex_numbers(state: Tensor) -> Tensor:
    """Return E as complex numbers, (B, T, H, M), from its real and imaginary parts."""
    return torch.complex(*state.unbind(-2))


def logarithm(c: Tensor) -> Tensor:
    """Return log r of c = r e^{iφ}, finite where r is 0."""
    return c.abs().clamp(min=torch.finfo(c.real.dtype).tiny).log()


def factors(model: Model, tokens: Tensor, counts: Tensor) -> dict[int, Tensor]:
    """Return c of each layer, from 0, as its attention sees it: (N, H, M), of the tokens that
    count.
    """
    initial: dict[int, Tensor] = {}
    by_layer = {}

    def watch(block: Block, scores: Scores, state: Tensor) -> None:
        if not has_factors(block):
            return
        E = complex_numbers(state).expand(len(tokens), -1, -1, -1)[counts.to(state.device)]
        by_layer[block.layer] = E / initial.setdefault(block.kind, E)

    model(tokens, watch=watch, output=LastLogits(), sampler=RowSampler(0, "attention maps"))
    return by_layer


@torch.no_grad()
def factor_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """Measure how far gain and turn of TAPE's state differ from token to token; nothing of others.

    ``state/log_gain@<layer>``: how far log r is from its mean over tokens, the mean over tokens,
    heads and blocks; ``state/phase@<layer>``: the same for φ, in radians, on the circle. A mean
    over tokens is taken off since a common r is a temperature, and a common φ cancels in q·k.
    ``state/log_gain_by_block@<m>`` and ``state/phase_by_block@<m>`` are of the last layer, by
    block, from the fastest frequency, 1, to the slowest. ``counts`` is as in :func:`state_metrics`.
    """
    metrics: dict[str, float] = {}
    by_layer = factors(model, tokens, counts)
    for layer, c_NHM in by_layer.items():
        log_r = logarithm(c_NHM)
        direction = c_NHM.sgn()
        apart = {
            "log_gain": log_r - log_r.mean(0),
            "phase": (direction * direction.mean(0).sgn().conj()).angle(),
        }
        for name, deviation_NHM in apart.items():
            metrics[f"state/{name}@{layer + 1}"] = float(deviation_NHM.abs().mean())
            if layer == max(by_layer):
                by_block = deviation_NHM.abs().mean((0, 1))
                numbers = enumerate(by_block.tolist(), 1)
                metrics |= {f"state/{name}_by_block@{m}": value for m, value in numbers}
    return metrics


@torch.no_grad()
def state_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """Measure what each layer's attention sees of the state of TAPE, next to what the first layer
    of its kind sees; nothing of layers of other kinds.

    ``state/size@<layer>``: the mean norm of a block of E, over that of the first layer.
    ``state/turn@<layer>``: the mean angle between a block of E and that of the first layer, in
    radians: where a block is one complex number, by how much its phase has changed. RoPE would have
    1 and 0. ``counts`` says which of the tokens, (B, T), are no padding.
    """
    first: dict[int, Tensor] = {}
    metrics = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        if not isinstance(block.position, TAPE):
            return
        matrices = rotation_matrices(block.position, state)
        assert matrices is not None
        B, H, T, _ = scores.q.shape
        E = matrices[0].expand(B, T, H, -1, -1, -1).flatten(4).double()
        E = E[counts.to(E.device)]
        initial = first.setdefault(block.kind, E)
        size = E.norm(dim=-1).mean() / initial.norm(dim=-1).mean()
        metrics[f"state/size@{block.layer + 1}"] = float(size)
        metrics[f"state/turn@{block.layer + 1}"] = float(angle(E, initial).mean())

    model(tokens, watch=watch, output=LastLogits(), sampler=RowSampler(0, "attention maps"))
    return metrics


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Return the angles between vectors, exactly 0 where they agree, which an arc cosine is not.

    >>> angle(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    tensor(1.5708)
    """
    a = torch.nn.functional.normalize(a, dim=-1)
    b = torch.nn.functional.normalize(b, dim=-1)
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def state_names(arch: Arch) -> list[str]:
    """Name the numbers of :func:`state_metrics`."""
    return _numbered(("size", "turn"), arch.layers)


def factor_names(arch: Arch) -> list[str]:
    """Name the numbers of :func:`factor_metrics`."""
    by_block = _numbered(("log_gain_by_block", "phase_by_block"), arch.head_dim // 2)
    return _numbered(("log_gain", "phase"), arch.layers) + by_block


def _numbered(kinds: Sequence[str], count: int) -> list[str]:
    """List ``state/size@1``, ``state/size@2``, …"""
    numbers = range(1, count + 1)
    return [f"state/{kind}@{number}" for kind, number in itertools.product(kinds, numbers)]
