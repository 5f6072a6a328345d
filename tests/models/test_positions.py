"""What every positional encoding must do, found by globbing conf/model: a new YAML is tested
without an edit here.
"""

import dataclasses
import itertools
import re

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import sections
from tape_exp.models.conformance import SITUATIONS, NotAskedError, outcome_of
from tape_exp.models.decoder import Decoder
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.t5 import T5
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.schema import Arch
from tape_exp.tasks.sums import row_length
from tests.conftest import (
    EVERY_MODEL,
    MODELS,
    NUMBERS,
    bias_of,
    make_decoder,
    make_position,
    model_of,
)

TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


# What no YAML has: other choices of an encoding; several kinds of layers, with keys of attention.
MORE = [
    "[{name:selective_rope,taps:1,silu:false,bias:false}]",
    "[{name:repo,start:rope}]",
    "[{name:grape,phase:tokens}]",
    "[{name:grape,phase:tokens,planes:learned}]",
    "[tape,{name:rope,window:5,sinks:2,ssmax:true}]",
    "[learned,{name:alibi,window:5,ssmax:true,qk_norm:true}]",
    "[randpe,nope]",
    "[rope,rope,abacus]",
    "[path,{name:fire,window:4}]",
    "[fox,{name:fox,window:4,sinks:1,ssmax:true}]",
    "[{name:rope,scaling:{method:dynamic}}]",
    "[{name:rope,scaling:{method:longrope,short_factor:[1,1,2,2],long_factor:[1,2,4,8]}}]",
]


# Why an encoding is not in a situation, or what it may do there.
NOT_ASKED = {("learned", "sampled_positions"): "has a table of 192 positions"}
NOT_ASKED |= {(MORE[5], "sampled_positions"): "has a table of 192 positions"}
REMARKS = dict.fromkeys(("abacus", "coupling", MORE[7]), "the graph breaks")  # they draw numbers


def asked():
    """Every encoding in every situation. Long are all that is traced, and models of which another
    one differs in numbers alone.
    """
    for situation, name in itertools.product(SITUATIONS, [*EVERY_MODEL, *MORE]):
        is_long = situation == "compiled" or name in NUMBERS
        yield pytest.param(name, situation, marks=[pytest.mark.long] if is_long else [])


@pytest.mark.parametrize(("name", "situation"), asked())
def test_an_encoding_does_what_every_one_must(name, situation):
    """Every YAML of conf/model in every situation, beside the explicit softmax in fp64."""
    if (name, situation) in NOT_ASKED:
        with pytest.raises(NotAskedError, match=NOT_ASKED[name, situation]):
            outcome_of(situation, model_of(name))
        return
    outcome = outcome_of(situation, model_of(name))
    if outcome.allowed is not None:
        assert outcome.difference < outcome.allowed
    if situation == "compiled":
        assert outcome.remark == REMARKS.get(name, "")


def test_the_walk_through_names_every_hook_and_attribute():
    page = (ROOT / "docs" / "add-a-positional-encoding.md").read_text()
    rows = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    own = ("_", "require", "drop_embedding", "freeze_update")  # nobody overrides these
    hooks = {name for name in vars(PositionEncoding) if not name.startswith(own)}
    told = {"tokens", "positions", "key_tokens", "key_positions", "lengths", "sampler"}
    assert rows == hooks | told
    assert all(hasattr(Places.at(torch.zeros(1, 1)), name) for name in told)


PER_LAYER = dict.fromkeys(("nope", "rope", "xpos", "alibi", "randpe"), 0)
PER_LAYER |= {"fire": 462, "t5": 768, "tape": 38_160}
PER_LAYER |= {f"tape_i{n}": n * 12 * (768 + 2 * 12) + 12**2 for n in (1, 2, 8, 16)}
# The layouts mix over heads alone, so that a row of the ablation differs in nothing else.
PER_LAYER |= dict.fromkeys(("tape_no_tensor", "tape_neither"), 38_160)


@pytest.mark.parametrize(("name", "per_layer"), PER_LAYER.items())
@pytest.mark.slow
def test_extra_parameters_of_the_155_m_model(name, per_layer):
    """12 heads, hidden 768: what the paper's table of efficiency implies."""
    with torch.device("meta"):
        encoding = make_position(name, Arch(12, 768, 12, 3072, max_length=1024, train_length=1024))
    assert sum(p.numel() for p in encoding.parameters()) == per_layer


def test_alibi_slopes():
    def slopes(heads: int) -> list[float]:
        arch = Arch(layers=1, width=2 * heads, heads=heads, ffn=2)
        return make_position("alibi", arch).to(torch.bfloat16).slopes().tolist()

    assert slopes(8) == [2.0**-h for h in range(1, 9)]
    later = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert slopes(12) == pytest.approx([2.0**-h for h in range(1, 9)] + later)


