"""Position coupling: digits of equal place share a position."""

from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.abacus import Abacus


class PositionCoupling(Abacus):
    """Position coupling (Cho et al., "Position Coupling: Improving Length Generalization of
    Arithmetic Transformers Using Task Structure", 2024)::

        x_t ← x_t + w[i_t + k]    t is the i_t-th digit of its number; i_t = 0: t is no digit

    w, the random offset k and what counts as a number are those of
    :class:`~tape_exp.models.positions.abacus.Abacus`, and so is what is said there: it is told
    which tokens are digits, and is a ceiling. Digits of equal place share an id in all numbers of a
    row. The difference is that ids of other tokens move along: ``+`` and ``=`` have the one next to
    the least-significant digits, as in the public code.

    Deliberately different from that code: it writes operands with the most-significant digit first
    and counts their ids down, while here every number is written, and counted, from its
    least-significant digit; k has the same range in all rows, while there it is what the row's
    longest number leaves of a fixed number of ids; and EOS and padding, from which nothing is
    predicted, have no id of their own.

    Args:
        max_offset: the largest k.
    """

    def position_ids(self, tokens_BS: Tensor, sampler: RowSampler | None = None) -> Tensor:
        """i_t + k, (B, S)."""
        places_BS = self.places(tokens_BS)
        return places_BS + self.offsets(places_BS, sampler)
