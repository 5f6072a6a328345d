"""Encodings whose bias the content decides on, against loops that follow their papers' equations
token by token.
"""

import dataclasses
import itertools
import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from benchmarks.speed import kept_bytes
from tape_exp.models.attention import choices, forget
from tape_exp.models.conformance import randomise
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.positions import path
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.trace import trace
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tests.conftest import DIGITS, MODELS, make_decoder, make_position

SIZES = {"layers": 2, "width": 32, "heads": 4, "ffn": 48, "vocab": 14, "digits": DIGITS}
GROUPED = Arch(**SIZES, max_length=48, train_length=24, kv_heads=2)
TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


@cache
def of_class(name: str) -> type:
    return type(make_position(name, GROUPED))


CONTEXTUAL = [
    m for m in MODELS if of_class(m).contextual_bias is not PositionEncoding.contextual_bias
]
LEARNED_FEATURES = [m for m in MODELS if of_class(m).features is not PositionEncoding.features]


def test_there_are_some():
    assert {"cope", "dape", "path", "wall"} <= set(CONTEXTUAL)


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
    positions = torch.arange(q.shape[1], dtype=torch.float64)[None]
    return (
        encoding,
        q,
        k,
        x,
        encoding.contextual_bias(
            q, k, encoding.features(x, None, {}), encoding.bias(positions, positions)
        ),
    )


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


@pytest.mark.parametrize(("S", "T"), [(65, 65), (130, 130), (200, 3), (200, 136), (192, 64)])
def test_path_in_blocks_and_in_rows_is_path_at_once(S, T, arch, monkeypatch):
    """Logits and all gradients, in fp64, and in fp32 within its own error; of the last T tokens
    also where the first ones have changed their keys. Rows are taken 32 at a time.
    """
    generator = torch.Generator().manual_seed(0)

    def results(dtype: torch.dtype, block: int, in_rows: bool = False) -> list[torch.Tensor]:
        """T tokens at once after the others at once."""
        monkeypatch.setattr(path, "BLOCK", block)
        encoding = make_position("path", arch).to(dtype)
        given = [x.to(dtype).requires_grad_() for x in inputs]
        q, k, w, beta = given
        w = torch.nn.functional.normalize(w, dim=-1)
        first, last = ({"w": w[:, part], "beta": beta[:, part]} for part in parts(T))
        k = torch.cat([encoding.later_keys(k[:, : S - T], first), k[:, S - T :]], 1)
        if in_rows:
            rows = encoding.contextual_rows(q[:, S - T :], k, last)
            ends = [(first, min(first + 32, T)) for first in range(0, T, 32)]
            made = [rows.compute(*end, *rows.tensors) for end in ends]
            bias = torch.cat([F.pad(x, (0, S - x.shape[-1])) for x in made], 2)
        else:
            bias = encoding.contextual_bias(q[:, S - T :], k, last, None)
        logits = torch.einsum("bthd,bshd->bhts", q[:, S - T :], k) / math.sqrt(D) + bias
        seen = (logits * torch.ones(T, S, dtype=torch.bool).tril(S - T))[:, :, -shown:]
        return [seen, *torch.autograd.grad((seen * mix).sum(), given)]

    def parts(T: int) -> tuple[slice, slice]:
        return slice(0, S - T), slice(S - T, S)

    monkeypatch.setattr(path, "ROWS", 32)
    H, D, shown = arch.heads, arch.head_dim, T
    inputs = [torch.randn(2, S, H, D, generator=generator) for _ in range(3)]
    inputs.append(2 * torch.rand(2, S, H, generator=generator))
    mix = torch.randn(2, H, T, S, generator=generator)
    whole = results(torch.float64, S)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for in_rows in (False, True):
            for a, b in zip(whole, results(dtype, 64, in_rows), strict=True):
                assert (a - b).abs().max() < tolerance * a.abs().max()