LONGROPE = (
    "model.scaling.method=longrope",
    "+model.scaling.short_factor=[1,1.5,2,3]",
    "+model.scaling.long_factor=[1,2,4,8]",
)
REFUSED = [
    ("t5", "model.buckets=1", "model.buckets=1 should be greater than or equal to 2"),
    ("rope_yarn", "+model.scaling.beta_slow=40", "beta_slow must be below model.scaling.beta_fast"),
    ("rope_yarn", "model.theta=1", "model.theta=10000 would do."),
    ("rope", (*LONGROPE, "model.scaling.original=1"), "model.scaling.original=2 would do."),
    ("fire", "model.threshold=-4", "model.threshold=-4 should be greater than 0"),
    ("selective_rope", "++model.scaling.method=dynamic", "reads the length of a row"),
    ("selective_rope", ("model.start=rope", "model.bias=false"), "needs model.bias=true"),
    ("tape_no_equivariance", "++model.weights=full", "equivariant=false needs model.weights=heads"),
    ("fire_randpe", "+model.hiden=5", "model.hiden is not known. Did you mean 'hidden'"),
]


@pytest.mark.parametrize(("name", "words", "message"), REFUSED, ids=str)
def test_a_wrong_value_names_its_key(name, words, message, arch):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_position(name, arch, *([words] if isinstance(words, str) else words))


def test_t5_buckets(arch):
    encoding = T5(arch, buckets=64, max_distance=128)
    bucket = encoding.bucket(torch.tensor([0.0, 1, 31, 32, 33, 64, 127, 128, 5000]))
    assert bucket[:4].tolist() == [0, 1, 31, 32]
    assert bucket.diff().min() >= 0
    assert bucket[5].item() == 48  # half-way on the logarithmic scale from 32 to 128
    assert bucket[-2:].tolist() == [63, 63]


