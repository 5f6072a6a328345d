"""Abacus embeddings: the place of each digit in its number, added to the input."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError, between
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
    of them: it has then met each of the 100 offsets seldom.) It is NoPE otherwise; a class that
    inherits first from this one and then from a relative encoding has both, with the keys of both:
    the paper's Abacus + FIRE is ``class AbacusFIRE(Abacus, FIRE)``. Deliberately different from the
    public code: k is drawn for each row, not for each batch.

    Args:
        max_offset: the largest k; 99 in the public code.
        settings: of the other encoding.
    """

    knows_digits = True
    embedding_parameters = ("table",)
    digits: Tensor  # (10,) int64, ids of the digits

    def __init__(self, arch: Arch, max_offset: int = 99, **settings: Any) -> None:
        between("model", 0, 2**20, max_offset=max_offset)
        if not arch.digits:
            raise ConfigError(
                f"{type(self).__name__} must be told which tokens are digits, and this task names "
                "none; task=arithmetic does, without index hints, and model=learned needs none."
            )
        super().__init__(arch, **settings)
        self.max_offset = max_offset
        self.register_buffer("digits", torch.tensor(arch.digits), persistent=False)
        self.table = nn.Parameter(torch.zeros(1 + arch.max_length + max_offset, arch.width))

    def init_weights(self, generator: torch.Generator) -> None:
        """N(0, 0.02), whatever the other encoding has for its own."""
        super().init_weights(generator)
        if hasattr(self, "table"):
            nn.init.normal_(self.table, std=0.02, generator=generator)

    def position_ids(self, tokens_BS: Tensor, sampler: RowSampler | None = None) -> Tensor:
        """i_t + k of digits, 0 of other tokens: (B, S)."""
        places_BS = self.places(tokens_BS)
        return places_BS + self.offsets(places_BS, sampler) * (places_BS > 0)

    def embed(self, ids_BT: Tensor) -> Tensor:
        """w of every id, (B, T, C)."""
        return F.embedding(ids_BT.long(), self.table)

    def places(self, tokens_BS: Tensor) -> Tensor:
        """i_t, (B, S) int64: tokens since the last that is no digit; 0 for what is no digit."""
        index_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        others_BS = torch.where(torch.isin(tokens_BS, self.digits), -1, index_S)
        return index_S - others_BS.cummax(-1).values

    def offsets(self, places_BS: Tensor, sampler: RowSampler | None) -> Tensor:
        """k of every row, (B, 1) int64."""
        rows = len(places_BS)
        if not self.training or sampler is None:
            return places_BS.new_zeros(rows, 1)
        return sampler.integers(rows, 1, places_BS.device) * (self.max_offset + 1) >> 32
