"""Abacus embeddings and position coupling: the place of each digit in its number."""

from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


class Abacus(PositionEncoding):
    """Abacus embeddings (McLeish et al., "Transformers Can Do Arithmetic with the Right
    Embeddings", 2024), NoPE otherwise::

        x_t ← x_t + w[i_t + k]    t is the i_t-th digit of its number, i_t = 1, 2, …
        x_t ← x_t + w[0]          t is no digit

    w: (1 + longest sequence + ``max_offset``, C), beginning as N(0, 0.02). The offset k is uniform
    in 0 … ``max_offset`` in training and 0 at evaluation, so that training meets the places of
    longer numbers; rows that it never meets stay as they begin. Deliberately different from the
    public code: k is drawn for each row, not for each batch.

    A number is a run of digits that begins with the least-significant one. The task tells which
    tokens are digits (``arch.digits``): a ceiling for what knowledge of the structure is worth, not
    a rival of encodings that must find it out. (After short training it may be behind them: it has
    then met each of the 100 offsets seldom.)

    Args:
        max_offset: the largest k; 99 in the public code.
    """

    cacheable = False  # a digit's place depends on the tokens before it
    knows_digits = True
    digits: Tensor  # (10,) int64, ids of the digits

    def __init__(
        self, arch: Arch, max_offset: Annotated[int, Interval(ge=0, le=2**20)] = 99
    ) -> None:
        if not arch.digits:
            raise ConfigError(
                f"{type(self).__name__} must be told which tokens are digits, and this task names "
                "none; task=arithmetic does, and model=learned needs none."
            )
        super().__init__(arch)
        self.max_offset = max_offset
        self.register_buffer("digits", torch.tensor(arch.digits), persistent=False)
        self.embedding = nn.Parameter(torch.empty(1 + arch.max_length + max_offset, arch.width))

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the table from N(0, 0.02); of two draws the second counts, since recorded runs began
        so.
        """
        for table in self.parameters():  # none but in the first layer
            for _ in range(2):
                nn.init.normal_(table, std=0.02, generator=generator)

    def embed(self, x_BTC: Tensor, places: Places) -> Tensor:
        """Add w of every id to x, where places count the tokens since the last that is no digit."""
        tokens_BT = places.tokens
        index_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        others_BT = torch.where(torch.isin(tokens_BT, self.digits), -1, index_T)
        places_BT = index_T - others_BT.cummax(-1).values
        offset_B1 = places_BT.new_zeros(1, 1)
        if self.training and places.sampler is not None:
            drawn_B1 = places.sampler.integers(len(tokens_BT), 1, x_BTC.device)
            offset_B1 = drawn_B1 * (self.max_offset + 1) >> 32
        return x_BTC + F.embedding(self.shifted(places_BT, offset_B1), self.embedding)

    def shifted(self, places_BT: Tensor, offset_B1: Tensor) -> Tensor:
        """Return i_t + k of digits, and 0 of other tokens."""
        return places_BT + offset_B1 * (places_BT > 0)


class PositionCoupling(Abacus):
    """Position coupling (Cho et al., "Position Coupling: Improving Length Generalization of
    Arithmetic Transformers Using Task Structure", 2024): x_t ← x_t + w[i_t + k] for all tokens.

    As :class:`Abacus`, a ceiling too, but ids of other tokens, i_t = 0, move along: ``+`` and ``=``
    have the one next to the least-significant digits, as in the public code. Deliberately different
    from that code: ids count up from the least-significant digit, with which numbers are written
    here; k has the same range in all rows; EOS and padding have no id of their own.
    """

    def shifted(self, places_BT: Tensor, offset_B1: Tensor) -> Tensor:
        return places_BT + offset_B1
