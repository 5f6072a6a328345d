"""Encodings whose bias the content decides on, against loops that follow their papers' equations
token by token.
"""

import dataclasses
import itertools
import math

import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.positions import path
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch
from tests.conftest import DIGITS, bias_of, make_decoder, make_position

SIZES = {"layers": 2, "width": 32, "heads": 4, "ffn": 48, "vocab": 14, "digits": DIGITS}
GROUPED = Arch(**SIZES, max_length=48, train_length=24, kv_heads=2)
TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


CONTEXTUAL = ("cope", "dape", "path", "path_fox", "wall")


def inputs(arch: Arch, N: int = 9, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(2, N, arch.heads, arch.head_dim, generator=generator, dtype=dtype)
    k = torch.randn(2, N, arch.key_heads, arch.head_dim, generator=generator, dtype=dtype)
    return q, k, torch.randn(2, N, arch.width, generator=generator, dtype=dtype)


def encoding_and_bias(name: str, arch: Arch, *overrides: str):
    """A random layer in fp64, q, k, x and the bias of all pairs; Wall's with gates half open."""
    overrides = ("model.start=0", *overrides) if name == "wall" else overrides
    encoding = make_position(name, arch, *overrides)
    encoding.init_weights(torch.Generator().manual_seed(0))
    randomise(encoding)
    encoding.double()
    q, k, x = inputs(arch)
    return encoding, q, k, x, bias_of(encoding, q, k, x)


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_path_is_a_product_of_householder_matrices_over_the_tokens_between(kv_heads, arch):
    arch = dataclasses.replace(arch, kv_heads=kv_heads)
    encoding, q, k, x, bias = encoding_and_bias("path", arch)
    N, d, served = q.shape[1], arch.head_dim, arch.heads // arch.key_heads
    for b in range(2):
        for h in range(arch.heads):
            g = h // served
            raw = (x[b] @ encoding.down.T @ encoding.up.T)[:, g * d : (g + 1) * d]
            taps = encoding.taps[:, g * d : (g + 1) * d]
            matrices = []
            for t in range(N):
                w = sum(taps[back] * raw[t - back] for back in range(min(3, t + 1)))
                w = w / w.norm()
                beta = 2 * torch.sigmoid(x[b, t] @ encoding.b[g] + encoding.c[g])
                matrices.append(torch.eye(d, dtype=torch.float64) - beta * torch.outer(w, w))
            for i in range(N):
                for j in range(i + 1):
                    product = torch.eye(d, dtype=torch.float64)
                    for t in range(j + 1, i + 1):
                        product = product @ matrices[t]
                    expected = k[b, j, g] @ product @ q[b, i, h] / math.sqrt(d)
                    got = q[b, i, h] @ k[b, j, g] / math.sqrt(d) + bias[b, h, i, j]
                    assert abs(got - expected) < 1e-10


@pytest.mark.parametrize("T", [9, 65, 130, 192])
def test_path_in_blocks_is_path_at_once(T, arch, monkeypatch):
    """The bias and all gradients, in fp64, and in fp32 within its own error."""
    mix = torch.randn(2, 4, T, T, generator=torch.Generator().manual_seed(0))

    def results(dtype: torch.dtype, block: int) -> list[torch.Tensor]:
        monkeypatch.setattr(path, "BLOCK", block)
        encoding = make_position("path", arch)
        encoding.init_weights(torch.Generator().manual_seed(0))
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs(arch, T)]
        bias = bias_of(encoding.to(dtype), *given).tril()
        return [bias, *torch.autograd.grad((bias * mix).sum(), [*given, *encoding.parameters()])]

    whole = results(torch.float64, T)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        for a, b in zip(whole, results(dtype, 32), strict=True):
            assert (a - b).abs().max() < tolerance * a.abs().max()


def test_path_keeps_its_precision_over_many_reflections(arch):
    """β = 2: every H is a mirror, and fp32 stays near fp64 after 256 of them."""
    encoding = make_position("path", arch)
    encoding.init_weights(torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoding.c.fill_(100)
    q, k, x = inputs(arch, 256, torch.float32)
    single = bias_of(encoding, q, k, x)
    encoding.double()
    q, k, x = (tensor.double() for tensor in (q, k, x))
    double = bias_of(encoding, q, k, x)
    assert (single - double).abs().tril().max() < 1e-3


@pytest.mark.parametrize(("kv_heads", "vectors"), [(None, 64), (2, 3)])
def test_cope_counts_by_gates_and_interpolates(kv_heads, vectors, arch):
    """With three vectors every long count ends at the last."""
    arch = dataclasses.replace(arch, kv_heads=kv_heads)
    encoding, q, k, _, bias = encoding_and_bias("cope", arch, f"model.vectors={vectors}")
    assert len(encoding.e) == vectors
    clamped = 0
    for b, h, i in itertools.product(range(2), range(arch.heads), range(q.shape[1])):
        count = 0.0
        for j in range(i, -1, -1):
            key = k[b, j, h // (arch.heads // arch.key_heads)]
            count += float(torch.sigmoid(q[b, i, h] @ key / math.sqrt(arch.head_dim)))
            clamped += count > vectors - 1
            place = min(count, vectors - 1)
            low, high = encoding.e[math.floor(place)], encoding.e[math.ceil(place)]
            part = place - math.floor(place)
            expected = q[b, i, h] @ ((1 - part) * low + part * high)
            assert abs(bias[b, h, i, j] - expected) < 1e-10
    assert (clamped > 0) == (vectors == 3)


def test_cope_begins_as_nope(arch):
    assert torch.equal(make_decoder("cope", arch)(TOKENS), make_decoder("nope", arch)(TOKENS))


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_dape_adapts_kerples_bias_pair_by_pair(kv_heads, arch):
    arch = dataclasses.replace(arch, kv_heads=kv_heads)
    encoding, q, k, _, bias = encoding_and_bias("dape", arch)
    r1, r2 = (torch.nn.functional.softplus(r) for r in (encoding.raw_r1, encoding.raw_r2))
    for b, i in itertools.product(range(2), range(q.shape[1])):
        for j in range(i + 1):
            keys = [k[b, j, h // (arch.heads // arch.key_heads)] for h in range(arch.heads)]
            logits = torch.stack(
                [q[b, i, h] @ key / math.sqrt(arch.head_dim) for h, key in enumerate(keys)]
            )
            static = -r1 * torch.log(1 + r2 * (i - j))
            inner = encoding.inner.weight @ torch.cat([logits, static]) + encoding.inner.bias
            inner = torch.where(inner > 0, inner, 0.01 * inner)
            expected = static + encoding.outer.weight @ inner + encoding.outer.bias
            assert (bias[b, :, i, j] - expected).abs().max() < 1e-10


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_every_gradient_is_that_of_finite_differences(name, arch):
    small = dataclasses.replace(arch, width=8, heads=2)
    encoding, q, k, x, _ = encoding_and_bias(name, small)
    q, k, x = (tensor[:1, :5].requires_grad_() for tensor in (q, k, x))
    names, parameters = zip(*encoding.named_parameters(), strict=True)

    def seen(q, k, x, *parameters):
        given = {f"encoding.{n}": p for n, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(SeenBias(encoding), given, (q, k, x))

    assert torch.autograd.gradcheck(seen, (q, k, x, *parameters), atol=1e-6)


class SeenBias(torch.nn.Module):
    """What queries may see of a bias, less what it adds at their own keys, as a module."""

    def __init__(self, encoding: PositionEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q, k, x):
        bias = bias_of(self.encoding, q, k, x)
        return (bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]).tril()
