"""flash-linear-attention as a backend; token by token instead of its kernels, since the package
needs a GPU and is not among the project's dependencies.
"""

import sys
from types import ModuleType

import pytest
import torch

from tape_exp.models.attention import choices, fla, forget
from tape_exp.models.conformance import randomise
from tape_exp.models.generation import new_cache
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tests.conftest import make_decoder

ARCH = Arch(2, 64, 4, 48, vocab=14, kv_heads=2, max_length=12, train_length=12)  # heads of 16
TOKENS = torch.randint(0, 14, (2, 7), generator=torch.Generator().manual_seed(0))


def attended(q, k, v, w, beta, c, scale_of_gates):
    """Softmax of q_i H_i ⋯ H_{j+1} k_j / √K + scale_of_gates (c_i - c_j), times v."""
    keys, scale = k, q.shape[-1] ** -0.5
    out = []
    for i in range(q.shape[1]):
        w_i = w[:, i, None]
        along = (keys[:, :i] * w_i).sum(-1, keepdim=True) * beta[:, i, None, :, None]
        keys = torch.cat([keys[:, :i] - along * w_i, keys[:, i:]], 1)
        logits = (q[:, i, None] * keys[:, : i + 1]).sum(-1) * scale
        p = (logits + scale_of_gates * (c[:, i, None] - c[:, : i + 1])).softmax(1)
        out.append((p[..., None] * v[:, : i + 1]).sum(1))
    return torch.stack(out, 1)


def for_queries(q, *others):
    """All in fp64, with a head for each query head."""
    groups = (q.shape[2] // x.shape[2] for x in others)
    many = (x.repeat_interleave(n, 2) for x, n in zip(others, groups, strict=True))
    return [x.double() for x in (q, *many)]


def parallel_path_attn(q, k, v, w, beta, g=None, scale=None, cu_seqlens=None, use_cache=False):
    """As fla 0.6 has it: (B, T, HQ, K), three of (B, T, H, ·), (B, T, H), (B, T, HQ) → (B, T, HQ,
    V). Gates are scaled as logits are.
    """
    assert w.dtype == beta.dtype == torch.float32
    assert q.shape[-1] in (16, 32, 64, 128)
    assert k.shape == w.shape
    assert beta.shape == k.shape[:3]
    assert scale is cu_seqlens is None
    g = torch.zeros(q.shape[:3]) if g is None else g
    assert (g.dtype, g.shape) == (torch.float32, q.shape[:3])
    out = attended(*for_queries(q, k, v, w, beta), g.double().cumsum(1), q.shape[-1] ** -0.5)
    return out.to(q.dtype), None


def parallel_forgetting_attn(q, k, v, g, scale=None, window_size=None, cu_seqlens=None):
    """As fla 0.6 has it, with g (B, T, HQ)."""
    assert scale is window_size is cu_seqlens is None
    assert g.shape == q.shape[:3]
    none = torch.zeros_like(k), torch.zeros(k.shape[:3])
    out = attended(*for_queries(q, k, v, *none), g.double().cumsum(1), 1)
    return out.to(q.dtype)


@pytest.fixture
def stand_in(monkeypatch):
    for name in ("fla", "fla.ops", "fla.ops.path_attn", "fla.ops.forgetting_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.path_attn"].parallel_path_attn = parallel_path_attn
    sys.modules["fla.ops.forgetting_attn"].parallel_forgetting_attn = parallel_forgetting_attn
    monkeypatch.setattr(fla, "installed", lambda: True)


def in_16_bits(model, **options):
    with torch.autocast("cpu", torch.bfloat16):
        return model(TOKENS, **options).float()


@pytest.mark.parametrize("name", ["path", "fox", "path_fox"])
def test_its_kernels_compute_what_biases_do(name, stand_in, monkeypatch):
    """Outputs and every gradient, with keys that serve two queries; in fp32, for once."""
    monkeypatch.setattr(fla, "DTYPES", (torch.float32,))
    found = []
    for backend in ("fla", "reference"):
        model = make_decoder(name, ARCH, backend=backend)
        randomise(model)
        logits = model(TOKENS)
        logits.square().mean().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).norm() < 1e-5 * expected.norm()


def test_decoding_is_left_to_another_backend_and_the_log_says_so(stand_in):
    forget()
    model = make_decoder("path", ARCH, backend="fla").eval()
    with torch.no_grad():
        whole, cache = in_16_bits(model), new_cache(model, 7, None, 2)
        with torch.autocast("cpu", torch.bfloat16):
            parts = torch.cat([model(part, cache=cache) for part in TOKENS.split([5, 2], 1)], 1)
    assert (parts - whole).abs().max() < 0.05 * whole.abs().max()
    assert any("reference" in choice for choice in choices())


def test_what_it_cannot_serve_is_a_sentence(stand_in, monkeypatch):
    refused = "trainer.attention=fla: flash-linear-attention"
    with pytest.raises(ConfigError, match=rf"{refused} serves only PaTH and FoX, .*These can: ref"):
        in_16_bits(make_decoder("rope", ARCH, backend="fla"))
    model = make_decoder("path", ARCH, backend="fla")
    with pytest.raises(ConfigError, match=rf"{refused}'s kernels are for fp16 and bf16"):
        model(TOKENS)
    monkeypatch.setattr(fla, "installed", lambda: False)
    with pytest.raises(ConfigError, match=rf"{refused} is not installed \(pip install fla-core\)"):
        in_16_bits(model)
