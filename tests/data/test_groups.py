"""Groups: the axioms, what letters generate, and products of words."""

import numpy as np
import pytest

from tape_exp.data.groups import GROUPS

SIZES = {"parity": (2, 2), "s3": (6, 3), "a5": (60, 20), "s5": (120, 10)}  # elements, letters


@pytest.mark.parametrize("name", GROUPS)
def test_tables_are_groups(name):
    group = GROUPS[name]()
    size = len(group.elements)
    assert (size, len(group.letters)) == SIZES[name]
    assert (group.table[0] == np.arange(size)).all()
    assert (group.table[:, 0] == np.arange(size)).all()
    for lines in (group.table, group.table.T):  # a Latin square: everything has an inverse
        assert (np.sort(lines, 1) == np.arange(size)).all()
    a, b, c = np.random.default_rng(0).integers(0, size, (3, 2000))
    assert (group.table[group.table[a, b], c] == group.table[a, group.table[b, c]]).all()


@pytest.mark.parametrize("name", GROUPS)
def test_products_are_those_of_permutation_matrices(name):
    group = GROUPS[name]()
    matrices = [np.eye(len(p), dtype=int)[:, p] for p in group.elements]  # column v is e_{π(v)}
    words = group.letters[np.random.default_rng(1).integers(0, len(group.letters), (20, 15))]
    for word, states in zip(words, group.states(words), strict=True):
        product = matrices[0]
        for letter, state in zip(word, states, strict=True):
            product = product @ matrices[letter]
            assert (product == matrices[state]).all()


@pytest.mark.parametrize("name", GROUPS)
def test_the_best_guess_is_how_often_the_commonest_state_occurs(name):
    group = GROUPS[name]()
    words = group.letters[np.random.default_rng(2).integers(0, len(group.letters), (40_000, 6))]
    states = group.states(words)
    counted = [np.bincount(states[:, i]).max() / len(states) for i in range(6)]
    assert group.guess(6) == pytest.approx(counted, abs=0.015)
    assert group.guess(200)[-1] == pytest.approx(
        {"parity": 1 / 2, "s3": 1 / 3, "a5": 1 / 60, "s5": 1 / 60}[name]
    )
