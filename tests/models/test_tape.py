"""TAPE: equal to RoPE at the start, equal to its oracle, equivariant as the paper's propositions
say.
"""

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tape_exp.artifacts.artifact import reported
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import ARCH, randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Scaling
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_complex import ComplexTAPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, make_decoder, make_position

TAPES = [m for m in MODELS if m.startswith("tape")]
OTHER_STARTS = ("fourier", "yarn", "no_tensor", "neither", "public_addition", "randpe", "constant")
ROPE_STARTS = [m for m in TAPES if m.removeprefix("tape_") not in OTHER_STARTS]
LAYOUTS = [{}, {"L": 1, "R": 4}, {"L": 4, "R": 1}]
AT_24 = Places.at(torch.arange(24.0)[None])
TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


STARTS = [*(("rope", name) for name in ROPE_STARTS), ("nope", "tape_constant")]
STARTS += [("rope_yarn", "tape_yarn"), ("randpe", "tape_randpe")]
STARTS += [("rope", "rope_temperature"), ("nope", "nope_temperature")]


@pytest.mark.parametrize(("start", "name"), STARTS)
def test_step_zero_is_exactly_rope(start, name, arch):
    """Or what else a variant begins from."""
    logits = [make_decoder(one, arch)(TOKENS, sampler=RowSampler(5)) for one in (start, name)]
    assert (logits[0] - logits[1]).abs().max() <= 1e-6


def test_a_state_of_unit_size_turns_and_keeps_its_size(arch):
    model, states = make_decoder("tape_unit", arch), []
    randomise(model, std=0.3)
    model(TOKENS, watch=lambda block, scores, state: states.append(state.detach()))
    assert (states[-1].norm(dim=-2) - 1).abs().max() < 1e-5
    assert (states[-1] - states[0]).abs().max() > 0.1


GROUPED = dataclasses.replace(ARCH, layers=3, kv_heads=2, head_size=12, digits=())


def test_tape_yarn_is_stretched_from_the_first_step(arch):
    """In training as at evaluation; model.scaling.when=evaluation trains unstretched TAPE."""
    late = make_position("tape_yarn", arch, "model.scaling.when=evaluation")
    plain, yarn = (make_position(name, arch) for name in ("tape", "tape_yarn"))
    unstretched, stretched = (x.start(AT_24) for x in (plain, yarn.train()))
    assert (stretched - unstretched).abs().max() > 0.1
    assert torch.equal(late.train().start(AT_24), unstretched)
    assert torch.equal(late.eval().start(AT_24), stretched)


def test_the_public_code_for_addition_is_nope_with_the_parameters_of_tape(arch):
    nope, tape, public = (
        make_decoder(name, arch) for name in ("nope", "tape", "tape_public_addition")
    )
    assert torch.equal(public(TOKENS), nope(TOKENS))
    shapes = [
        {name: p.shape for name, p in model.blocks()[0].position.named_parameters()}
        for model in (tape, public)
    ]
    assert {f"unread.{name}": shape for name, shape in shapes[0].items()} == shapes[1]
    assert public.positional_count() == tape.positional_count()
    for parameter in public.blocks()[-1].position.parameters():
        assert not parameter.requires_grad  # nothing would give it a gradient


@pytest.mark.parametrize("name", ["tape", "tape_householder"])
def test_gradients_reach_every_update_within_two_steps(name, arch):
    """P, W2 and U' begin at zero; W1 and W_x wait for W2."""
    model = make_decoder(name, arch)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten()
        ).backward()
        optimizer.step()
    position = model.layers[0].position
    for name, parameter in position.update_net.items():
        assert parameter.grad.abs().max() > 0, name


OPTIONS = [{}, {"psi_input": "mlp"}, {"head_mixing": "scale"}, {"attention": False}]
OPTIONS += [{"feed_forward": False}, {"attention": False, "feed_forward": False}]
OPTIONS += [{"intermediate": 1}]


