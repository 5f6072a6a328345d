"""Patterns of layers, sliding windows, attention sinks, scaled logits, and norms of queries and
keys.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.places import Places
from tape_exp.models.trace import trace
from tape_exp.settings.errors import ConfigError
from tests.conftest import make_decoder

TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


def logits_of(model, tokens=TOKENS):
    with torch.no_grad():
        return model(tokens, sampler=RowSampler(5))


@pytest.mark.parametrize(
    ("name", "sinks", "T"),
    [("rope", 0, 24), ("tape", 2, 24), ("alibi", 2, 24), ("rope", 2, 80), ("alibi", 0, 300)],
)
def test_what_no_layer_reaches_changes_no_bit(name, sinks, T, arch):
    """n layers of windows of w see n (w - 1) + 1 tokens, and the sinks; of these all matter."""
    arch = replace(arch, max_length=T)
    model = make_decoder(name, arch, "+model.window=4", f"+model.sinks={sinks}")
    randomise(model)
    tokens = torch.randint(0, 14, (1, T), generator=torch.Generator().manual_seed(1))
    before, place = logits_of(model, tokens), 10
    changed = tokens.clone()
    changed[0, place] = (tokens[0, place] + 3) % 14
    moved = [bool(x) for x in (logits_of(model, changed) != before).any(-1)[0]]
    assert moved == [place <= t <= place + 2 * 3 for t in range(T)]
    changed = tokens.clone()
    changed[0, 1] = (tokens[0, 1] + 3) % 14
    moved = (logits_of(model, changed) != before).any(-1)[0]
    assert moved[8:].all() if sinks else not moved[8:].any()


def test_layers_of_a_kind_share_a_state(arch):
    """TAPE's goes from its first layer to its second, past a layer between; the other kind's first
    layer sees its own, as does a TAPE with other keys.
    """
    model = make_decoder("[tape,nope,{name:tape,theta:5.0}]", replace(arch, layers=6))
    randomise(model)
    assert [block.kind for block in model.blocks()] == [0, 1, 2, 0, 1, 2]
    assert [block.updates_state for block in model.blocks()] == [True, False, True] + [False] * 3
    idle = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert {name.split(".")[1] for name in idle} == {"3", "5"}
    seen = {}
    model(TOKENS, watch=lambda block, scores, state: seen.update({block.layer: state}))
    initial = [one.start(Places.at(torch.arange(24.0)[None])) for one in model.encodings()]
    for first, start in ((0, initial[0]), (2, initial[2])):
        assert torch.equal(seen[first], start)
        assert not torch.equal(
            seen[first + 3].expand_as(seen[first + 3]), start.expand_as(seen[first + 3])
        )
    assert seen[1] is seen[4] is None


def test_what_is_embedded_is_added_before_the_first_layer_of_its_kind(arch):
    model = make_decoder("[rope,learned]", replace(arch, layers=4))
    tables = [n for n in model.state_dict() if n.endswith("position.embedding")]
    assert tables == ["layers.1.position.embedding"]
    inputs = []
    model.layers[1].attention_norm.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    plain = logits_of(model)
    with torch.no_grad():
        model.layers[1].position.embedding.zero_()
    assert not torch.equal(logits_of(model), plain)
    added = (inputs[0] - inputs[1]).std().item()
    assert added == pytest.approx(0.02, rel=0.1)
    assert (model.reach, model.random) == (48, None)


@pytest.mark.parametrize("window", [None, 5])
def test_ssmax_multiplies_logits_and_biases(window, arch):
    words = [] if window is None else [f"+model.window={window}", "+model.sinks=1"]
    model = make_decoder("alibi", arch, "+model.ssmax=true", *words)
    plain = make_decoder("alibi", arch, *words)
    block = model.layers[0]
    assert block.ssmax[0].item() == pytest.approx(1 / (math.lgamma(25) / 24))
    randomise(model)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "ssmax" not in k})
    with torch.no_grad():
        block.ssmax.copy_(torch.tensor([0.5, 1.0, 2.0, 0.0]))
    found, before = (trace(one, TOKENS, [1])[1].attention for one in (model, plain))
    for t in (0, 1, 4, 7, 23):
        seen = before[0, 0, t] > 0
        n = int(seen.sum())
        assert n == (t + 1 if window is None else min(t + 1, 5) + (t > 4))
        powers = block.ssmax.detach() * math.log(n)
        expected = before[:, :, t] ** powers[None, :, None] * seen
        expected = expected / expected.sum(-1, keepdim=True)
        assert torch.allclose(found[:, :, t], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["rope_temperature", "nope_temperature", "tape_unit_temperature"])
def test_a_temperature_multiplies_the_logits_of_a_head(name, arch):
    """Logits times s_h, written out: probabilities, and the gradient of s and of all weights, in
    fp64.
    """
    s = torch.tensor([0.5, 1.0, 2.0, -1.5], dtype=torch.float64)
    places = torch.arange(24, dtype=torch.float64)[None]
    model = make_decoder(name, arch).double()
    assert [block.temperature.tolist() for block in model.blocks()] == [[1.0] * 4] * 2
    randomise(model)
    plain = make_decoder(name.removesuffix("_temperature"), arch).double()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "temperature" not in k})
    written_out = []
    for block, other in zip(model.blocks(), plain.blocks(), strict=True):
        block.temperature.data.copy_(s)
        written_out.append(s.clone().requires_grad_())
        other.attend = partial(by_equation, written_out[-1])
    outputs = [one(TOKENS, positions_BT=places) for one in (model, plain)]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-10
    for output in outputs:
        output.square().mean().backward()
    for block, factors in zip(model.blocks(), written_out, strict=True):
        assert (block.temperature.grad - factors.grad).abs().max() < 1e-10
        assert factors.grad.abs().min() > 0
    own = dict(model.named_parameters())
    for key, parameter in plain.named_parameters():
        if parameter.requires_grad:
            assert (own[key].grad - parameter.grad).abs().max() < 1e-10, key


def by_equation(s, scores, v, carried, backend):
    """softmax(s_h q·k / √d) over the keys up to the query's, times values and what is carried."""
    T = scores.q.shape[2]
    logits = s[:, None, None] * scores.q @ scores.k.mT / scores.q.shape[-1] ** 0.5
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    p = logits.masked_fill(~seen, float("-inf")).softmax(-1)
    averaged = None if carried is None else (p @ carried.transpose(1, 2)).transpose(1, 2)
    return (p @ v.transpose(1, 2)).transpose(1, 2), averaged


def test_sinks_without_a_window_are_refused(arch):
    with pytest.raises(ConfigError, match=r"model\.sinks=2 has no effect without model\.window"):
        make_decoder("rope", arch, "+model.sinks=2")


@pytest.mark.parametrize("words", [["model.scaling.method=dynamic"], []], ids=["dynamic", "plain"])
@pytest.mark.parametrize("drawn", [["+model.random_range=4"], []], ids=["random", "counted"])
def test_the_length_of_a_row_without_padding_changes_nothing(words, drawn, arch):
    scaled = [*words, *["model.scaling.factor=4"][: len(words)]]
    model = make_decoder("rope", arch, *scaled, *drawn)
    randomise(model)
    model.eval()
    expected = logits_of(model)
    with torch.no_grad():
        lengths = torch.full((len(TOKENS),), TOKENS.shape[1])
        found = model(TOKENS, lengths_B=lengths, sampler=RowSampler(5))
    assert torch.equal(found, expected)
