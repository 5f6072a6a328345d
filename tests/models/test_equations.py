"""Encodings against the equations of their papers, written out for one pair of tokens at a time:
logits in fp64, and the gradient of all that they are made of.
"""

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tape_exp.models.conformance import ARCH, randomise
from tape_exp.models.places import Places
from tape_exp.models.positions import path as path_module
from tape_exp.models.positions import wall as wall_module
from tape_exp.models.positions.base import for_heads
from tests.conftest import bias_of, make_position

N, H, D = 7, 4, 8
THETA = 50.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
EYE = torch.eye(D, dtype=torch.float64)
PAIRS = [(i, j) for i in range(N) for j in range(i + 1)]

# An oracle is given the encoding; queries and keys (N, H, D), each key head repeated for the query
# heads that it serves; x (N, C); a query head h and its key head g. It returns the logit of i and
# j times √D, or what is added to the logit.


def rope(q, k, angles):
    """Re Σ_m q̄_m k_m e^{-i angle_m}: the query is further on by these angles."""
    q, k = (torch.complex(*x.chunk(2)) for x in (q, k))
    return (q * torch.polar(torch.ones_like(angles), angles) * k.conj()).sum().real


def plain_rope(e, q, k, x, h, g):
    return lambda i, j: rope(q[i, h], k[j, h], (i - j) * THETA)


