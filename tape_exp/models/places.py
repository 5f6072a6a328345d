"""Where the tokens of a forward pass are: what every method of an encoding is given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler


@dataclass(frozen=True)
class Places:
    """The tokens of a forward pass and their positions.

    T tokens are computed. They are the last of S keys, of which earlier ones come from a cache;
    without a cache S is T. B rows; positions have one row where all agree.

    Args:
        tokens: ids of the T tokens, (B, T), -1 where they are padding.
        key_tokens: ids of the S keys, (B, S).
        key_positions: positions of the S keys, (1 or B, S), fp32 or fp64. Padding at the beginning
            of a row has the position of its first token, padding at the end that of its last.
        consecutive: whether positions count the tokens of a row, so that two tokens are as far
            apart as their places.
        padding: how many tokens of padding each row begins with, (B,); None: none does.
        last: the last position that each row may come to have, (1 or B, 1), where a cache leaves
            room for more tokens.
        sampler: for encodings that draw random numbers: the same for a row at every step of
            decoding.
    """

    tokens: Tensor
    key_tokens: Tensor
    key_positions: Tensor
    consecutive: bool = True
    padding: Tensor | None = None
    last: Tensor | None = None
    sampler: RowSampler | None = None

    @classmethod
    def at(cls, positions: Tensor, consecutive: bool = False) -> "Places":
        """Return whole rows of any tokens at these positions, (1 or B, T)."""
        tokens = torch.zeros_like(positions, dtype=torch.long)
        return cls(tokens, tokens, positions, consecutive)

    @property
    def positions(self) -> Tensor:
        """Those of the T tokens, (1 or B, T)."""
        return self.key_positions[:, -self.tokens.shape[1] :]

    @property
    def lengths(self) -> Tensor:
        """How long each row is or may become, (1 or B,): its highest position plus one."""
        positions = self.key_positions if self.last is None else self.last
        return positions.amax(1) + 1