def compare(make, make_oracle):
    """Two encodings with the same parameters give the same outputs and gradients, none of it 0."""
    fast = Decoder(GROUPED, make).double()
    oracle = Decoder(GROUPED, make_oracle).double()
    randomise(fast)
    oracle.load_state_dict(fast.state_dict())
    positions = torch.arange(24, dtype=torch.float64)[None]
    outputs = [model(TOKENS, positions_BT=positions) for model in (fast, oracle)]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-10
    for output in outputs:
        output.square().mean().backward()
    for (name, a), b in zip(fast.named_parameters(), oracle.parameters(), strict=True):
        if a.requires_grad:
            assert a.grad.abs().max() > 0, name
            assert (a.grad - b.grad).abs().max() < 1e-10, name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_complex_form_equals_the_general_one(options):
    """Outputs and every gradient, in fp64."""
    compare(lambda a: TAPE(a, **options), lambda a: TensorTAPE(a, **options))


class EquationOfComplexTAPE(ComplexTAPE):
    """E + P Ẽ, then E + W2 diag(ψ_r + i ψ_i) W1ᵀ E, in complex numbers and literally."""

    def update(self, state, averaged_BTHE, tokens, places):
        B, T = tokens.x.shape[:2]
        E = torch.complex(*state.expand(B, T, self.arch.heads, -1, -1).unbind(-2))
        if averaged_BTHE is not None:
            average = torch.complex(*averaged_BTHE.unflatten(-1, (2, -1)).unbind(-2))
            E = E + self.head_map(E.real.dtype).to(E.dtype) @ average
        if self.feed_forward:
            x = tokens.attention if self.psi_input == "attention" else tokens.mlp
            net = self.update_net
            psi = torch.complex(*(F.silu(x @ net[name].T) for name in ("wx", "wy")))
            w1, w2 = net["w1"].to(E.dtype), net["w2"].to(E.dtype)
            E = E + w2 @ torch.diag_embed(psi) @ w1 @ E
        return torch.stack([E.real, E.imag], -2)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_complex_psi_equals_its_equation(options):
    """Outputs and every gradient, in fp64."""
    compare(lambda a: ComplexTAPE(a, **options), lambda a: EquationOfComplexTAPE(a, **options))


def test_complex_psi_has_two_maps_of_the_token(arch):
    tape, complex_ = (
        dict(make_position(n, arch).named_parameters()) for n in ("tape", "tape_complex")
    )
    assert complex_.keys() - tape.keys() == {"update_net.wy"}
    assert complex_["update_net.wy"].shape == tape["update_net.wx"].shape