@pytest.mark.parametrize("name", ["path", "path_fox"])
@pytest.mark.parametrize("window", [(), ("+model.window=7", "+model.sinks=2")], ids=str)
def test_a_model_in_rows_is_the_model_at_once(name, window, monkeypatch):
    """Logits and all gradients, and what follows prompts, padded ones too, with grouped queries."""
    model = make_decoder(name, GROUPED, *window)
    randomise(model)
    model.double()
    taken = []

    def results(long: int) -> list[torch.Tensor]:
        monkeypatch.setattr(path, "LONG", long)
        forget()
        logits = model(TOKENS)
        taken.append("block of rows" in str(choices()))
        learns = [p for p in model.parameters() if p.requires_grad]
        return [logits, *torch.autograd.grad(logits.square().mean(), learns)]

    monkeypatch.setattr(path, "ROWS", 8)
    for a, b in zip(results(24), results(8), strict=True):
        assert (a - b).abs().max() < 1e-12 * a.abs().max()
    assert taken == [False, True]
    prompts = [TOKENS[0, :3], TOKENS[1, :20]]
    written = generate(model, prompts, 6)
    monkeypatch.setattr(path, "LONG", 24)
    assert written == generate(model, prompts, 6)


@pytest.mark.parametrize("name", ["path", "path_fox"])
def test_what_is_kept_of_long_rows_grows_with_their_length(name, monkeypatch):
    """To the byte: a row of three times the length keeps as much more as one of twice."""
    monkeypatch.setattr(path, "LONG", 8)
    monkeypatch.setattr(path, "ROWS", 8)
    model = make_decoder(name, GROUPED)
    kept = [
        kept_bytes(model, lambda T=T: model(TOKENS.repeat(1, 2)[:, :T]).sum()) for T in (16, 32, 48)
    ]
    assert kept[2] - kept[1] == kept[1] - kept[0]


def test_a_model_in_rows_is_one_graph(monkeypatch):
    """The backward pass too."""
    monkeypatch.setattr(path, "LONG", 8)
    monkeypatch.setattr(path, "ROWS", 8)
    model = make_decoder("path", dataclasses.replace(GROUPED, layers=1))
    expected = model(TOKENS[:, :16])
    torch._dynamo.reset()
    model.compile(fullgraph=True, backend="eager")
    logits = model(TOKENS[:, :16])
    logits.square().mean().backward()
    assert torch.allclose(logits, expected, atol=1e-5)


def test_under_autocast_rows_stay_fp32(arch):
    encoding, *given = encoding_and_bias("path", arch)[:4]
    encoding.float()
    q, k, x = (tensor.bfloat16() for tensor in given)
    features = encoding.features(x.float(), None, {})
    with torch.autocast("cpu", torch.bfloat16):
        rows = encoding.contextual_rows(q, k, features)
        bias = rows.compute(0, 9, *rows.tensors)
    expected = encoding.contextual_bias(q, k, features, None)
    assert torch.allclose(bias.tril(), expected.tril(), atol=1e-6)


def test_path_without_reflection_is_nope(arch):
    path, nope = make_decoder("path", arch), make_decoder("nope", arch)
    with torch.no_grad():
        for layer in path.layers:
            layer.position.b.zero_()
            layer.position.c.fill_(-100)
        assert (path(TOKENS) - nope(TOKENS)).abs().max() < 1e-6