def of_transformers(method: str, length: int, p: float):
    """Frequencies of a head of 8 channels, stretched fourfold, and the factor on q and k."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {"rope_type": method, "rope_theta": 10_000.0, "partial_rotary_factor": p}
    given |= {"original_max_position_embeddings": 1024, "factor": 1.0 if p < 1 else 4.0}
    given |= {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 1024}
    config = LlamaConfig(**sizes, rope_parameters=given)
    return ROPE_INIT_FUNCTIONS[method](config, device="cpu", seq_len=length)


STRETCHED = {"linear": ("rope_linear",), "yarn": ("rope_yarn",), "longrope": ("rope", *LONGROPE)}
STRETCHED |= {"dynamic": ("rope", "model.scaling.method=dynamic")}
STRETCHED |= {"proportional": ("p_rope", "model.p=0.5")}


@pytest.mark.parametrize("length", [500, 1025, 3000])
@pytest.mark.parametrize("method", STRETCHED)
def test_scaled_frequencies_match_transformers(method, length):
    """Also with weights of 16 bits; where only evaluation stretches, training is left alone."""
    name, *words = STRETCHED[method]
    arch = Arch(1, 16, 2, 8, vocab=14, max_length=4096, train_length=1024)
    positions, plain = torch.arange(float(length))[None], make_position("rope", arch)
    lengths = torch.tensor([float(length)])
    encoding = make_position(name, arch, *words)
    theirs, attention = of_transformers(method, length, 0.5 if method == "proportional" else 1.0)
    for one in (encoding, encoding.to(torch.bfloat16)):
        ours, magnitude = one.frequencies(positions, lengths)
        assert torch.allclose(ours.flatten(), theirs, rtol=1e-5, atol=0)
        assert magnitude == pytest.approx(attention, rel=1e-6)
    if method != "proportional":
        late = make_position(name, arch, *words, "model.scaling.when=evaluation")
        stretched, _ = late.eval().frequencies(positions, lengths)
        assert torch.allclose(stretched.flatten(), theirs, rtol=1e-5)
        unscaled, one = late.train().frequencies(positions)
        assert torch.allclose(unscaled, plain.frequencies(positions)[0], rtol=1e-6)
        assert one == 1


def test_ntk_leaves_the_highest_frequency_and_stretches_the_lowest():
    arch = Arch(layers=1, width=128, heads=2, ffn=32, vocab=14, max_length=4096, train_length=1024)
    frequencies, _ = make_position("rope_ntk", arch).frequencies(torch.zeros(1))
    assert frequencies[0] == 1
    assert frequencies[-1].item() == pytest.approx(10_000 ** (-62 / 64) / 4, rel=1e-4)


def test_randpe_is_sorted_distinct_and_not_rope(arch):
    rope, randpe = make_decoder("rope", arch), make_decoder("randpe", arch)
    positions = randpe.positions(8, 24, torch.device("cpu"), RowSampler(5))
    assert not torch.allclose(rope(TOKENS), randpe(TOKENS, sampler=RowSampler(5)), atol=1e-3)
    assert torch.equal(randpe(TOKENS, sampler=RowSampler(5)), randpe(TOKENS, sampler=RowSampler(5)))
    later = randpe.positions(5, 24, torch.device("cpu"), RowSampler(5, first=3))
    assert torch.equal(later, positions[3:]), "row k is a function of k, not of its batch"
    # step by step: the places of the smallest of so many numbers as there are positions
    numbers = RowSampler(5).integers(8, 96).tolist()
    drawn = [sorted(sorted(range(96), key=row.__getitem__)[:24]) for row in numbers]
    assert positions.tolist() == drawn


def test_random_floats_are_even_in_evaluation_and_sorted_uniform_draws_in_training(arch):
    arch = dataclasses.replace(arch, train_length=20)
    rope, rfs = make_decoder("rope", arch).eval(), make_decoder("rfs", arch).eval()
    for T in (12, 40):  # up to the trained length, and beyond
        tokens = torch.randint(0, 14, (2, T), generator=torch.Generator().manual_seed(0))
        places = [2 * 48 * (2 * i - 1) / (2 * max(20, T)) for i in range(1, T + 1)]
        expected = rope(tokens, positions_BT=torch.tensor([places]))
        assert torch.allclose(rfs(tokens), expected, atol=1e-5)
    drawn = rfs.train().positions(4000, 7, torch.device("cpu"), RowSampler(5))
    assert (drawn.diff(dim=1) > 0).all()
    assert 0 <= drawn.min() < 1
    assert 95 < drawn.max() < 96
    order = torch.arange(1, 8)  # the mean of the k-th of T draws is L k / (T + 1)
    assert torch.allclose(drawn.mean(0), 96 * order / 8, atol=4 * 96 * 0.5 / 9**0.5 / 4000**0.5)
    later = rfs.positions(5, 7, torch.device("cpu"), RowSampler(5, first=3))
    assert torch.equal(later, drawn[3:8]), "row k is a function of k, not of its batch"
    with pytest.raises(ConfigError, match=r"model\.random_floats=true needs model\.random_range"):
        make_decoder("rope", arch, "+model.random_floats=true")


AS_ROPE = [("p_rope", "model.p=1"), ("selective_rope", "model.start=rope")]
AS_ROPE += [("repo", "model.start=rope"), ("grape", "model.phase=tokens")]
AS_ROPE += [("selective_rope", "model.start=rope", "model.gate=false", "model.silu=false")]
AS_ROPE += [("grape", "model.planes=learned")]
# Of one class, with other numbers, or with keys of attention.
ALIKE = ("tape_i", "rope_", "ssmax", "rnope_swa")
WORDS = [*AS_ROPE, *((name,) for name in MODELS if not name.startswith(ALIKE))]
# Beyond so few tokens it is not RoPE: what 24 tokens do not show of the YAML's 512.
WORDS[WORDS.index(("rerope",))] = ("rerope", "model.farthest=5")


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
    begins = sections.begins_as_rope(model_of(words[0], *words[1:]), arch)
    assert begins == bool(apart < 1e-5)
    assert begins or words not in AS_ROPE


def test_what_leaves_rope_beyond_a_distance_does_not_begin_as_rope(arch):
    for farthest in (5, 100, 150, 4096):
        assert not sections.begins_as_rope(model_of("rerope", f"model.farthest={farthest}"), arch)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def of_tokens(length: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and x of a row, which no bias by distance reads."""
    heads = torch.zeros(1, length, 4, 8)
    return heads, heads, torch.zeros(1, length, 32)


def test_xpos_has_the_scale_base_of_its_own_paper(arch):
    assert make_position("xpos", arch).scale_base == 512


def test_the_threshold_of_fire_begins_beyond_every_row_of_addition(arch):
    """Within it the bias depends on the distance alone: every diagonal has one value."""
    encoding, T = make_position("fire", arch), row_length(80)
    encoding.init_weights(generator())
    assert compose_config(["scale=paper"]).task.test_digits == 80
    assert T == 244 < encoding.threshold * encoding.threshold_factor.item() == 512
    bias = bias_of(encoding, *of_tokens(T))[0, 0].detach()
    for distance in (1, 100, 200):
        assert bias.diagonal(-distance).max() - bias.diagonal(-distance).min() < 1e-6


@pytest.mark.parametrize("weight", [0.0, -0.0])
@pytest.mark.parametrize("shift", [0.5, 0.0, -0.5])
@torch.no_grad()
def test_a_hidden_unit_of_fire_without_a_weight_is_the_same_in_pieces(weight, shift, arch):
    """Its ReLU has no bend: it is a number everywhere, or 0."""
    encoding = make_position("fire", arch)
    encoding.init_weights(generator())
    encoding.inner.weight[7] = weight
    encoding.inner.bias[7] = shift
    relative = torch.linspace(0, 1, 50)
    assert torch.allclose(encoding.pieces()(relative), encoding.mlp(relative), atol=1e-6)
