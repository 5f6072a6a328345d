"""Shifted sparse attention (Chen et al., "LongLoRA: Efficient Fine-tuning of Long-Context Large
Language Models", 2023).

Shape suffixes: B batch, T tokens, H heads, K heads of keys and values, D head dimension, G tokens
of a group.
"""

import torch
from torch import Tensor

from tape_exp.models.attention import attend
from tape_exp.models.block import Block
from tape_exp.models.positions.base import for_heads
from tape_exp.models.scores import Scores
from tape_exp.settings.errors import ConfigError


def sparse_in_training(
    block: Block, groups: int, scores: Scores, v: Tensor, carried: Tensor | None, backend: str
) -> tuple[Tensor, Tensor | None]:
    """Attend by :func:`shifted_sparse` while the block trains, fully at evaluation."""
    if not block.training:
        return attend(scores, v, carried, backend)
    q = scores.q.transpose(1, 2)
    k = scores.k.transpose(1, 2)
    return shifted_sparse(q, k, v, groups, backend), None


def shifted_sparse(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, groups: int, backend: str = "auto"
) -> Tensor:
    """Compute causal attention within groups of G = T / groups tokens, (B, T, H, D).

    The first half of the heads attends within [0, G), [G, 2G), …, the second half within groups
    that begin G/2 later::

        straight    0 0 0 0 1 1 1 1 2 2 2 2        the group of each of 12 tokens, G = 4
        shifted     0 0 1 1 1 1 2 2 2 2 3 3

    Deliberately different from the public code, whose shift is cyclic, so that a row's first G/2
    tokens see its last: here both ends are groups of their own.
    """
    T, H = q_BTHD.shape[1:3]
    G = T // groups
    if T % (2 * groups):
        raise ConfigError(
            f"task.train_length={T} does not divide into peft.sparse_groups={groups} groups of an "
            f"even length; task.train_length={max(T // (2 * groups), 1) * 2 * groups} does."
        )
    q_k_v = (q_BTHD, for_heads(k_BTKD, H), for_heads(v_BTKD, H))

    def within(heads: slice, first: int, last: int, size: int) -> Tensor:
        """Attend with these heads within groups of this size of the tokens from ``first`` to
        ``last``.
        """
        q, k, v = (x[:, first:last, heads].unflatten(1, (-1, size)).flatten(0, 1) for x in q_k_v)
        values, _ = attend(Scores(q.transpose(1, 2), k.transpose(1, 2)), v, backend=backend)
        return values.unflatten(0, (len(q_BTHD), -1)).flatten(1, 2)

    half = G // 2
    straight = slice(H - H // 2)
    shifted = slice(H - H // 2, H)
    stretches = [within(shifted, 0, half, half)]
    if half < T - half:
        stretches.append(within(shifted, half, T - half, G))
    stretches.append(within(shifted, T - half, T, half))
    return torch.cat([within(straight, 0, T, G), torch.cat(stretches, 1)], 2)
