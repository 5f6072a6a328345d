"""Propositions 1 and 2: which variants of TAPE satisfy which equation, and the printed formulas
that would not.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tape_exp.models.attention import Scores
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.theory import HOLDS
from tape_exp.theory.propositions import ARCH, cases, layer_errors, shift_error

CASES = cases()
NOT_EQUIVARIANT = [case for case in CASES if not case.general["equivariant"]]
MIXES_FREQUENCIES = [case for case in CASES if case.general["weights"] == "full"]
NO_ROTATION_AT_ALL = [case for case in CASES if case.general["R"] == 1]  # O(1) holds no shift
STABLE = [
    case
    for case in CASES
    if case not in (*NOT_EQUIVARIANT, *MIXES_FREQUENCIES, *NO_ROTATION_AT_ALL)
]


def test_every_variant_is_there_from_both_starts():
    assert {case.variant for case in CASES} >= {
        "tape",
        "tape_tensor",
        "tape_full",
        "tape_fourier",
        "tape_neither",
        "tape_yarn",
    }
    for name in ("tape_full", "tape_no_attention", "tape_no_equivariance"):
        assert {case.initial for case in CASES if case.variant == name} == {"rope", "fourier"}
    assert NOT_EQUIVARIANT
    assert MIXES_FREQUENCIES
    assert NO_ROTATION_AT_ALL
    assert len({str(case) for case in CASES}) == len(CASES)


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 10_000), T=st.integers(2, 12))
def test_permutations_commute_with_every_variant(case, seed, T):
    """f(PX, PE, PMPᵀ) = P f(X, E, M) and g likewise, the mask permuted too."""
    assert layer_errors(case, seed, T)["permutation"] < HOLDS


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from([c for c in CASES if c not in NOT_EQUIVARIANT]),
    seed=st.integers(0, 10_000),
)
def test_rotations_and_reflections_commute_with_every_equivariant_variant(case, seed):
    """f(X, ER, M) = f(X, E, M) and g(X, ER, M) = g(X, E, M) R for R ∈ O(R)."""
    assert layer_errors(case, seed)["rotation"] < HOLDS


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(STABLE), seed=st.integers(0, 1000), shift=st.floats(-2000, 2000))
def test_no_real_shift_changes_what_a_stable_variant_computes(case, seed, shift):
    assert shift_error(case, seed, shift) < HOLDS


@pytest.mark.parametrize("case", NOT_EQUIVARIANT, ids=str)
def test_mixing_over_r_breaks_both(case):
    assert layer_errors(case, 0)["rotation"] > 0.1
    assert shift_error(case, 0, 3.7) > 1e-3


@pytest.mark.parametrize("case", MIXES_FREQUENCIES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_mixing_frequencies_satisfies_the_equation_and_breaks_the_shift(case, seed):
    """The counter-example to proposition 2 as stated: one O(R) for all blocks is not what a shift
    applies.
    """
    errors = layer_errors(case, seed)
    assert max(errors["permutation"], errors["rotation"]) < HOLDS
    assert errors["rotations"] > 0.1
    assert shift_error(case, seed, 3.7) > 1e-3


def test_two_frequencies_added_by_hand():
    """e = e_1 + e_2 turns with E as the equation asks, but eᵢ eⱼᵀ holds cos(θ_1 i - θ_2 j), which a
    shift changes.
    """
    positions = torch.arange(6, dtype=torch.float64)[None]
    gram = []
    for shift in (0.0, 1.3):
        E = TensorTAPE(ARCH).start(positions + shift)[0, :, 0]  # (T, M, 2, 2)
        mixed = E[:, 0] + E[:, 1]
        gram.append(torch.einsum("ilr,jkr->ijlk", mixed, mixed))
        quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
        assert torch.allclose((E @ quarter)[:, 0] + (E @ quarter)[:, 1], mixed @ quarter)
    assert (gram[1] - gram[0]).abs().max() > 0.1


@pytest.mark.parametrize("case", NO_ROTATION_AT_ALL, ids=str)
def test_flattened_to_scalars_the_start_is_not_turned_by_a_shift(case):
    assert layer_errors(case, 0)["rotations"] < HOLDS
    assert shift_error(case, 0, 3.7) > 1e-2


# Printed formulas that change a value.


def weights_of(q, k):
    """What attention averages with, (T, T)."""
    return Scores(q.transpose(1, 2), k.transpose(1, 2)).probabilities()[0, 0]


def test_printed_denominator_sees_the_future():
    """Eq. (g_attn) prints M_{i,j} under the sum over j': weights then sum to less than 1 and depend
    on later tokens.
    """
    q, k = torch.randn(
        2, 1, 8, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    mask = torch.ones(8, 8, dtype=torch.float64).tril()

    def printed(k):
        exponentials = (torch.einsum("bthd,bshd->bhts", q, k) / 2).exp()[0, 0]
        return mask * exponentials / exponentials.sum(-1, keepdim=True)

    weights = weights_of(q, k)
    assert torch.allclose(weights.sum(-1), torch.ones(8, dtype=torch.float64))
    assert (printed(k).sum(-1)[:-1] < 1 - 1e-3).all()
    later = k.clone()
    later[:, -1] += 1
    assert torch.equal(
        weights_of(q, later)[:-1],
        weights[:-1],
    )
    assert (printed(later)[:-1] - printed(k)[:-1]).abs().max() > 1e-3


def test_weights_of_one_block_are_not_those_that_all_blocks_share():
    """Eq. (g_attn) prints a softmax of every block's own logits, eq. (f_attn) one of their sum."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, 1, 6, generator=generator, dtype=torch.float64)
    C = torch.randn(1, 8, 1, 6, generator=generator, dtype=torch.float64)
    C_TML = C[0, :, 0].unflatten(-1, (3, 2))
    logits = torch.einsum("btml,bsml->mts", *(x[:, :, 0].unflatten(-1, (3, 2)) for x in (q, k)))
    logits = (logits / 6**0.5).masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -torch.inf)
    shared, own = logits.sum(0).softmax(-1), logits.softmax(-1)
    attended = (weights_of(q, k) @ C[0, :, 0]).unflatten(-1, (3, 2))
    assert torch.allclose(attended, torch.einsum("ts,sml->tml", shared, C_TML))
    assert (attended - torch.einsum("mts,sml->tml", own, C_TML)).abs().max() > 0.1


