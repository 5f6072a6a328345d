"""Adaptation: logits at first those of the base, what is trained, shifted sparse attention against
its mask, merging.
"""

import math
import re

import pytest
import torch
from omegaconf import OmegaConf

from tape_exp.models import peft
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.shifted_sparse import shifted_sparse
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.folders import CONF
from tape_exp.settings.schema import Arch
from tests.conftest import make_decoder

ARCH = Arch(2, 32, 4, 48, vocab=14, max_length=48, train_length=48, kv_heads=2)
TOKENS = torch.randint(0, 14, (2, 48), generator=torch.Generator().manual_seed(0))
METHODS = [("rope", name) for name in ("lora", "longlora", "theta", "full", "drope")]
METHODS += [("tape", "tape"), ("tape", "lora")]


def adapted(model: str, method: str, *overrides: str) -> tuple[Decoder, Decoder]:
    """A base with the method's positions, and the same weights adapted."""
    cfg = compose_config([f"model={model}", f"peft={method}", *overrides])
    adaptation = build(cfg.peft, "peft", name=method)
    section = adaptation.positions(OmegaConf.to_container(cfg.model))
    base = make_decoder("rope", ARCH)
    randomise(base)
    ours = Decoder(ARCH, kinds_of(section))
    ours.load_state_dict(base.state_dict(), strict=False)
    rope = adaptation.positions(OmegaConf.to_container(compose_config(["model=rope"]).model))
    reference = Decoder(ARCH, kinds_of(rope))
    reference.load_state_dict(base.state_dict())
    adaptation.apply(ours, seed=0)
    return reference, ours


@pytest.mark.parametrize(("model", "method"), METHODS)
def test_logits_before_the_first_step_are_the_bases(model, method):
    """In fp64, so that nothing but rounding may differ; in fp32 relative to logits of size 3."""
    reference, ours = adapted(model, method)
    ours.eval()
    with torch.no_grad():
        expected = reference(TOKENS)
        assert (ours(TOKENS) - expected).abs().max() <= 1e-6 * expected.abs().max()
        places = torch.arange(48, dtype=torch.float64)[None]
        exact = reference.double()(TOKENS, positions_BT=places)
        assert (ours.double()(TOKENS, positions_BT=places) - exact).abs().max() < 1e-12
        assert (
            make_decoder("rope", ARCH)(TOKENS) - expected
        ).abs().max() > 1e-2  # the base is one of its own


@pytest.mark.parametrize(
    ("model", "method", "parts"),
    [
        ("rope", "lora", {"embedding", "norm", "lora"}),
        ("rope", "longlora", {"embedding", "norm", "lora"}),
        ("tape", "tape", {"position"}),
        ("rope", "full", {"embedding", "norm", "head", "q", "k", "v", "o", "gate", "up", "down"}),
    ],
)
def test_what_is_trained(model, method, parts):
    _, ours = adapted(model, method)
    names = [name for name, _ in peft.trained(ours)]
    found = {re.search(r"lora|position|[a-z]+(?=\.weight)", name)[0] for name in names}
    assert found == parts
    # the idle update of the last layer
    assert not any("layers.1.position" in name for name in names)


@pytest.mark.parametrize(("T", "groups"), [(48, 4), (24, 3), (16, 1), (32, 4)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_shifted_sparse_attention_is_attention_under_its_mask(T, groups, kv_heads):
    """Outputs and gradients; the mask is written down entry by entry from the definition."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, T, heads, 6, generator=generator, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    G = T // groups
    position = torch.arange(T)
    straight, shifted = position // G, (position + G // 2) // G
    causal = position[:, None] >= position
    seen = torch.stack(
        [(group[:, None] == group) & causal for group in (straight, straight, shifted, shifted)]
    )
    keys, values = (x.repeat_interleave(4 // kv_heads, 2) for x in (k, v))
    logits = torch.einsum("bthd,bshd->bhts", q, keys) / math.sqrt(6)
    expected = torch.einsum(
        "bhts,bshd->bthd", logits.masked_fill(~seen, float("-inf")).softmax(-1), values
    )
    found = shifted_sparse(q, k, v, groups)
    assert (found - expected).abs().max() < 1e-5
    weight = torch.randn(expected.shape, generator=generator)
    for ours, theirs in zip(
        *(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (found, expected)),
        strict=True,
    ):
        assert (ours - theirs).abs().max() < 1e-5


def test_sparse_in_training_full_at_evaluation():
    reference, ours = adapted("rope", "longlora")
    with torch.no_grad():
        full = reference(TOKENS)
        assert (ours.train()(TOKENS) - full).abs().max() > 1e-2
        assert (ours.eval()(TOKENS) - full).abs().max() < 1e-6


def test_merged_model_is_a_plain_decoder_with_the_same_logits():
    _, ours = adapted("tape", "lora")
    with torch.no_grad():
        for _, parameter in peft.trained(ours):
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            )
        expected = ours.eval()(TOKENS)
        peft.merge(ours)
        assert (ours(TOKENS) - expected).abs().max() < 1e-4
    plain = make_decoder("tape", ARCH)
    assert plain.state_dict().keys() == ours.state_dict().keys()


def test_merging_into_frozen_bf16_rounds_no_adapter_away():
    _, ours = adapted("rope", "lora")
    peft.freeze_in_bf16(ours)
    before = ours.layers[0].q.get_base_layer().weight.detach().float()
    layer = ours.layers[0].q
    with torch.no_grad():  # far below what bf16 resolves beside the weights
        layer.lora_B["default"].weight.normal_(std=1e-4, generator=torch.Generator().manual_seed(1))
        added = layer.get_delta_weight("default")
    peft.merge(ours)
    merged = ours.layers[0].q.weight.detach()
    assert merged.dtype == torch.float32
    assert (merged - before - added).abs().max() < 1e-3 * added.abs().max()


def test_seed_decides_the_adapters():
    """And the global generator is left as it was."""
    before = torch.get_rng_state()
    _, a = adapted("rope", "lora")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    _, b = adapted("rope", "lora")
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_frozen_matrices_in_bf16():
    _, ours = adapted("rope", "lora")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = ours(TOKENS)
        peft.freeze_in_bf16(ours)
        assert torch.equal(ours(TOKENS), expected)
    assert ours.layers[0].up.weight.dtype == torch.bfloat16
    with torch.no_grad(), peft.without_autocast(ours):
        assert torch.equal(ours(TOKENS), expected), "an evaluation in fp32 still computes"
    assert all(parameter.dtype == torch.float32 for _, parameter in peft.trained(ours))


def test_every_method_interpolates_positions_and_theta_scaling_trains_what_lora_does():
    names = {path.stem for path in (CONF / "peft").glob("*.yaml")} - {"none", "drope"}
    methods = {name: compose_config(["task=extend", f"peft={name}"]).peft for name in names}
    assert {peft.interpolation for peft in methods.values()} == {2.0}
    lora, theta = methods["lora"], methods["theta"]
    assert (theta.lora, theta.train, theta.theta) == (lora.lora, lora.train, 1e6)
