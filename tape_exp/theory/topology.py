"""Who sees whom: the mask M of a sequence, for attention and for the triangular inverse of theorem
1.

Shape suffixes: B batch, T queries, S keys, H heads, D query width, C width of what is averaged, R
key width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tape_exp.models.attention import attend
from tape_exp.models.scores import Scores

Attended = tuple[Tensor, Tensor | None]


class Topology(Protocol):
    """The two ways in which tokens reach each other."""

    def attend(
        self, q_BTHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, carried: Tensor | None
    ) -> Attended:
        """Average by softmax(q kᵀ / √D) under M, as :func:`tape_exp.models.attention.attend`."""

    def invert(self, keys_BTR: Tensor, values_BTC: Tensor) -> Tensor:
        """Return rows Σ_j [(I + M ⊙ K Kᵀ)⁻¹]_ij v_j, (B, T, C), of theorem 1's second layer."""


@dataclass(frozen=True)
class Causal:
    """M lower triangular, by the project's attention and a blocked substitution: no T × T matrix is
    kept.

    Args:
        strict: whether the diagonal is left out of M in :meth:`invert`. The proof of the paper's
            lemma on WY representations sums over j < i, so it must be; its statement prints j <= i.
        block: rows that are solved at once.
    """

    strict: bool = True
    block: int = 64

    def attend(
        self, q_BTHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, carried: Tensor | None
    ) -> Attended:
        """Compute causal attention."""
        scores = Scores(q_BTHD.transpose(1, 2), k_BSHD.transpose(1, 2))
        return attend(scores, v_BSHD, carried)

    def invert(self, keys_BTR: Tensor, values_BTC: Tensor) -> Tensor:
        """Return w_i = v_i - Σ_{j<i} (k_i·k_j) w_j; earlier blocks are one R × C matrix, Σ_j k_j
        w_jᵀ.
        """
        earlier_BRC = keys_BTR.new_zeros(len(keys_BTR), keys_BTR.shape[-1], values_BTC.shape[-1])
        solved = []
        for k, v in zip(
            keys_BTR.split(self.block, 1), values_BTC.split(self.block, 1), strict=True
        ):
            system = system_of(
                k, torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).tril(), self.strict
            )
            w = torch.linalg.solve_triangular(system, v - k @ earlier_BRC, upper=False)
            earlier_BRC = earlier_BRC + k.mT @ w
            solved.append(w)
        return torch.cat(solved, 1)


@dataclass(frozen=True)
class Masked:
    """Any M, written out with T × T matrices: the oracle of :class:`Causal`, and what permutations
    turn it into.

    Args:
        mask: (T, T), true where a query sees a key.
        strict: as in :class:`Causal`.
    """

    mask: Tensor
    strict: bool = True

    def attend(
        self, q_BTHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, carried: Tensor | None
    ) -> Attended:
        """Compute an explicit softmax over the keys that M shows."""
        logits = torch.einsum("bthd,bshd->bhts", q_BTHD, k_BSHD) / q_BTHD.shape[-1] ** 0.5
        weights = logits.masked_fill(~self.mask, float("-inf")).softmax(-1)
        return tuple(
            None if x is None else torch.einsum("bhts,bshc->bthc", weights, x)
            for x in (v_BSHD, carried)
        )  # type: ignore[return-value]

    def invert(self, keys_BTR: Tensor, values_BTC: Tensor) -> Tensor:
        """Solve one dense system."""
        return torch.linalg.solve(system_of(keys_BTR, self.mask, self.strict), values_BTC)


def system_of(keys_BTR: Tensor, mask_TT: Tensor, strict: bool) -> Tensor:
    """Return I + M ⊙ K Kᵀ: (B, T, T)."""
    identity = torch.eye(keys_BTR.shape[1], dtype=keys_BTR.dtype)
    seen = mask_TT & (identity == 0) if strict else mask_TT
    return identity + seen * (keys_BTR @ keys_BTR.mT)