def test_path_keeps_its_precision_over_many_reflections(arch):
    """β = 2: every H is a mirror, and fp32 stays near fp64 after 256 of them."""
    encoding = make_position("path", arch)
    encoding.init_weights(torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoding.c.fill_(100)
    q, k, x = inputs(arch, 256, torch.float32)
    single = encoding.contextual_bias(q, k, encoding.features(x, None, {}), None)
    encoding.double()
    q, k, x = (tensor.double() for tensor in (q, k, x))
    double = encoding.contextual_bias(q, k, encoding.features(x, None, {}), None)
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


def test_dape_without_its_network_is_kerple(arch):
    dape, kerple = make_decoder("dape", arch), make_decoder("kerple_log", arch)
    with torch.no_grad():
        for layer in dape.layers:
            layer.position.outer.weight.zero_()
            layer.position.outer.bias.zero_()
        assert (dape(TOKENS) - kerple(TOKENS)).abs().max() < 1e-6


def test_wrong_options_name_the_key(arch):
    with pytest.raises(ConfigError, match=r"model\.hidden=0 must be at least 1; 32"):
        make_position("dape", arch, "model.hidden=0")
    with pytest.raises(ConfigError, match=r"model\.vectors=1 must be at least 2"):
        make_position("cope", arch, "model.vectors=1")
    with pytest.raises(ConfigError, match=r"model\.rank=0 must be at least 1; 32"):
        make_position("path", arch, "model.rank=0")


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_every_gradient_is_that_of_finite_differences(name, arch):
    small = dataclasses.replace(arch, width=8, heads=2)
    encoding, q, k, x, _ = encoding_and_bias(name, small)
    q, k, x = (tensor[:1, :5].requires_grad_() for tensor in (q, k, x))
    positions = torch.arange(5, dtype=torch.float64)[None]
    names, parameters = zip(*encoding.named_parameters(), strict=True)

    def seen(q, k, x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(
            Bias(encoding, positions), {f"encoding.{n}": p for n, p in given.items()}, (q, k, x)
        )

    assert torch.autograd.gradcheck(seen, (q, k, x, *parameters), atol=1e-6)


class Bias(torch.nn.Module):
    """What queries may see of a bias, as a module."""

    def __init__(self, encoding: PositionEncoding, positions: torch.Tensor) -> None:
        super().__init__()
        self.encoding, self.positions = encoding, positions

    def forward(self, q, k, x):
        bias = self.encoding.bias(self.positions, self.positions)
        return self.encoding.contextual_bias(q, k, self.encoding.features(x, None, {}), bias).tril()


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_later_queries_alone_have_the_bias_that_they_have_among_all(name, arch):
    encoding, q, k, x, bias = encoding_and_bias(name, arch)
    positions = torch.arange(q.shape[1], dtype=torch.float64)[None]
    past = {}
    keys = torch.cat(
        [encoding.later_keys(k[:, :6], encoding.features(x[:, :6], None, past)), k[:, 6:]], 1
    )
    given = encoding.bias(positions[:, 6:], positions)
    later = encoding.contextual_bias(q[:, 6:], keys, encoding.features(x[:, 6:], None, past), given)
    whole, parts = (
        torch.einsum("bthd,bshd->bhts", q[:, 6:], other) / math.sqrt(arch.head_dim)
        for other in (k, keys)
    )
    assert (parts + later - whole - bias[:, :, 6:]).tril(6).abs().max() < 1e-12


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_the_bias_depends_on_the_content(name, arch):
    bias = encoding_and_bias(name, arch)[-1]
    assert bias.shape == (2, 4, 9, 9)
    assert (bias[0] - bias[1]).tril().abs().max() > 0.1


@pytest.mark.parametrize("name", sorted({*CONTEXTUAL, *LEARNED_FEATURES}))
def test_grouped_queries_cache_and_padding(name):
    """Chunks and rows of different lengths, with keys that serve several queries."""
    model = make_decoder(name, GROUPED).eval()
    randomise(model)
    with torch.no_grad():
        whole, cache = model(TOKENS), new_cache(model, 24, None, 2)
        parts = torch.cat([model(part, cache=cache) for part in TOKENS.split([9, 1, 14], 1)], 1)
    assert (parts - whole).abs().max() < 1e-4
    prompts = [TOKENS[0, :3], TOKENS[1, :11]]
    assert generate(model, prompts, 6) == [generate(model, [prompt], 6)[0] for prompt in prompts]


def test_path_keeps_nothing_of_a_token_but_its_key(arch):
    """And of the last two, for the convolution."""
    model = make_decoder("path", arch).eval()
    cache = new_cache(model, 24, None, 2)
    with torch.no_grad():
        for part in TOKENS.split([9, 1, 14], 1):
            model(part, cache=cache)
            kept = [x for past in cache.past.values() for x in past.values()]
            kept_bytes = sum(x.untyped_storage().nbytes() for x in kept)
            assert kept_bytes == arch.layers * 2 * 2 * arch.width * 4
    assert {frozenset(buffers) for buffers in cache._buffers} == {frozenset({"k", "v"})}


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_cached_decoding_is_full_decoding_in_16_bits(name, arch):
    """Keys that every token changes are kept in fp32: their error does not grow."""
    model = make_decoder(name, arch).eval()
    randomise(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole, cache = model(TOKENS), new_cache(model, 24, None, 2)
        parts = torch.cat([model(part, cache=cache) for part in TOKENS.split(1, 1)], 1)
    assert (parts - whole).abs().max() < 0.05 * whole.abs().max()


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_under_autocast_the_bias_stays_fp32(name, arch):
    model = make_decoder(name, arch)
    seen = []
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model(TOKENS, watch=lambda block, q, k, biases, state: seen.append(biases["bias"].dtype))
    assert seen == [torch.float32] * 2


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_traces_show_what_the_bias_does(name, arch):
    model = make_decoder(name, arch)
    randomise(model)
    attention = trace(model, TOKENS)[2].attention
    assert torch.allclose(attention.sum(-1), torch.ones(2, 4, 24), atol=1e-5)
