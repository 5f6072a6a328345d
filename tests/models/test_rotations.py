"""Encodings that turn queries and keys by more than their index, against loops over tokens that
follow the papers' equations, and the encodings that they begin as or contain.
"""

import dataclasses
import math

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import peft
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import new_cache
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, make_decoder, make_position

GROUPED = Arch(2, 32, 4, 48, vocab=14, max_length=48, train_length=24, kv_heads=2)
TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))
N, H, K, D = 7, 4, 2, 8


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
