"""Encodings that forget, against their equations token by token and against each other."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tape_exp.models.conformance import randomise
from tape_exp.models.positions import wall
from tape_exp.models.trace import trace
from tests.conftest import bias_of, make_decoder, make_position

TOKENS = torch.randint(0, 14, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "without"), [("fox", "nope"), ("path_fox", "path")])
def test_a_probability_is_multiplied_by_the_gates_of_the_tokens_between(name, without, arch):
    """In the first layer, whose input is the same, in fp64."""
    model, plain = (make_decoder(other, arch).double() for other in (name, without))
    randomise(model)
    plain.load_state_dict(model.state_dict(), strict=False)
    position, block = model.blocks()[0].position, model.blocks()[0]
    x = block.attention_norm(model.embedding(TOKENS))
    expected = trace(plain, TOKENS)[1].attention.clone()
    for b, h, i in itertools.product(range(2), range(arch.heads), range(TOKENS.shape[1])):
        faded = 1.0
        for j in range(i, -1, -1):
            expected[b, h, i, j] *= faded
            gate = x[b, j] @ position.w_forget[h] + position.b_forget[h]
            faded = faded * float(torch.sigmoid(gate.detach()))
    expected /= expected.sum(-1, keepdim=True)
    assert (trace(model, TOKENS)[1].attention - expected).abs().max() < 1e-12


def wall_logits(encoding, q, k, x):
    """Of the encoding, and by the equation, in the dtype of x and in fp64."""
    d, bias = q.shape[-1], bias_of(encoding, q, k, x)
    logits = (torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(d) + bias).tril()
    gates = F.logsigmoid(x.double() @ encoding.w.double().T + encoding.b.double())
    sums = gates.unflatten(-1, (-1, d)).cumsum(1)
    faded = (sums[:, :, None] - sums[:, None]).clamp(max=0).exp()
    expected = torch.einsum("bthd,bshd,btshd->bhts", q.double(), k.double(), faded)
    return logits, (expected / math.sqrt(d)).tril()


@pytest.mark.parametrize(("start", "block"), [(2.0, 4), (0.0, 16), (-60.0, 4)])
def test_wall_multiplies_every_channel_by_its_gates(start, block, arch, monkeypatch):
    """Also where P falls by 600 within a row, and with gradients of every argument."""
    monkeypatch.setattr(wall, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 11, 4, 8, generator=generator).requires_grad_() for _ in range(2))
    x = torch.randn(2, 11, arch.width, generator=generator).requires_grad_()
    encoding = make_position("wall", arch, f"model.start={start}")
    encoding.init_weights(generator)
    randomise(encoding)
    learns = [q, k, x, encoding.w, encoding.b]
    logits, expected = wall_logits(encoding, q, k, x)
    mix = torch.randn(logits.shape, generator=generator)
    for got, wanted in zip(
        [logits, *torch.autograd.grad((logits * mix).sum(), learns)],
        [expected, *torch.autograd.grad((expected * mix).sum(), learns)],
        strict=True,
    ):
        assert (got - wanted).abs().max() < 1e-5 * wanted.abs().max() + 1e-6
