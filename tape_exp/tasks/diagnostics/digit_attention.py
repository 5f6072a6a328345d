"""Where attention looks while a model adds: at the digits that are being added, or elsewhere."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block
from tape_exp.models.head import LastLogits
from tape_exp.models.scores import Scores
from tape_exp.tasks.base import Model

MEASURES = ("aligned", "neighbours", "keys")


@torch.no_grad()
def digit_attention(model: Model, tokens: Tensor, digits: int) -> dict[int, Tensor]:
    """Return what :func:`gaze` says of every head, by layer, from 1: (H, 3), of sums of two
    operands of so many ``digits`` each.
    """
    by_layer = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        by_layer[block.layer + 1] = gaze(scores.probabilities(), digits).cpu()

    model(tokens, watch=watch, output=LastLogits(), sampler=RowSampler(0, "attention maps"))
    return by_layer


def gaze(attention_BHTT: Tensor, digits: int) -> Tensor:
    """Measure where the queries of an answer's digits look, (H, 3), from probabilities of
    attention.

    In ``A+B=C`` with operands of n digits, the least significant first, digit t of the sum is
    predicted at the token before it, and made of digit t of A and of B. Over rows and t < n, the
    mean of the mass on these two digits (``aligned``), of that on the digits beside them within
    their operands (``neighbours``), and of the number of keys that equal shares of the same
    entropy would have (``keys``: e to the entropy).
    """
    n = digits
    keys = torch.arange(attention_BHTT.shape[-1], device=attention_BHTT.device)
    rows = attention_BHTT[:, :, 2 * n + 1 : 3 * n + 1]
    t = torch.arange(n, device=keys.device)[:, None]
    # How far a key is from the digit of its own operand that is being added.
    first = keys - t
    second = keys - (n + 1) - t
    in_first = keys < n
    in_second = (keys > n) & (keys <= 2 * n)
    masses = []
    for apart in (0, 1):
        looked_at = in_first & (first.abs() == apart) | in_second & (second.abs() == apart)
        masses.append((rows * looked_at).sum(-1))
    spread = torch.special.entr(rows).sum(-1).exp()
    return torch.stack([*masses, spread], -1).mean((0, 2))


def address_metrics(by_length: Mapping[str, Mapping[int, Tensor]]) -> dict[str, float]:
    """Name what :func:`digit_attention` gave for several lengths, that of training first.

    ``address/<length>/<measure>@<layer>`` is of the head of the layer that has the most mass on the
    aligned digits at the first length, and without ``@<layer>`` of the one that has the most of all
    layers: where the same head looks at another length. Masses are in percent. With layers 1 and 2,
    whose best heads have 30 and 80 % at the first length, ``address/id/aligned@1`` is 30,
    ``address/id/aligned@2`` 80, and so is ``address/id/aligned``.
    """
    at_first = next(iter(by_length.values()))
    heads = {layer: int(gazes[:, 0].argmax()) for layer, gazes in at_first.items()}
    best = max(heads, key=lambda layer: float(at_first[layer][heads[layer], 0]))
    metrics = {}
    for length, by_layer in by_length.items():
        for layer, head in heads.items():
            values = by_layer[layer][head] * torch.tensor([100.0, 100.0, 1.0])
            for measure, value in zip(MEASURES, values.tolist(), strict=True):
                metrics[f"address/{length}/{measure}@{layer}"] = value
                if layer == best:
                    metrics[f"address/{length}/{measure}"] = value
    return metrics


def address_names(lengths: list[str], layers: int) -> list[str]:
    """Name the numbers of :func:`address_metrics`."""
    names = []
    for length, measure in itertools.product(lengths, MEASURES):
        name = f"address/{length}/{measure}"
        names += [name, *(f"{name}@{layer}" for layer in range(1, layers + 1))]
    return names
