"""What attention looks at, layer by layer: its probabilities and the dot products of positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import LastLogits
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.precision import full_precision
from tape_exp.models.scores import Scores


@dataclass(frozen=True)
class Trace:
    """One layer of one forward pass.

    E Eᵀ is the mean over blocks m of ½ tr(e_{i,m} e_{j,m}ᵀ): what positions i and j contribute to
    the logit of a query and a key that agree, averaged over the directions in which they may agree.
    For one complex number a block (RoPE, TAPE) that is the mean of Re(e_i ē_j); RoPE's is
    mean_m cos(θ_m (i - j)).
    """

    attention: Tensor  # (B, H, T, T), at least fp32: rows sum to 1, keys after the query are 0
    matrices: tuple[Tensor, Tensor] | None  # of RoPE.matrices

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
        with full_precision(self.attention.device):
            products = torch.einsum("bihmlr,bjhmlr->bhij", *self.matrices) / (M * L)
        return products.expand_as(self.attention)


def rotation_matrices(position: PositionEncoding, state: Any) -> tuple[Tensor, Tensor] | None:
    """Return the matrices of queries and keys that a layer's state stands for, if any turn them."""
    return position.matrices(state) if isinstance(position, RoPE) and state is not None else None


@torch.no_grad()
def trace(
    decoder: Decoder,
    tokens_BT: Tensor,
    layers: Sequence[int] | None = None,
    positions_BT: Tensor | None = None,
    sampler: RowSampler | None = None,
) -> dict[int, Trace]:
    """Run a forward pass and return the attention probabilities and the position states of some
    layers, counted from 1 (None: all), each as the layer uses it: layer 1 shows the initial state.
    """
    existing = range(1, decoder.arch.layers + 1)
    chosen = set(existing if layers is None else layers)
    missing = chosen.difference(existing)
    if missing:
        raise ValueError(f"there is no layer {min(missing)}: the layers are 1 … {len(existing)}.")
    traces: dict[int, Trace] = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        if block.layer + 1 in chosen:
            matrices = rotation_matrices(block.position, state)
            traces[block.layer + 1] = Trace(scores.probabilities(), matrices)

    decoder(tokens_BT, positions_BT=positions_BT, sampler=sampler, output=LastLogits(), watch=watch)
    return traces
