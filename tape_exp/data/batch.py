"""Rows of tokens, as every data set makes them and every task trains on them."""

from torch import Tensor

IGNORE = -100  # label of a position without loss

Batch = dict[str, Tensor]
"""``inputs`` (B, T) token ids and ``labels`` (B, T), next tokens or IGNORE; where labels do not
count alike, ``weights`` (B, T); where positions do not count tokens, ``positions`` (B, T).
"""


def loss_weights(batch: Batch) -> Tensor:
    """Return how much each label counts in the mean of the loss (B, T)."""
    labelled = batch["labels"] != IGNORE
    return labelled * batch["weights"] if "weights" in batch else labelled
