"""Encodings that turn queries and keys by more than their index, against loops over tokens that
follow the papers' equations, and the encodings that they begin as or contain.
"""

import dataclasses
import itertools
import math

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import peft
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, bias_of, make_decoder, make_position

GROUPED = Arch(2, 32, 4, 48, vocab=14, max_length=48, train_length=24, kv_heads=2)
TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))
N, H, K, D = 7, 4, 2, 8
BY_TOKENS = {
    "selective_rope": (),
    "selective_rope, linear": ("model.taps=1", "model.silu=false", "model.bias=false"),
    "repo": (),
    "repo, offsets": ("model.start=rope",),
    "grape, tokens": ("model.phase=tokens",),
    "grape, tokens and planes": ("model.phase=tokens", "model.planes=learned"),
    **dict.fromkeys(("cope", "dape", "path", "path_fox", "wall"), ()),
}


def layer(name: str, *words: str, seed: int = 3):
    """A random layer in fp64, with q, k, x and indices."""
    encoding = make_position(name.partition(",")[0], GROUPED, *words)
    encoding.init_weights(torch.Generator().manual_seed(seed))
    randomise(encoding)
    generator = torch.Generator().manual_seed(seed)
    q, k, x = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, N, H, D), (2, N, K, D), (2, N, 32))
    )
    return encoding.double(), q, k, x, torch.arange(N, dtype=torch.float64)[None]


def logits(encoding, q, k, x, positions) -> torch.Tensor:
    """(B, H, T, T), before the mask."""
    q, k = encoding.rotate(q, k, x, encoding.start(positions))
    k = k.repeat_interleave(H // k.shape[2], 2)
    return torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])


def rope_logit(q, k, angles) -> torch.Tensor:
    """Re Σ_m q̄_m k_m e^{-i angle_m} / √d: the query is further on by these angles."""
    q, k = (torch.complex(*x.chunk(2)) for x in (q, k))
    return (q * torch.polar(torch.ones_like(angles), angles) * k.conj()).sum().real / math.sqrt(D)


def each():
    """Row, head, query and key."""
    return itertools.product(range(2), range(H), range(N), range(N))


