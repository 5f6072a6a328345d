"""Traces: the probabilities and positions that the layers use, read without changing what they
compute.
"""

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import block as block_module
from tape_exp.models.attention import attend
from tape_exp.models.conformance import randomise
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.trace import rotation_matrices, trace
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, make_decoder, make_position

TOKENS = torch.randint(0, 14, (2, 20), generator=torch.Generator().manual_seed(0))


def sampler() -> RowSampler:
    return RowSampler(0, "trace test")


def random_decoder(name: str, arch: Arch):
    model = make_decoder(name, arch)
    randomise(model, std=0.2)
    return model


@pytest.mark.parametrize("name", ["rope", "tape", "fire", "path_fox", "randpe", "rope_window"])
def test_probabilities_times_values_are_what_the_blocks_attend(name, arch, monkeypatch):
    """And to look changes nothing."""
    model, seen = random_decoder(name, arch), []
    with torch.no_grad():
        before = model(TOKENS, sampler=sampler())
        assert torch.equal(model(TOKENS, sampler=sampler(), watch=lambda *told: None), before)

    def spy(scores, v, carried, backend):
        values, averaged = attend(scores, v, carried, backend)
        seen.append((v, values, carried, averaged))
        return values, averaged

    monkeypatch.setattr(block_module, "attend", spy)
    traces = trace(model, TOKENS, sampler=sampler())
    assert list(traces) == [1, 2]
    for layer, (v, values, carried, attended) in zip(traces.values(), seen, strict=True):
        attention = layer.attention
        assert attention.shape == (2, 4, 20, 20)
        assert torch.allclose(attention.sum(-1), torch.ones(2, 4, 20), atol=1e-6)
        assert not attention.triu(1).any()
        assert torch.allclose(torch.einsum("bhts,bshd->bthd", attention, v), values, atol=1e-5)
        if carried is not None:
            expected = torch.einsum("bhts,bshc->bthc", attention, carried.expand(2, 20, 4, -1))
            assert torch.allclose(expected, attended, atol=1e-5)
    assert model.training
    with torch.no_grad():
        assert torch.equal(model(TOKENS, sampler=sampler()), before)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_what_rotate_multiplies_by(name, arch):
    """The logit of i and j is Σ_m q_{i,m}ᵀ e_{i,m} e_{j,m}ᵀ k_{j,m} / √d, for a state that the
    content has updated.
    """
    encoding = make_position(name, arch).double()
    if rotation_matrices(encoding, encoding.start(Places.at(torch.arange(6.0)[None]))) is None:
        return  # it does not multiply them, or does not say by what
    randomise(encoding)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 6, 4, 8, generator=generator, dtype=torch.float64)
    places = Places.at(torch.arange(6, dtype=torch.float64)[None])
    state = encoding.start(places)
    x = torch.randn(1, 6, 32, generator=generator, dtype=torch.float64)
    if (carried := encoding.carry(state, places)) is not None:
        shape = (1, 6, 4, carried.shape[-1])
        averaged = torch.randn(*shape, generator=generator, dtype=torch.float64)
        state = encoding.update(state, averaged, LayerOutputs(x, x, x), places)
    q_turned, k_turned = encoding.rotate(q, k, x, state, places)
    got = torch.einsum("bthd,bshd->bhts", q_turned, k_turned) / q_turned.shape[-1] ** 0.5
    turned = [
        torch.einsum(
            "bthglm,bthmlr->bthgmr",
            x.unflatten(-1, (-1, e.shape[4], e.shape[3])),
            e.expand(1, 6, 4, -1, -1, -1),
        )  # g: channels of a block that share its vectors, where it has fewer of these
        for x, e in zip((q, k), encoding.matrices(state), strict=True)
    ]
    expected = torch.einsum("bthgmr,bshgmr->bhts", *turned) / 8**0.5
    assert (got - expected).abs().max() < 1e-12


def test_products_of_rope_are_its_mean_cosine(arch):
    for layer in trace(make_decoder("rope", arch), TOKENS).values():
        distance = torch.arange(20.0)[:, None] - torch.arange(20.0)
        theta = 10_000.0 ** (-torch.arange(4) / 4)
        expected = (distance[..., None] * theta).cos().mean(-1)
        assert layer.products.shape == (2, 20, 20)
        assert layer.products_by_head.shape == (2, 4, 20, 20)
        assert torch.allclose(layer.products[1], expected, atol=1e-5)
        assert torch.allclose(layer.products_by_head[0, 2], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "tape", "fire", "tape_fourier"])
def test_under_bf16_autocast_positions_stay_fp32(name, arch):
    model = random_decoder(name, arch)
    full = trace(model, TOKENS)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        half = trace(model, TOKENS)
    assert half[2].attention.dtype == torch.float32
    assert (half[1].attention - full[1].attention).abs().max() < 0.05
    if full[1].products is not None:
        assert torch.equal(half[1].products, full[1].products)
        assert half[2].products.dtype == torch.float32
