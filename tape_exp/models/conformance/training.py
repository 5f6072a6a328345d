"""What training does with an encoding: 16 bits, gradients, recomputation, torch.compile.

Each docstring of a situation is one line of the table in the docs.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.biases import ByKey
from tape_exp.models.conformance.encodings import as_state
from tape_exp.models.conformance.oracle import (
    Outcome,
    alone,
    gap,
    one_row_each,
    oracle,
    random_decoder,
    require,
)
from tape_exp.models.decoder import Decoder
from tape_exp.models.precision import full_precision
from tape_exp.models.scores import Scores
from tape_exp.models.sections import ARCH, LONG, LONG_ARCH, Model

# What is allowed: of a parameter's largest gradient, where a function with kinks, as CoPE's, may be
# on their other side in fp64; the mean error over the mean logit.
GRADIENT = 5e-3
BF16 = 0.05


def autocast_in_bf16(model: Model) -> Outcome:
    """Matrices multiply in bf16; states and biases are fp32, whichever backend asks for them."""
    return _in_bf16(model, torch.float32)


def weights_in_bf16(model: Model) -> Outcome:
    """Parameters are bf16 (``trainer.precision=bf16-true``); states and biases are fp32."""
    return _in_bf16(model, torch.bfloat16)


def _in_bf16(model: Model, weights: torch.dtype) -> Outcome:
    decoder = random_decoder(model, LONG_ARCH, std=0.1).to(weights).train()
    tokens, positions = one_row_each(decoder)
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        _require_wide_parts(decoder, tokens)
        logits = decoder(tokens, sampler=RowSampler(5))
    shape = tuple(logits.shape)
    as_asked = logits.dtype == torch.bfloat16 and shape == (3, LONG, ARCH.vocab)
    require(as_asked, f"logits are {logits.dtype} of the shape {shape}.")
    logits.float().square().mean().backward()
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None:
            finite = parameter.grad.isfinite().all()
            require(finite, f"the gradient of {name} is not finite.")
    with torch.no_grad():
        expected = torch.stack(alone(decoder, [*tokens], positions))
        error = float((logits - expected).abs().mean() / expected.abs().mean())
    require(error < BF16, f"logits are {error:.0%} from the oracle's.")
    return Outcome(error, BF16)


def _require_wide_parts(decoder: Decoder, tokens: Tensor) -> None:
    """Require that the states and biases of a pass are of at least fp32."""
    narrow: set[str] = set()

    def watch(block: Any, scores: Scores, state: Tensor | None) -> None:
        if state is not None and as_state(state).element_size() < 4:
            narrow.add(f"the state is {state.dtype}")
        for bias in scores.biases:
            with full_precision(scores.q.device):
                values = bias.values if isinstance(bias, ByKey) else bias.of_pairs(scores.pairs)
            if values.element_size() < 4:
                narrow.add(f"a bias is {values.dtype}")

    decoder(tokens, sampler=RowSampler(5), watch=watch)
    require(not narrow, f"{' and '.join(sorted(narrow))}; compute it in fp32.")


def gradients(model: Model) -> Outcome:
    """The gradient of every trained parameter, in training; none is zero."""
    return _gradients(random_decoder(model, LONG_ARCH, std=0.1))


def gradient_checkpointing(model: Model) -> Outcome:
    """The same where a block's activations are computed again in its backward pass."""
    decoder = random_decoder(model, LONG_ARCH, std=0.1)
    decoder.recompute = True
    return _gradients(decoder)


def compiled(model: Model) -> Outcome:
    """The same of blocks that torch.compile has traced into one graph each, with a named backend;
    tracing needs no compiler.
    """
    from torch._dynamo.exc import Unsupported  # takes a second

    torch.compiler.reset()  # else the blocks of other models count to its limit
    decoder = random_decoder(model, LONG_ARCH, std=0.1, backend="sdpa")
    try:
        decoder.compile(backend="eager", fullgraph=True)
        return _gradients(decoder)
    except Unsupported:
        decoder.compile(backend="eager")
        return replace(_gradients(decoder), remark="the graph breaks")


def _gradients(decoder: Decoder) -> Outcome:
    """Compare the gradients of a loss with those of the oracle."""
    tokens, positions = one_row_each(decoder.train())
    mix = torch.randn(LONG, ARCH.vocab, generator=torch.Generator().manual_seed(3))
    decoder(tokens, sampler=RowSampler(5)).mul(mix).sum().backward()
    exact = oracle(decoder)
    exact.zero_grad()
    exact.recompute = False
    for n, (row, places) in enumerate(zip(tokens, positions, strict=True)):
        sampler = RowSampler(5, first=n)
        logits = exact(row[None], positions_BT=places[None].double(), sampler=sampler)
        logits.mul(mix).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
    worst = 0.0
    for (name, ours), theirs in zip(decoder.named_parameters(), exact.parameters(), strict=True):
        if ours.requires_grad:
            worst = max(worst, _gradient_error(name, ours.grad, theirs.grad, largest))
    return Outcome(worst, GRADIENT)


def _gradient_error(name: str, ours: Tensor | None, theirs: Tensor | None, largest: float) -> float:
    """Return the difference of two gradients over the size of the oracle's, and require that it is
    allowed. ``largest`` is the largest gradient of any parameter.
    """
    require(
        ours is not None and theirs is not None,
        f"{name} takes no part; what only the first layer reads is a parameter embedding.",
    )
    assert ours is not None
    assert theirs is not None
    require(ours.any(), f"the gradient of {name} is 0.")
    # What softmax cancels, such as a number for all pairs, has a gradient of rounding only.
    size = max(float(theirs.abs().max()), 1e-3 * largest)
    difference = gap(ours, theirs) / size
    require(
        difference < GRADIENT,
        f"the gradient of {name} is {difference:.2g} of its size from the oracle's.",
    )
    return difference
