"""What attention looks at, layer by layer: its probabilities and the dot products of positions, or
measures of them.

Shape suffixes: B batch, T tokens (queries, then keys), H heads, D head dimension, N ranges of
distances, M frequencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.attention import Scores
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.pope import PoPE
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.selective_rope import SelectiveRoPE
from tape_exp.models.precision import full_precision

ROTATING = RoPE, PoPE, SelectiveRoPE  # and what inherits from them
ROWS = 128  # of queries whose probabilities are in memory at once


@dataclass(frozen=True)
class Trace:
    """One layer of one forward pass.

    E Eᵀ is the mean over blocks m of ½ tr(e_{i,m} e_{j,m}ᵀ): what positions i and j contribute to
    the logit of a query and a key that agree, averaged over the directions in which they may agree.
    For one complex number a block (RoPE, TAPE) that is the mean of Re(e_i ē_j); RoPE's is
    mean_m cos(θ_m (i - j)).

    Args:
        attention: (B, H, T, T), fp32 or above: rows sum to 1, keys after the query are 0.
        matrices: as :meth:`~tape_exp.models.positions.rope.RoPE.matrices` gives them; None where
            nothing of the kind turns queries and keys.
    """

    attention: Tensor
    matrices: tuple[Tensor, Tensor] | None

    @property
    def products(self) -> Tensor | None:
        """E Eᵀ, averaged over the heads: (B, T, T) in the state's dtype, or None."""
        by_head = self.products_by_head
        return None if by_head is None else by_head.mean(1)

    @property
    def products_by_head(self) -> Tensor | None:
        """E Eᵀ of every head: (B, H, T, T) in the state's dtype, or None."""
        if self.matrices is None:
            return None
        M, L = self.matrices[0].shape[3:-1]
        with full_precision(self.attention):
            products = torch.einsum("bihmlr,bjhmlr->bhij", *self.matrices) / (M * L)
        return products.expand_as(self.attention)


def rotation_matrices(
    position: PositionEncoding, state: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The matrices of queries and keys that a layer's state stands for, if any turn them."""
    return position.matrices(state) if isinstance(position, RoPE) and state is not None else None


@torch.no_grad()
def trace(
    decoder: Decoder,
    tokens_BT: Tensor,
    layers: Sequence[int] | None = None,
    positions_BT: Tensor | None = None,
    sampler: RowSampler | None = None,
) -> dict[int, Trace]:
    """A forward pass that keeps the attention probabilities and the position states of some layers,
    each as the layer uses it: layer 1 shows the initial state. A layer takes 4 B H T² bytes.

    Args:
        decoder: left as it is, its mode included.
        tokens_BT: token ids.
        layers: which to keep, counted from 1; None keeps all.
        positions_BT, sampler: as in :meth:`~tape_exp.models.decoder.Decoder.forward`.

    Raises:
        ValueError: the decoder has no such layer.
    """
    existing = range(1, decoder.arch.layers + 1)
    kept = set(existing if layers is None else layers)
    if missing := kept.difference(existing):
        raise ValueError(f"there is no layer {min(missing)}: the layers are 1 … {len(existing)}.")
    traces: dict[int, Trace] = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        if block.layer + 1 in kept:
            matrices = rotation_matrices(block.position, state)
            traces[block.layer + 1] = Trace(scores.probabilities(), matrices)

    decoder(tokens_BT, positions_BT=positions_BT, sampler=sampler, last_only=True, watch=watch)
    return traces


@dataclass(frozen=True)
class AttentionUse:
    """One layer of one forward pass; all are fp32.

    Args:
        first: (B, H, T), the probability of each query's first keys of the row.
        distance: (B, H, T), the mean distance Σ_s A_ts (t - s), in tokens.
        by_distance: (B, H, T, N), the probability of the keys in each range of distances.
        entropy: (B, H, T), -Σ_s A_ts ln A_ts, in nats; ln (t + 1) where attention is uniform.
        norms: (2, M), of queries and of keys: √(x_m² + x_{m+d/2}²) as it enters the dot product,
            averaged over tokens and heads; None where the encoding turns no pairs of channels.
    """

    first: Tensor
    distance: Tensor
    by_distance: Tensor
    entropy: Tensor
    norms: Tensor | None


@torch.no_grad()
def attention_use(
    decoder: Decoder,
    tokens_BT: Tensor,
    first: int,
    edges: Sequence[int],
    sampler: RowSampler | None = None,
    at_once: int = ROWS,
) -> dict[int, AttentionUse]:
    """A forward pass that measures every layer, counted from 1, and leaves the decoder as it is.

    Probabilities are in memory for ``at_once`` queries of one layer at a time.

    Args:
        tokens_BT: token ids.
        first: how many keys count as the first of a row.
        edges: ascending distances from 0; range n is of distances edges[n] … edges[n + 1] - 1.
        sampler: as in :meth:`~tape_exp.models.decoder.Decoder.forward`.
    """
    uses: dict[int, AttentionUse] = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        T, device = scores.q.shape[2], scores.q.device
        ends, parts = torch.tensor(edges[1:], device=device), []
        for start in range(0, T, at_once):
            stop = min(start + at_once, T)
            A = scores.probabilities(start, stop)
            queries, keys = (torch.arange(*x, device=device) for x in ((start, stop), (stop,)))
            distance = (queries[:, None] - keys).clamp(min=0)
            ranges = torch.bucketize(distance, ends, right=True).clamp(max=len(ends) - 1)
            by_distance = A.new_zeros(*A.shape[:3], len(ends))
            by_distance.scatter_add_(-1, ranges.expand_as(A), A)
            mean, entropy = (A * distance).sum(-1), torch.special.entr(A).sum(-1)
            parts.append((A[..., :first].sum(-1), mean, by_distance, entropy))
        near, mean, by_range, entropy = (torch.cat(x, 2) for x in zip(*parts, strict=True))
        norms = _norms(block, scores, state)
        uses[block.layer + 1] = AttentionUse(near, mean, by_range, entropy, norms)

    decoder(tokens_BT, sampler=sampler, last_only=True, watch=watch)
    return uses


def _norms(block: Block, scores: Scores, state: Tensor | None) -> Tensor | None:
    """The mean norm of the channels of each frequency, queries and keys: (2, M). None where
    channels do not turn, or more than two of them together, as TAPE's blocks of R above 2 do.
    """
    if not isinstance(block.position, ROTATING):
        return None
    matrices = rotation_matrices(block.position, state)
    pairs = scores.q.shape[-1] // 2
    M = pairs if matrices is None else matrices[0].shape[3]
    if pairs > M:
        return None
    both = (x.float().unflatten(-1, (-1, M)).norm(dim=-2) for x in (scores.q, scores.k))
    return torch.stack([x.mean(dim=(0, 1, 2)) for x in both])