def test_printed_frequencies_are_not_those_of_rope():
    """θ_m = -10000^{2m/C} turns by 1 radian a token and more, up to thousands; RoPE's by 1 and
    less.
    """
    C = ARCH.head_dim
    m = torch.arange(C // 2, dtype=torch.float64)
    frequencies, _ = RoPE(ARCH).frequencies(torch.zeros(1, dtype=torch.float64))
    assert torch.allclose(10_000.0 ** (-2 * m / C), frequencies)
    printed = -(10_000.0 ** (2 * m / C))
    assert printed[1:].abs().min() > 1 >= frequencies.max()


def test_printed_rotation_of_fourier_features_shifts_backward():
    """[cos a, sin a] O with the printed O is the feature of a - θΔ; its transpose gives a + θΔ."""
    encoding = TensorTAPE(ARCH, initial="fourier", R=2)
    positions, shift = torch.arange(5, dtype=torch.float64)[None], 1.7
    E, later, earlier = (
        encoding.start(positions + by)[0, :, 0, 0] for by in (0.0, shift, -shift)
    )  # first block
    theta = encoding.theta ** -torch.tensor(0.6180339887498949, dtype=torch.float64)
    angle = theta * shift
    O = torch.stack(  # noqa: E741
        [torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])]
    )
    assert torch.allclose(E @ O, earlier, atol=1e-9)
    assert torch.allclose(E @ O.T, later, atol=1e-9)
    assert (E @ O - later).abs().max() > 1e-3