@pytest.mark.parametrize(("mirrored", "equivariant"), [(False, True), (True, False)])
def test_complex_psi_commutes_with_rotations_and_not_with_mirrors(mirrored, equivariant, arch):
    """The update of E R is the update of E, times R, for a rotation R of every block's two columns;
    TAPE's own, whose ψ is real, allows mirrors too.
    """
    angles = torch.randn(4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    by = torch.polar(torch.ones_like(angles), angles)

    def moved(state):
        E = torch.complex(*state.unbind(-2)) * by
        E = E.conj() if mirrored else E
        return torch.stack([E.real, E.imag], -2)

    differences = {}
    for name in ("tape", "tape_complex"):
        encoding = make_position(name, arch).double()
        randomise(encoding)
        generator = torch.Generator().manual_seed(2)
        E, average = torch.randn(2, 1, 5, 4, 2, 4, generator=generator, dtype=torch.float64)
        x = torch.randn(3, 1, 5, 32, generator=generator, dtype=torch.float64)
        outputs = LayerOutputs(*x)
        after = moved(encoding.update(E, average.flatten(3), outputs, None))
        found = encoding.update(moved(E), moved(average).flatten(3), outputs, None)
        differences[name] = (found - after).abs().max()
    assert differences["tape"] < 1e-12
    assert (differences["tape_complex"] < 1e-12) == equivariant


def test_complex_psi_lets_a_token_turn_its_own_position(arch):
    """Also without attention, where TAPE's own update can only scale."""
    model, states = make_decoder("tape_complex", arch, "model.attention=false"), []
    randomise(model, std=0.3)
    model(TOKENS, watch=lambda block, scores, state: states.append(state.detach()))
    E = [torch.complex(*state.double().unbind(-2)) for state in states]
    turned = (E[-1] / E[0]).angle()
    assert torch.minimum(turned.abs(), math.pi - turned.abs()).max() > 0.1


def state_and_input(encoding, arch: Arch, seed: int, N: int = 7):
    """A random general state with its token features, fp64."""
    generator = torch.Generator().manual_seed(seed)
    M_L_R = encoding.start(Places.at(torch.zeros(1, 1))).shape[3:]
    E = torch.randn(1, N, arch.heads, *M_L_R, generator=generator, dtype=torch.float64)
    q, k, v = torch.randn(
        3, 1, N, arch.heads, arch.head_dim, generator=generator, dtype=torch.float64
    )
    x = torch.randn(1, N, arch.width, generator=generator, dtype=torch.float64)
    return E, q, k, v, x


def logits_of(encoding, E, q, k):
    """α, as ``attend`` scales it: by the width of the rotated queries."""
    q, k = encoding.rotate(q, k, None, E, None)  # x and places are not read
    return torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_logits_are_the_papers_sum_over_blocks(layout, arch):
    """α_ij = Σ_m q_{i,m}ᵀ φ(e_{i,m} e_{j,m}ᵀ) k_{j,m} / √d, written out: eq. (f_attn)."""
    encoding = TensorTAPE(arch, **layout).double()
    E, q, k, _, _ = state_and_input(encoding, arch, 3, N=4)
    got = logits_of(encoding, E, q, k)
    M, L = E.shape[3:5]
    for i, j, h in itertools.product(range(4), range(4), range(arch.heads)):
        expected = 0.0
        for m in range(M):
            gram = E[0, i, h, m] @ E[0, j, h, m].T
            phi = gram if L > 1 else gram * torch.eye(2, dtype=torch.float64)
            expected += q[0, i, h, m::M] @ phi @ k[0, j, h, m::M]
        assert abs(got[0, h, i, j] - expected / arch.head_dim**0.5) < 1e-10


@pytest.mark.parametrize("method", ["none", "linear", "ntk", "yarn"])
def test_flattened_layouts_begin_from_ropes_angles_however_stretched(method, arch):
    positions, scaling = torch.arange(20, dtype=torch.float64)[None], Scaling(method)
    cos, sin = RoPE(arch, scaling=scaling).start(Places.at(positions)).unbind(-2)
    flat = torch.stack([cos, sin, -sin, cos], -1)
    vectors = TensorTAPE(arch, scaling=scaling, L=1, R=4).start(Places.at(positions))
    assert torch.allclose(vectors.squeeze(-2), flat / 2**0.5, atol=1e-12)
    scalars = TensorTAPE(arch, scaling=scaling, L=4, R=1).start(Places.at(positions))
    assert torch.equal(scalars.squeeze(-1), flat[..., ::2, :])


def test_update_is_the_papers_mlp_on_the_attended_state(arch):
    """E + P Ẽ, then E + W2 diag(ψ(x)) W1ᵀ E, for one token by hand."""
    encoding = TAPE(arch).double()
    randomise(encoding)
    generator = torch.Generator().manual_seed(2)
    E = torch.randn(1, 1, 4, 2, 4, generator=generator, dtype=torch.float64)
    attended = torch.randn(1, 1, 4, 8, generator=generator, dtype=torch.float64)
    x = torch.randn(1, 1, 32, generator=generator, dtype=torch.float64)
    net = encoding.update_net
    middle = E[0, 0].flatten(1) + net.p @ attended[0, 0]
    psi = torch.nn.functional.silu(net.wx @ x[0, 0])
    expected = middle + net.w2 @ torch.diag(psi) @ net.w1 @ middle
    found = encoding.update(E, attended, LayerOutputs(0 * x, x, 0 * x), None)[0, 0].flatten(1)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("attention", "turns"), [(False, False), (True, True)])
def test_without_attention_the_update_scales_positions_and_cannot_turn_them(attention, turns, arch):
    """W2 diag(ψ) W1ᵀ is real, and all heads begin with the phase of RoPE, so that only Ẽ, which
    comes from other tokens, brings another phase.
    """
    words = [f"model.attention={str(attention).lower()}"]
    model = make_decoder("tape", dataclasses.replace(arch, layers=4), *words)
    randomise(model, std=0.3)
    states = []

    def watch(block, scores, state):
        states.append(torch.complex(*state.double().unbind(-2)))

    with torch.no_grad():
        model(torch.arange(24).view(2, 12) % 14, watch=watch)
    turned = (states[-1] * states[0].conj()).angle()
    beyond = torch.minimum(turned.abs(), math.pi - turned.abs()).max()  # a gain may be negative
    assert (beyond > 0.1) == turns
    assert (beyond < 1e-5) == (not turns)
    assert (states[-1].abs() / states[0].abs() - 1).abs().max() > 0.1


