"""Abacus embeddings and position coupling: the place of each digit in its number."""

from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


class Abacus(PositionEncoding):
    """Abacus embeddings (McLeish et al., "Transformers Can Do Arithmetic with the Right
    Embeddings", 2024)::

        x_t ← x_t + w[i_t + k]    t is the i_t-th digit of its number, i_t = 1, 2, …
        x_t ← x_t + w[0]          t is no digit

    w: (1 + longest sequence + ``max_offset``, C), beginning as N(0, 0.02). The offset k is uniform
    in 0 … ``max_offset`` in training and 0 at evaluation, so that training meets the places of
    longer numbers; rows beyond the longest trained number + ``max_offset`` stay as they begin.

    A number is a run of digits, and the i-th digits of two numbers belong together only where
    numbers begin with their least-significant digit. Which tokens are digits is told by the task
    (``arch.digits``), so this is a ceiling for what knowledge of the structure is worth, not a
    rival of encodings that must find the structure out. (After short training it need not be ahead
    of them: it has then met each of the 100 offsets seldom.) It is NoPE otherwise. Deliberately
    different from the public code: k is drawn for each row, not for each batch.

    Args:
        max_offset: the largest k; 99 in the public code.
    """

    cacheable = False  # a digit's place depends on the tokens before it
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
        self.embedding = nn.Parameter(torch.zeros(1 + arch.max_length + max_offset, arch.width))

    def init_weights(self, generator: torch.Generator) -> None:
        """N(0, 0.02), the generator's second draw, with which the recorded runs began."""
        super().init_weights(generator)
        super().init_weights(generator)

    def embed(
        self, x_BTC: Tensor, tokens_BT: Tensor, positions_BT: Tensor, sampler: RowSampler | None
    ) -> Tensor:
        """x + w of every id."""
        places_BT = self.places(tokens_BT)
        offset_B1 = places_BT.new_zeros(1, 1)
        if self.training and sampler is not None:
            drawn_B1 = sampler.integers(len(tokens_BT), 1, x_BTC.device)
            offset_B1 = drawn_B1 * (self.max_offset + 1) >> 32
        return x_BTC + F.embedding(self.shifted(places_BT, offset_B1), self.embedding)

    def shifted(self, places_BT: Tensor, offset_B1: Tensor) -> Tensor:
        """i_t + k of digits, 0 of other tokens."""
        return places_BT + offset_B1 * (places_BT > 0)

    def places(self, tokens_BT: Tensor) -> Tensor:
        """i_t, (B, T) int64: tokens since the last that is no digit; 0 for what is no digit."""
        index_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        others_BT = torch.where(torch.isin(tokens_BT, self.digits), -1, index_T)
        return index_T - others_BT.cummax(-1).values


class PositionCoupling(Abacus):
    """Position coupling (Cho et al., "Position Coupling: Improving Length Generalization of
    Arithmetic Transformers Using Task Structure", 2024)::

        x_t ← x_t + w[i_t + k]    t is the i_t-th digit of its number; i_t = 0: t is no digit

    w, the random offset k and what counts as a number are those of :class:`Abacus`, and so is what
    is said there: it is told which tokens are digits, and is a ceiling. Digits of equal place share
    an id in all numbers of a row. The difference is that ids of other tokens move along: ``+`` and
    ``=`` have the one next to the least-significant digits, as in the public code.

    Deliberately different from that code: it writes operands with the most-significant digit first
    and counts their ids down, while here every number is written, and counted, from its
    least-significant digit; k has the same range in all rows, while there it is what the row's
    longest number leaves of a fixed number of ids; and EOS and padding, from which nothing is
    predicted, have no id of their own.
    """

    def shifted(self, places_BT: Tensor, offset_B1: Tensor) -> Tensor:
        """i_t + k."""
        return places_BT + offset_B1
