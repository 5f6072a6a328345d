"""The interface of a positional encoding, and its default: none (NoPE)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.scores import Bias
from tape_exp.settings.schema import Arch

Biases = Bias | list[Bias] | None
Rotated = tuple[Tensor, Tensor]  # queries and keys


@dataclass(frozen=True)
class LayerOutputs:
    """What a layer has made of its tokens, each (B, T, C): what queries and keys are made of, which
    is 0 for padding, and what attention and the MLP add to the residual stream.
    """

    x: Tensor
    attention: Tensor
    mlp: Tensor


class PositionEncoding(nn.Module):
    """NoPE, no positional encoding at all: order is seen only through the causal mask (Kazemnejad
    et al., 2023). It is also the interface of every other encoding, which overrides what differs:

    - ``embed``: what is added to the input (sinusoidal, learned, Abacus),
    - ``start``: the state that the first layer sees (RoPE: rotations; TAPE: E),
    - ``rotate``: queries and keys before the dot product (RoPE, xPos, TAPE, PoPE),
    - ``bias``: what is added to the scaled logits (ALiBi, FIRE, CoPE, PaTH),
    - ``carry`` and ``update``: what attention averages besides the values, and the state of the
      next layer (TAPE).

    Every layer owns one instance, so that trainable parts are per layer; ``embed`` and ``start``
    are asked of the first layer (of a pattern: of each kind). Whatever the model's precision, these
    methods get fp32 (or fp64) and no autocast reaches them; parameters may be of 16 bits, which
    :func:`~tape_exp.models.scores.precise` widens. A parameter ``embedding`` is kept in the
    first layer only; those in ``update_net`` are idle in the last, whose state nobody reads.

    Shape suffixes: B batch, T tokens, S keys (more than T in cached decoding), H heads, K heads of
    keys and values, C width, D head dimension.
    """

    # A token leaves to later ones its key, its value and what `carry` gives. Where keys change with
    # later tokens, or sums over the past are needed, decoding computes all anew.
    cacheable = True
    # `rotate` and `bias` take keys of K heads, which is cheaper than one for each query head.
    grouped_keys = False

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.arch = arch

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialise this layer's parameters: matrices N(0, 0.02), vectors as constructed."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def embed(
        self, x_BTC: Tensor, tokens_BT: Tensor, positions_BT: Tensor, sampler: RowSampler | None
    ) -> Tensor:
        """The input, with what positions, (1 or B, T), or ids, -1 for padding, add to it; a token's
        part depends on no later token. ``sampler`` draws the same for a row at every step of
        decoding.
        """
        return x_BTC

    def start(self, positions_BT: Tensor) -> Tensor | None:
        """The state that the first layer sees, a row of it for each token: (1 or B, T, …)."""
        return None

    def rotate(self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Any) -> Rotated:
        """Queries and keys as they enter the dot product, by the state of these tokens and the x
        that they are made of, 0 for padding. Both may become wider; their logits are then divided
        by the root of the new width.
        """
        return q_BTHD, k_BTHD

    def bias(self, q_BTHD: Tensor, k_BSHD: Tensor, x_BTC: Tensor, positions_BS: Tensor) -> Biases:
        """What is added to q·k / √D, with q and k rotated; a pair depends on no token after its
        query. q and x are of the last T of the S tokens; positions are (1 or B, S).
        """
        return None

    def carry(self, state: Any) -> Tensor | None:
        """What attention averages besides the values: (B or 1, T, H or 1, E)."""
        return None

    def update(self, state: Any, averaged_BTHE: Tensor | None, tokens: LayerOutputs) -> Any:
        """The next layer's state, from what :meth:`carry` gave, averaged, and the tokens."""
        return state


def for_heads(x_BTKD: Tensor, heads: int) -> Tensor:
    """(B, T, heads, D): each key head repeated for the query heads that it serves."""
    groups = heads // x_BTKD.shape[2]
    return x_BTKD.repeat_interleave(groups, 2) if groups > 1 else x_BTKD
