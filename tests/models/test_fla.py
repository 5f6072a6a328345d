"""flash-linear-attention as a backend, whose kernel is taken token by token here: the package needs
a GPU, and is not among the project's dependencies.
"""

import sys
from types import ModuleType

import pytest
import torch

from tape_exp.models import fla
from tape_exp.models.attention import choices, forget
from tape_exp.models.generation import new_cache
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tests.conftest import make_decoder, randomise

ARCH = Arch(2, 64, 4, 48, vocab=14, kv_heads=2, max_length=12, train_length=12)  # heads of 16
TOKENS = torch.randint(0, 14, (2, 7), generator=torch.Generator().manual_seed(0))


def parallel_path_attn(
    q, k, v, w, beta, g=None, scale=None, cu_seqlens=None, use_cache=False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As fla 0.6 has it: (B, T, HQ, K), three of (B, T, H, ·), (B, T, H) → (B, T, HQ, V)."""
    assert w.dtype == beta.dtype == torch.float32
    assert q.shape[-1] in (16, 32, 64, 128)
    assert k.shape == w.shape
    assert beta.shape == k.shape[:3]
    assert g is cu_seqlens is None
    groups, scale = q.shape[2] // k.shape[2], scale or q.shape[-1] ** -0.5
    many = [x.double().repeat_interleave(groups, 2) for x in (k, v, w, beta)]
    keys, values, steps, betas = many
    out = []
    for i in range(q.shape[1]):
        w_i = steps[:, i, None]
        moved = (
            keys[:, :i]
            - (keys[:, :i] * w_i).sum(-1, keepdim=True) * betas[:, i, None, :, None] * w_i
        )
        keys = torch.cat([moved, keys[:, i:]], 1)
        p = ((q[:, i, None].double() * keys[:, : i + 1]).sum(-1) * scale).softmax(1)
        out.append((p[..., None] * values[:, : i + 1]).sum(1))
    return torch.stack(out, 1).to(q.dtype), None


@pytest.fixture
def stand_in(monkeypatch):
    for name in ("fla", "fla.ops", "fla.ops.path_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.path_attn"].parallel_path_attn = parallel_path_attn
    monkeypatch.setattr(fla, "installed", lambda: True)


def in_16_bits(model, **options):
    with torch.autocast("cpu", torch.bfloat16):
        return model(TOKENS, **options).float()


def test_paths_kernel_computes_what_the_bias_of_pairs_does(stand_in):
    """Outputs and every gradient, as near as 16 bits allow, with keys that serve two queries."""
    found = []
    for backend in ("fla", "reference"):
        model = make_decoder("path", ARCH, backend=backend)
        randomise(model)
        logits = in_16_bits(model)
        logits.square().mean().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).norm() < 0.03 * expected.norm()


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
    with pytest.raises(ConfigError, match=rf"{refused} serves only model=path, .*These can: ref"):
        in_16_bits(make_decoder("rope", ARCH, backend="fla"))
    model = make_decoder("path", ARCH, backend="fla")
    with pytest.raises(ConfigError, match=rf"{refused}'s kernels are for fp16 and bf16"):
        model(TOKENS)
    monkeypatch.setattr(fla, "installed", lambda: False)
    with pytest.raises(ConfigError, match=rf"{refused} is not installed \(pip install fla-core\)"):
        in_16_bits(model)
