"""Propositions 1 and 2: which variants of TAPE satisfy which equation, and the printed formulas
that would not.
"""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tape_exp.models.places import Places
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.models.scores import Scores
from tape_exp.theory import HOLDS, PROPERTIES
from tape_exp.theory.propositions import ARCH, Case, cases, layer_errors, shift_error


@cache
def variants() -> list[Case]:
    """Those of the report, and one more way to mix heads."""
    known = cases()
    tensor = next(case.general for case in known if case.variant == "tape_tensor")
    scaled = tensor | {"head_mixing": "scale"}
    return [*known, Case("scaled", "rope", scaled, scaled)]


def holding(case: Case) -> set[str]:
    """The properties that a variant has."""
    if not case.general["equivariant"]:
        return {"permutation"}
    if case.general["weights"] == "full":
        return {"permutation", "rotation"}
    if case.general["R"] == 1:  # O(1) holds no shift
        return {"permutation", "rotation", "rotations"}
    return set(PROPERTIES)


@pytest.mark.long
def test_variants_with_and_without_each_property_are_there_from_both_starts():
    for name in ("tape_full", "tape_no_attention", "tape_no_equivariance"):
        assert {case.initial for case in variants() if case.variant == name} == {"rope", "fourier"}
    assert {len(holding(case)) for case in variants()} == {1, 2, 3, 4}
    assert len({str(case) for case in variants()}) == len(variants())


@settings(max_examples=40, deadline=None)
@given(
    case=st.deferred(lambda: st.sampled_from(variants())),
    seed=st.integers(0, 10_000),
    T=st.integers(4, 12),
    shift=st.floats(1, 2000),
)
@pytest.mark.slow
def test_mixing_frequencies_satisfies_the_equation_and_breaks_the_shift(case, seed, T, shift):
    """f(PX, PE, PMPᵀ) = P f(X, E, M), f(X, ER, M) = f(X, E, M), and g likewise. One O(R) for all
    blocks is what the equation asks for; a shift applies one of its own to each, which is the
    counter-example to proposition 2 as stated.
    """
    errors = layer_errors(case, seed, T) | {"shift": shift_error(case, seed, shift)}
    assert {name for name, error in errors.items() if error < HOLDS} == holding(case)
    assert all(error < HOLDS or error > 1e-5 for error in errors.values())


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
    assert torch.equal(weights_of(q, later)[:-1], weights[:-1])
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
        encoding.start(Places.at(positions + by))[0, :, 0, 0] for by in (0.0, shift, -shift)
    )  # first block
    theta = encoding.theta ** -torch.tensor(0.6180339887498949, dtype=torch.float64)
    angle = theta * shift
    O = torch.stack(  # noqa: E741
        [torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])]
    )
    assert torch.allclose(E @ O, earlier, atol=1e-9)
    assert torch.allclose(E @ O.T, later, atol=1e-9)
    assert (E @ O - later).abs().max() > 1e-3