@pytest.mark.parametrize(
    ("taps", "parts"),
    [
        (3, (True, True, True)),
        (1, (True, True, False)),
        (2, (False, False, True)),
        (1, (False,) * 3),
    ],
    ids=str,
)
def test_selective_rope_sums_the_angles_of_the_tokens_between(taps, parts):
    words = [
        f"model.{key}={str(on).lower()}"
        for key, on in zip(("silu", "bias", "gate"), parts, strict=True)
    ]
    encoding, q, k, x, positions = layer(
        "selective_rope", *words, f"model.taps={taps}", "model.theta=50"
    )
    theta = 50.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    found = logits(encoding, q, k, x, positions)
    sums = torch.zeros(2, N + 1, K, D // 2, dtype=torch.float64)
    for b, t, g in itertools.product(range(2), range(N), range(K)):
        part = slice(g * D // 2, (g + 1) * D // 2)
        phi = torch.zeros(D // 2, dtype=torch.float64)
        for back in range(min(taps, t + 1)):
            raw = encoding.up @ (encoding.down @ (x[b, t - back] / x[b, t - back].norm()))
            phi = phi + encoding.taps[back, part] * raw[part]
        phi = phi * torch.sigmoid(phi) if encoding.silu else phi
        phi = phi + torch.exp(encoding.b[g]) if encoding.b is not None else phi
        if encoding.w is not None:
            phi = phi * torch.sigmoid(encoding.w[g] @ x[b, t] / x[b, t].norm() + encoding.c[g])
        sums[b, t + 1, g] = sums[b, t, g] + phi
    for b, h, i, j in each():
        angles = theta * (sums[b, i + 1, h // 2] - sums[b, j + 1, h // 2])
        expected = rope_logit(q[b, i, h], k[b, j, h // 2], angles)
        assert abs(found[b, h, i, j] - expected) < 1e-10


@pytest.mark.parametrize("start", ["content", "rope"])
def test_repo_puts_tokens_at_the_positions_that_they_choose(start):
    encoding, q, k, x, positions = layer("repo", f"model.start={start}", "model.theta=50")
    theta = 50.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    found = logits(encoding, q, k, x, positions)
    assert encoding.wg.shape == (4, 32)
    z = torch.zeros(2, N, K, dtype=torch.float64)
    for b, t in itertools.product(range(2), range(N)):
        gate = encoding.wg @ x[b, t]
        z[b, t] = encoding.wz @ (gate * torch.sigmoid(gate) * (encoding.wc @ x[b, t]))
        z[b, t] += t if start == "rope" else 0
    for b, h, i, j in each():
        angles = theta * (z[b, i, h // 2] - z[b, j, h // 2])
        expected = rope_logit(q[b, i, h], k[b, j, h // 2], angles)
        assert abs(found[b, h, i, j] - expected) < 1e-10


@pytest.mark.parametrize("phase", ["index", "tokens"])
@pytest.mark.parametrize("planes", ["axes", "learned"])
def test_grape_is_the_exponential_of_its_generators(planes, phase):
    """exp(n Σ_m ω_m (b_m a_mᵀ - a_m b_mᵀ)) of every token, as a matrix."""
    words = [f"model.planes={planes}", f"model.phase={phase}", "model.theta=50"]
    words += ["model.step=0.3"] if phase == "tokens" else []
    encoding, q, k, x, positions = layer("grape", *words)
    found = logits(encoding, q, k, x, positions)
    omega = 50.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D) * torch.exp(encoding.r)
    n = positions.expand(2, -1).clone()
    if phase == "tokens":
        for b, t in itertools.product(range(2), range(N)):
            n[b, t] = sum(
                torch.log(1 + torch.exp(encoding.w @ x[b, s] + encoding.c)) for s in range(t)
            )
    for b, h, i, j in each():
        axes = torch.eye(D, dtype=torch.float64)
        if planes == "learned":
            S = encoding.skew[h // 2] - encoding.skew[h // 2].T
            axes = torch.linalg.matrix_exp(S)
        L = torch.zeros(D, D, dtype=torch.float64)
        for m in range(D // 2):
            a, other = axes[:, m], axes[:, m + D // 2]
            L = L + omega[m] * (torch.outer(other, a) - torch.outer(a, other))
        G_i, G_j = (torch.linalg.matrix_exp(n[b, t] * L) for t in (i, j))
        expected = (G_i @ q[b, i, h]) @ (G_j @ k[b, j, h // 2]) / math.sqrt(D)
        assert abs(found[b, h, i, j] - expected) < 1e-10


def test_the_unipotent_form_of_grape_is_a_bias_by_distance(arch):
    """(G(i) q̂)ᵀ G(j)⁻ᵀ k̂ of widened queries and keys, with the generator of rank 1."""
    encoding = make_position("grape_additive", arch)
    assert torch.allclose(encoding.slopes(), make_position("alibi", arch).slopes(), rtol=1e-6)
    randomise(encoding)
    _, q, k, x, _ = layer("rope")
    bias = bias_of(encoding.double(), q, k, x)
    for h, i, j in itertools.product(range(H), range(N), range(N)):
        A = torch.zeros(D + 2, D + 2, dtype=torch.float64)
        A[D + 1, D] = -encoding.log_slopes[h].exp()
        q_wide = torch.cat([q[0, i, h], torch.tensor([1.0, 0.0])])
        k_wide = torch.cat([k[0, j, h // 2], torch.tensor([0.0, 1.0])])
        G_i, G_j = (torch.linalg.matrix_exp(t * A) for t in (i, j))
        found = (G_i @ q_wide) @ (torch.linalg.inv(G_j).T @ k_wide)
        if j <= i:
            assert abs(found - q[0, i, h] @ k[0, j, h // 2] - bias[0, h, i, j]) < 1e-12
    model, alibi = make_decoder("grape_additive", arch), make_decoder("alibi", arch)
    assert (model(TOKENS) - alibi(TOKENS)).abs().max() < 1e-6


def test_the_logits_of_pope_are_its_formula():
    encoding, q, k, x, positions = layer("pope", "model.theta=50")
    theta = 50.0 ** (-torch.arange(D, dtype=torch.float64) / D)
    found = logits(encoding, q, k, x, positions)
    for b, h, i, j in each():
        magnitudes = torch.log1p(torch.exp(q[b, i, h])) * torch.log1p(torch.exp(k[b, j, h // 2]))
        phases = ((i - j) * theta - encoding.delta[h // 2]).cos()
        assert abs(found[b, h, i, j] - (magnitudes * phases).sum() / math.sqrt(D)) < 1e-10


def test_uniform_phases_of_pope_lie_on_the_circle(arch):
    encoding = make_position("pope", arch, "model.phases=uniform")
    encoding.init_weights(torch.Generator().manual_seed(0))
    assert -2 * math.pi <= encoding.delta.min() < -4
    assert -1 < encoding.delta.max() <= 0
    assert not make_position("pope", arch).delta.any()


def test_p_rope_goes_from_nope_to_rope(arch):
    none, half, whole, nope, rope = models = (
        *(make_decoder("p_rope", arch, f"model.p={p}") for p in (0, 0.5, 1)),
        *(make_decoder(name, arch) for name in ("nope", "rope")),
    )
    for model in models:
        randomise(model)
    assert torch.equal(whole(TOKENS), rope(TOKENS))
    assert torch.equal(none(TOKENS), nope(TOKENS))
    assert min((half(TOKENS) - model(TOKENS)).abs().max() for model in (none, whole)) > 0.01


def test_the_frequencies_of_p_rope_are_those_of_transformers():
    """Its ``proportional`` scaling."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for p in (0.75, 0.3):
        rope = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": p}
        config = LlamaConfig(hidden_size=40, num_attention_heads=2, rope_parameters=rope)
        theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config, device="cpu")
        arch = Arch(layers=1, width=40, heads=2, ffn=8)
        ours, magnitude = make_position("p_rope", arch, f"model.p={p}").frequencies(torch.zeros(1))
        assert torch.allclose(ours, theirs, rtol=1e-5)
        assert magnitude == 1


@pytest.mark.parametrize(
    "words",
    [
        ("selective_rope", "model.start=rope"),
        ("selective_rope", "model.start=rope", "model.gate=false", "model.silu=false"),
        ("repo", "model.start=rope"),
        ("grape",),
        ("grape", "model.planes=learned"),
        ("grape", "model.phase=tokens"),
    ],
    ids=str,
)
def test_step_0_is_rope_and_learns(words):
    """The logits, and after two steps a gradient in every positional parameter."""
    model = make_decoder(words[0], GROUPED, *words[1:], "model.theta=1000")
    rope = make_decoder("rope", GROUPED, "model.theta=1000")
    assert (model(TOKENS) - rope(TOKENS)).abs().max() < 1e-5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(TOKENS).logsumexp(-1).square().mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name


AS_ROPE = [("p_rope", "model.p=1"), ("selective_rope", "model.start=rope")]
AS_ROPE += [("repo", "model.start=rope"), ("grape", "model.phase=tokens")]
# Of one class, with other numbers, or with keys of attention.
ALIKE = ("tape_i", "rope_", "ssmax", "rnope_swa")
WORDS = [*AS_ROPE, *((name,) for name in MODELS if not name.startswith(ALIKE))]


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_it_is_measured_whether_an_encoding_begins_as_rope(words, arch):
    """At its theta and scaling; here by the logits of two layers on the same backbone."""
    model = make_decoder(words[0], arch, *words[1:])
    own = model.blocks()[0].position
    settings = getattr(own, "rope", own)
    scaling = getattr(settings, "scaling", None)
    rope = Decoder(arch, lambda a: RoPE(a, getattr(settings, "theta", 10_000.0), scaling))
    with torch.no_grad():
        for matrix in (m for both in (model, rope) for m in both.modules()):
            if isinstance(matrix, torch.nn.Linear):
                matrix.weight.mul_(3)  # so that attention is far from uniform
        apart = (model(TOKENS, sampler=RowSampler(5)) - rope(TOKENS)).abs().max()
    begins = model.random is None and peft.begins_as_rope(own)
    assert begins == bool(apart < 1e-5)
    assert begins or words not in AS_ROPE


@pytest.mark.parametrize("name", BY_TOKENS)
def test_cache_and_padding(name):
    """Chunks, single tokens, and rows of different lengths."""
    model = make_decoder(name.partition(",")[0], GROUPED, *BY_TOKENS[name]).eval()
    randomise(model)
    with torch.no_grad():
        whole, cache = model(TOKENS), new_cache(model, 24, None, 2)
        parts = [model(part, cache=cache) for part in TOKENS.split([9, 1, 1, 13], 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-4
    prompts = [TOKENS[0, :3], TOKENS[1, :11]]
    assert generate(model, prompts, 6) == [generate(model, [prompt], 6)[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["selective_rope", "grape, tokens"])
def test_angles_stay_precise_over_8192_tokens(name):
    """The sum in fp32, against fp64: no more than RoPE's own error."""
    encoding = make_position(name.partition(",")[0], GROUPED, *BY_TOKENS[name])
    encoding.init_weights(torch.Generator().manual_seed(0))
    x = torch.randn(1, 8192, 32, generator=torch.Generator().manual_seed(0))
    q, state = torch.ones(1, 8192, 2, D), torch.zeros(1, 1, 1, 1)
    turned, _ = encoding.rotate(q, q, x, state)
    exact, _ = encoding.double().rotate(q.double(), q.double(), x.double(), state.double())
    assert (turned - exact)[:, -1].abs().max() < 0.02


def test_each_key_head_has_one_rotation_so_that_a_cache_stays_small():
    arch = dataclasses.replace(GROUPED, kv_heads=1)
    for name in ("repo", "grape", "pope"):
        model = make_decoder(name, arch)
        cache = new_cache(model, 24, None, 2)
        with torch.no_grad():
            model(TOKENS, cache=cache)
        width = 2 * D if name == "pope" else D
        assert cache._buffers[0, "k"].shape == (2, 24, 1, width)
        assert cache._buffers[0, "v"].shape == (2, 24, 1, D)
