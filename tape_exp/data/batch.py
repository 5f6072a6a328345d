"""Rows of tokens, as every data set makes them and every task trains on them."""

from torch import Tensor

IGNORE = -100  # label of a position without loss

Batch = dict[str, Tensor]
"""``inputs`` (B, T) token ids and ``labels`` (B, T), next tokens or IGNORE."""
