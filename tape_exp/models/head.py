"""What a forward pass returns: logits, or what is computed of them without holding all at once.

Shape suffixes: B batch, T tokens, N tokens of all rows, C width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tape_exp.machine.hardware import to_device_async

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""The sum of a loss: of logits (…, V), labels (…), and the weights of tokens (…) or None."""


@dataclass(frozen=True)
class Logits:
    """Return the logits of all tokens, (B, T, V). Subclasses return something else: each says which
    tokens it reads, and what it computes of their normed residual stream.
    """

    def select(self, x_BTC: Tensor) -> Tensor:
        """Return the tokens that are read."""
        return x_BTC

    def compute(self, x_BTC: Tensor, head: nn.Linear) -> Tensor:
        """Return what the forward pass returns."""
        logits: Tensor = head(x_BTC)
        return logits


@dataclass(frozen=True)
class LastLogits(Logits):
    """Return the logits of the last token of each row, (B, 1, V)."""

    def select(self, x_BTC: Tensor) -> Tensor:
        return x_BTC[:, -1:]


@dataclass(frozen=True)
class LogitsAt(Logits):
    """Return the logits of some tokens, (N, V), whose numbers are row · T + place."""

    tokens: Tensor  # (N,)

    def select(self, x_BTC: Tensor) -> Tensor:
        return x_BTC.flatten(0, 1)[to_device_async(self.tokens, x_BTC.device)]


@dataclass(frozen=True)
class TokenNll(Logits):
    """Return the negative log-likelihood of each label, (B, T) fp32; 0 where it is negative."""

    labels: Tensor  # (B, T)

    def compute(self, x_BTC: Tensor, head: nn.Linear) -> Tensor:
        return token_nll(x_BTC, head, to_device_async(self.labels, x_BTC.device))


@dataclass(frozen=True)
class TotalLoss(Logits):
    """Return the sum of a loss over all tokens, to which those with a negative label add 0."""

    labels: Tensor  # (B, T)
    weights: Tensor | None  # of tokens, (B, T)
    loss: Loss

    def compute(self, x_BTC: Tensor, head: nn.Linear) -> Tensor:
        return total_loss(x_BTC, head, self.labels, self.weights, self.loss)


ALL_LOGITS = Logits()


def token_nll(x_BTC: Tensor, head: nn.Module, labels_BT: Tensor) -> Tensor:
    """Return -log softmax(head(x)) at each label: (B, T) fp32, 0 where the label is negative."""
    # All logits of an evaluation batch can take gigabytes. Pieces fit into a CPU's cache, or leave
    # a GPU its memory.
    at_once = 512 if x_BTC.device.type == "cpu" else 8192
    labelled_BT = labels_BT >= 0
    x_NC = x_BTC[labelled_BT]
    labels_N = labels_BT[labelled_BT]
    nll = []
    for x, labels in zip(x_NC.split(at_once), labels_N.split(at_once), strict=True):
        logits = head(x).float()
        chosen = logits.gather(-1, labels[:, None])[:, 0]
        nll.append(logits.logsumexp(-1) - chosen)
    nll_BT = torch.zeros(labels_BT.shape, device=x_BTC.device)
    return nll_BT.masked_scatter(labelled_BT, torch.cat(nll)) if nll else nll_BT


def most_logits(device: torch.device) -> int:
    """Return how many logits are held at once in training."""
    return 1 << (24 if device.type == "cpu" else 28)


def total_loss(
    x_BTC: Tensor, head: nn.Linear, labels_BT: Tensor, weights_BT: Tensor | None, loss: Loss
) -> Tensor:
    """Return loss(head(x), labels, weights), in pieces where the logits of all tokens would be
    many; then tokens whose labels are negative have none.
    """
    vocab = head.weight.shape[0]
    most = most_logits(x_BTC.device)
    if labels_BT.numel() * vocab <= most:
        return loss(head(x_BTC), labels_BT, weights_BT)
    labelled_BT = labels_BT >= 0
    x_NC = x_BTC[labelled_BT]
    labels_N = labels_BT[labelled_BT]
    weights_N = None if weights_BT is None else weights_BT[labelled_BT]
    parameters = [p for p in head.parameters() if p.requires_grad]
    at_once = max(most // vocab, 1)
    return InPieces.apply(head, loss, at_once, labels_N, weights_N, x_NC, *parameters)


class InPieces(torch.autograd.Function):
    """A sum of losses over tokens. Its gradients are made in the forward pass, while the logits of
    a piece are there: the gradient of a sum is one number, which multiplies them in the backward
    pass (as in Liger Kernel, Hsu et al., 2024).
    """

    @staticmethod
    def forward(
        ctx: Any,
        head: nn.Module,
        loss: Loss,
        at_once: int,
        labels_N: Tensor,
        weights_N: Tensor | None,
        x_NC: Tensor,
        *parameters: nn.Parameter,
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        total = x_NC.new_zeros((), dtype=torch.float32)
        x_grad_NC = torch.empty_like(x_NC) if learns else x_NC
        grads = [torch.zeros_like(p) for p in parameters]
        for first in range(0, len(x_NC), at_once):
            piece = slice(first, first + at_once)
            weights = None if weights_N is None else weights_N[piece]
            with torch.set_grad_enabled(learns):
                x = x_NC[piece].detach().requires_grad_(learns)
                sum_of_piece = loss(head(x), labels_N[piece], weights)
            total += sum_of_piece.detach()
            if learns:
                of_piece = torch.autograd.grad(sum_of_piece, [x, *parameters])
                x_grad_NC[piece] = of_piece[0]
                for grad, more in zip(grads, of_piece[1:], strict=True):
                    grad += more
        ctx.save_for_backward(x_grad_NC, *grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, None, *(grad * gradient for grad in ctx.saved_tensors)