def test_no_position_reaches_the_logits_of_the_public_code_for_addition(arch):
    """Whatever its parameters are; TAPE's logits change under the same change of positions."""
    shuffled = torch.randperm(24, generator=torch.Generator().manual_seed(3))[None]
    changes = {}
    for name in ("tape_public_addition", "tape"):
        model = make_decoder(name, arch)
        randomise(model)
        changes[name] = (model(TOKENS) - model(TOKENS, positions_BT=shuffled)).abs().max()
    assert changes["tape_public_addition"] == 0
    assert changes["tape"] > 1e-2


PAPER = Arch(layers=12, width=768, heads=12, ffn=3072)


def test_without_tensors_each_pair_starts_weighted_by_a_cosine(arch):
    """Σ_m (q_m·k_m) cos θ_m(i - j) / √d, and nothing else, at step 0."""
    encoding = TensorTAPE(arch, L=1, R=4)
    positions = torch.arange(6, dtype=torch.float64)
    q, k = torch.randn(
        2, 1, 6, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    theta = 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    cosines = torch.cos(theta * (positions[:, None, None] - positions[:, None]))
    dots = torch.einsum("bthcm,bshcm->bhtsm", q.unflatten(-1, (2, -1)), k.unflatten(-1, (2, -1)))
    expected = (dots * cosines).sum(-1) / 8**0.5
    assert (
        logits_of(encoding, encoding.start(Places.at(positions[None])), q, k) - expected
    ).abs().max() < 1e-12


def test_scalar_blocks_depend_on_absolute_positions_from_the_first_step(arch):
    """Logits of step 0, of the size that RoPE's have, move with a shift that leaves every other
    layout's alone.
    """
    q, k = torch.randn(
        2, 1, 24, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    positions = torch.arange(24, dtype=torch.float64)[None]
    moved, size = [], []
    for layout in LAYOUTS:
        encoding = TensorTAPE(arch, **layout)
        before, after = (
            logits_of(encoding, encoding.start(Places.at(positions + by)), q, k) for by in (0, 3)
        )
        moved.append((after - before).abs().max().item())
        size.append(before.std().item())
    assert max(moved[:2]) < 1e-12
    assert moved[2] > 1
    assert size[2] == pytest.approx(size[0], rel=0.1)


def added_by_tape() -> float:
    """Parameters of the paper's table flops, in units of 2^20."""
    counts = reported()["tab_flops"]["parameters_m"]
    return counts["tape"] - counts["rope"]


def test_only_maps_over_heads_fit_the_papers_count():
    """W1 and W2 of H × I fit; of ML × I or HML × I they do not."""
    inner, blocks = 4 * PAPER.heads, PAPER.head_dim  # M L: blocks of two channels, L = 2
    sizes = {
        rows: PAPER.layers * (2 * rows * inner + inner * PAPER.width) / 2**20
        for rows in (PAPER.heads, blocks, PAPER.heads * blocks)
    }
    assert [n for n, x in sizes.items() if abs(x - added_by_tape()) < 0.01] == [PAPER.heads]


def test_the_papers_count_has_no_room_for_a_second_layer_of_psi():
    """ψ as one map fits, with another I × I not."""
    encoding = make_position("tape", PAPER)
    one = 12 * sum(p.numel() for p in encoding.parameters()) / 2**20
    assert one == pytest.approx(added_by_tape(), abs=0.01)  # each of the two is rounded to 0.01
    assert one + 12 * encoding.update_net.wx.shape[0] ** 2 / 2**20 > added_by_tape() + 0.01


def test_features_without_angles_are_not_stretched(arch):
    words = ["+model.scaling.method=linear", "+model.scaling.factor=8"]
    with pytest.raises(ConfigError, match=r"scaling\.method=linear stretches RoPE's angles"):
        make_decoder("tape_fourier", arch, *words)