def xpos(e, q, k, x, h, g):
    """RoPE whose pair m decays by ζ_m^{distance / B}."""
    zeta = (2 * torch.arange(D // 2, dtype=torch.float64) + 0.4 * D) / (1.4 * D)
    return lambda i, j: rope(q[i, h] * (zeta ** ((i - j) / 4)).repeat(2), k[j, h], (i - j) * THETA)


def selective_rope(e, q, k, x, h, g):
    part, total, sums = slice(g * D // 2, (g + 1) * D // 2), 0.0, []
    for t in range(N):
        phi = 0.0
        for back in range(min(len(e.taps), t + 1)):
            raw = e.up @ (e.down @ (x[t - back] / x[t - back].norm()))
            phi = phi + e.taps[back, part] * raw[part]
        phi = phi * torch.sigmoid(phi) if e.silu else phi
        phi = phi + torch.exp(e.b[g]) if e.b is not None else phi
        if e.w is not None:
            phi = phi * torch.sigmoid(e.w[g] @ x[t] / x[t].norm() + e.c[g])
        total = total + phi
        sums.append(total)
    return lambda i, j: rope(q[i, h], k[j, h], THETA * (sums[i] - sums[j]))


def repo(e, q, k, x, h, g):
    z = []
    for t in range(N):
        gate = e.wg @ x[t]
        z.append(e.wz[g] @ (gate * torch.sigmoid(gate) * (e.wc @ x[t])) + t * e.from_index)
    return lambda i, j: rope(q[i, h], k[j, h], THETA * (z[i] - z[j]))


def grape(e, q, k, x, h, g):
    """exp(n Σ_m ω_m (b_m a_mᵀ - a_m b_mᵀ)) of every token, as a matrix."""
    n = torch.arange(N)
    if e.phase == "tokens":
        n = [sum(torch.log(1 + torch.exp(e.w @ x[s] + e.c)) for s in range(t)) for t in range(N)]
    axes, omega = EYE, THETA * torch.exp(e.r)
    if e.planes == "learned":
        axes = torch.linalg.matrix_exp(e.skew[g] - e.skew[g].T)
    planes = [(axes[:, m], axes[:, m + D // 2]) for m in range(D // 2)]
    L = sum(
        w * (torch.outer(b, a) - torch.outer(a, b)) for w, (a, b) in zip(omega, planes, strict=True)
    )
    G = [torch.linalg.matrix_exp(n[t] * L) for t in range(N)]
    return lambda i, j: (G[i] @ q[i, h]) @ (G[j] @ k[j, h])


def grape_additive(e, q, k, x, h, g):
    """exp(n A) of a nilpotent A, on queries and keys that are wider by two channels."""
    A = F.pad(-e.log_slopes[h].exp()[None, None], (D, 1, D + 1, 0))
    G = [torch.linalg.matrix_exp(t * A) for t in range(N)]

    def added(i, j):
        q_wide, k_wide = F.pad(F.pad(q[i, h], (0, 1), value=1), (0, 1)), F.pad(k[j, h], (0, 2))
        k_wide = k_wide + torch.eye(D + 2, dtype=torch.float64)[D + 1]
        return (G[i] @ q_wide) @ (torch.linalg.inv(G[j]).T @ k_wide) - q[i, h] @ k[j, h]

    return added


def carope(e, q, k, x, h, g):
    """RoPE whose pair m is turned by the sum of f^m over the tokens between."""
    f = 1 / (1 + torch.log1p(torch.exp(x @ e.w[g])))

    def logit(i, j):
        angles = [sum(f[t] ** m for t in range(j + 1, i + 1)) for m in range(D // 2)]
        return rope(q[i, h], k[j, h], torch.stack([x.sum() * 0 + angle for angle in angles]))

    return logit


def rerope(e, q, k, x, h, g):
    return lambda i, j: rope(q[i, h], k[j, h], min(i - j, 3) * THETA)


def pope(e, q, k, x, h, g):
    theta = 50.0 ** (-torch.arange(D, dtype=torch.float64) / D)

    def logit(i, j):
        magnitudes = torch.log1p(torch.exp(q[i, h])) * torch.log1p(torch.exp(k[j, h]))
        return (magnitudes * ((i - j) * theta - e.delta[g]).cos()).sum()

    return logit


def path(e, q, k, x, h, g):
    """A product of Householder matrices over the tokens between."""
    raw, taps = (y[:, g * D : (g + 1) * D] for y in (x @ e.down.T @ e.up.T, e.taps))
    mirrors = []
    for t in range(N):
        w = sum(taps[back] * raw[t - back] for back in range(min(3, t + 1)))
        beta = 2 * torch.sigmoid(x[t] @ e.b[g] + e.c[g])
        mirrors.append(EYE - beta * torch.outer(w, w) / w.norm() ** 2)

    def logit(i, j):
        product = EYE
        for mirror in mirrors[j + 1 : i + 1]:
            product = product @ mirror
        return k[j, h] @ product @ q[i, h]

    return logit


def wall(e, q, k, x, h, g):
    """Every channel is multiplied by its gates."""
    gates = F.logsigmoid(x @ e.w.T + e.b).unflatten(-1, (H, D))[:, h]
    return lambda i, j: (q[i, h] * k[j, h] * gates[j + 1 : i + 1].sum(0).exp()).sum()


def fox(e, q, k, x, h, g):
    """A probability is multiplied by the gates of the tokens between."""
    gates = torch.sigmoid(x @ e.w_forget[h] + e.b_forget[h])
    return lambda i, j: gates[j + 1 : i + 1].prod().log()


def path_fox(e, *given):
    reflected, faded = path(e, *given), fox(e, *given)
    return lambda i, j: reflected(i, j) + faded(i, j) * D**0.5


def cope(e, q, k, x, h, g):
    """Counted by gates and interpolated; with three vectors every long count ends at the last."""

    def added(i, j):
        count = sum(torch.sigmoid(q[i, h] @ k[t, h] / math.sqrt(D)) for t in range(j, i + 1))
        place = count.clamp(max=len(e.e) - 1)
        low, high = e.e[place.detach().floor().long()], e.e[place.detach().ceil().long()]
        part = place - place.detach().floor()
        return q[i, h] @ ((1 - part) * low + part * high)

    return added


def kerple_log(e, q, k, x, h, g):
    r1, r2 = F.softplus(e.raw_r1[h]), F.softplus(e.raw_r2[h])
    return lambda i, j: -r1 * torch.log(1 + r2 * (i - j))


def kerple_power(e, q, k, x, h, g):
    r1, r2 = F.softplus(e.raw_r1[h]), 2 * e.raw_r2[h].sigmoid()
    return lambda i, j: -r1 * (i - j) ** r2 if i > j else 0 * (r1 + r2)


def bam(e, q, k, x, h, g):
    return lambda i, j: -torch.exp(e.alpha[h]) * (i - j + 1e-5) ** e.beta[h]


def cable(e, q, k, x, h, g):
    """b_i - b_j of Veisi et al. (2025), whose weights are FoX's with the other sign."""
    b = -F.softplus(x @ -e.w_forget[h] - e.b_forget[h]).cumsum(0)
    return lambda i, j: b[i] - b[j]


def alibi(e, q, k, x, h, g):
    return lambda i, j: q[0, 0, 0] * 0 - 2.0 ** (-2 * (h + 1)) * (i - j)


def dape(e, q, k, x, h, g):
    def added(i, j):
        static = torch.stack([kerple_log(e, q, k, x, other, g)(i, j) for other in range(H)])
        inner = e.inner(torch.cat([(q[i] * k[j]).sum(-1) / math.sqrt(D), static]))
        return (static + e.outer(torch.where(inner > 0, inner, 0.01 * inner)))[h]

    return added


def fire(e, q, k, x, h, g):
    """Also beyond the threshold, from where on the query's own place counts."""

    def psi(distance):
        return torch.log(e.c.abs() * distance + 1)

    def added(i, j):
        far = torch.maximum(torch.tensor(float(i)), (e.threshold * e.threshold_factor).abs())
        return e.outer(torch.relu(e.inner(psi(i - j) / (psi(far) + 1e-6))))[h]

    return added


AT_50 = "model.theta=50"
NOTHING = ("model.silu=false", "model.bias=false", "model.gate=false", "model.taps=1")
LOGITS = [
    (plain_rope, "rope", AT_50),
    (xpos, "xpos", AT_50, "model.scale_base=4"),
    (selective_rope, "selective_rope", AT_50),
    (selective_rope, "selective_rope", AT_50, *NOTHING),
    (selective_rope, "selective_rope", AT_50, "model.taps=2", "model.silu=false"),
    (repo, "repo", AT_50),
    (repo, "repo", AT_50, "model.start=rope"),
    (grape, "grape", AT_50),
    (grape, "grape", AT_50, "model.planes=learned"),
    (grape, "grape", AT_50, "model.phase=tokens", "model.step=0.3"),
    (grape, "grape", AT_50, "model.phase=tokens", "model.planes=learned"),
    (pope, "pope", AT_50),
    (carope, "carope"),
    (rerope, "rerope", AT_50, "model.farthest=3"),
    (path, "path"),
    (path_fox, "path_fox"),
    (wall, "wall", "model.start=0"),
    (wall, "wall", "model.start=-60"),  # P falls by hundreds within a row
]
ADDED = [(alibi, "alibi"), (kerple_log, "kerple_log"), (kerple_power, "kerple_power")]
ADDED += [(grape_additive, "grape_additive"), (fire, "fire", "model.threshold=3"), (fox, "fox")]
ADDED += [(bam, "bam"), (cable, "fox")]
ADDED += [(fire, "fire"), (dape, "dape"), (cope, "cope"), (cope, "cope", "model.vectors=3")]


@pytest.mark.parametrize(("oracle", "name"), ADDED[1:3], ids=["kerple_log", "kerple_power"])
def test_neighbours_may_be_nearer_than_one(oracle, name):
    """As random floats are."""
    encoding = make_position(name, ARCH)
    encoding.init_weights(torch.Generator().manual_seed(3))
    distances = torch.tensor([0.0, 0.01, 0.3, 1.0, 2.5])
    found = encoding.decay(distances)
    for h in range(H):
        added = oracle(encoding, None, None, None, h, None)
        expected = torch.stack([added(distance, 0) for distance in distances])
        assert (found[h] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("case", [*LOGITS, *ADDED], ids=lambda case: ",".join(case[1:]))
def test_logits_and_gradients_are_those_of_the_equation(case, key_heads, monkeypatch):
    """Those of PaTH and Wall at once, and in blocks of two tokens. Gradients are of logits less
    that of the query's own key, which a softmax does not see.
    """
    oracle, name, *words = case
    for module in (path_module, wall_module):
        monkeypatch.setattr(module, "BLOCK", 16 if key_heads == 4 else 2)
    arch = dataclasses.replace(ARCH, kv_heads=key_heads)
    encoding = make_position(name, arch, *words)
    generator = torch.Generator().manual_seed(3)
    encoding.init_weights(generator)
    randomise(encoding)
    encoding.double()
    q, k, x = (
        torch.randn(2, N, *shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((H, D), (key_heads, D), (32,))
    )
    positions = torch.arange(N, dtype=torch.float64)[None]
    keys = k.repeat_interleave(H // key_heads, 2)
    places = Places.at(positions)
    grouped = k if encoding.grouped_keys else keys
    turned = encoding.rotate(q, grouped, x, encoding.start(places), places)
    width = turned[0].shape[-1]
    found = torch.einsum("bthd,bshd->bhts", turned[0], for_heads(turned[1], H)) / math.sqrt(width)
    if encoding.bias(*turned, x, None, places) is not None:
        found = found + bias_of(encoding, *turned, x, positions)
    expected = torch.zeros(2, H, N, N, dtype=torch.float64)
    for b, h in itertools.product(range(2), range(H)):
        pair = oracle(encoding, q[b], keys[b], x[b], h, h * key_heads // H)
        for i, j in PAIRS:
            content = 0 if case in LOGITS else q[b, i, h] @ keys[b, j, h] / D**0.5
            scale = D**0.5 if case in LOGITS else 1
            expected[b, h, i, j] = content + pair(i, j) / scale
    assert (found.tril() - expected).abs().max() < 1e-10
    learns = [q, k, x, *encoding.parameters()]
    mix = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = []
    for logits in (found, expected):
        seen = (logits - logits.diagonal(dim1=-2, dim2=-1)[..., None]).tril()
        gradients.append(torch.autograd.grad((seen * mix).sum(), learns, allow_unused=True))
    for one, ours, theirs in zip(learns, *gradients, strict=True):
        ours, theirs = (torch.zeros_like(one) if x is None else x for x in (ours, theirs))
        assert (ours - theirs).abs().max() < 1e-10 * (1 + theirs.abs().max())


@pytest.mark.parametrize(
    ("name", "words", "length", "error"),
    [
        ("path", (), 256, 1e-3),  # of 256 mirrors
        ("wall", ("model.start=-60",), 256, 1e-4),
        ("selective_rope", (), 8192, 0.02),  # no more than RoPE's own
        ("grape", ("model.phase=tokens",), 8192, 0.02),
    ],
)
@torch.no_grad()
def test_sums_and_products_over_many_tokens_stay_precise_in_fp32(name, words, length, error):
    encoding = make_position(name, dataclasses.replace(ARCH, kv_heads=None), *words)
    generator = torch.Generator().manual_seed(0)
    encoding.init_weights(generator)
    if name == "path":
        encoding.c.fill_(100)
    q, k = torch.randn(2, 1, length, H, D, generator=generator)
    x = torch.randn(1, length, 32, generator=generator)
    found = []
    for dtype in (torch.float32, torch.float64):
        given = [y.to(dtype) for y in (q, k, x)]
        encoding.to(dtype)
        turned = encoding.rotate(*given, torch.zeros(1, 1, 1, 1, dtype=dtype), None)[0][:, -1]
        found.append(turned if length > 256 else bias_of(encoding, *given).tril())
    assert (found[0] - found[1]).abs().max() < error
