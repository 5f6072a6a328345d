"""Intervals and tests over seeds, against SciPy's and by their properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tape_exp.artifacts.averages import trials_of
from tape_exp.results.statistics import (
    Value,
    holm,
    lead,
    over_samples,
    over_seeds,
    over_trials,
    paired,
)

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


def seeds(numbers: list[float]) -> Value:
    return over_seeds({seed: Value(number) for seed, number in enumerate(numbers)})


def test_the_interval_is_students():
    numbers = [1.0, 2.0, 4.0]
    value = seeds(numbers)
    ends = stats.t.interval(0.95, 2, loc=sum(numbers) / 3, scale=stats.sem(numbers))
    assert (value.low, value.high) == pytest.approx(ends)
    assert seeds([3.0]).low is None


def test_the_paired_test_is_scipys():
    ours, theirs = [1.0, 2.0, 4.0], [2.0, 2.5, 6.0]
    found, expected = paired(seeds(ours), seeds(theirs)), stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.value.low, found.value.high) == pytest.approx(interval)


def test_only_seeds_of_both_count():
    ours = over_seeds({0: Value(1.0), 2: Value(5.0)})
    theirs = over_seeds({2: Value(3.0), 3: Value(9.0)})
    assert (lead(ours, theirs).number, paired(ours, theirs).p) == (2.0, None)
    assert paired(ours, over_seeds({7: Value(1.0)})) is None


@pytest.mark.parametrize(("n", "p"), [(2, 0.5), (3, 0.25), (6, 0.03125)])
def test_equal_differences_have_the_p_of_the_sign_test_and_no_interval(n, p):
    """Differences of 100, of 0.1 but for the last bits, and of 0."""
    zero = seeds([0.0] * n)
    assert p == stats.binomtest(n, n).pvalue
    for ours, theirs in ((seeds([100.0] * n), zero), (zero, seeds([100.0] * n))):
        found = paired(ours, theirs)
        assert (found.p, found.is_constant) == (p, True)
        assert (abs(found.value.number), found.value.low, found.value.n) == (100, None, n)
    numbers = [float(number) for number in range(n)]
    assert paired(seeds([number + 0.1 for number in numbers]), seeds(numbers)).p == p
    for same in (zero, seeds(numbers)):
        found = paired(same, same)
        assert (found.p, found.value.number, found.is_constant) == (1, 0, False)


@given(NUMBERS, st.floats(-50, 50))
def test_what_is_common_to_both_leaves_the_difference(numbers, shift):
    moved = [number + shift for number in numbers]
    assert lead(seeds(moved), seeds(numbers)).number == pytest.approx(shift, abs=1e-9)


def test_holm_of_a_known_family():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_raw_and_bonferroni(p):
    adjusted = holm(p)
    for raw, new in zip(p, adjusted, strict=True):
        assert raw <= new <= min(1.0, len(p) * raw) + 1e-12
    order = sorted(range(len(p)), key=lambda i: p[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_samples_that_all_seeds_share_do_not_average_out():
    runs = {seed: Value(50.0 + seed, 40.0 + seed, 60.0 + seed) for seed in range(3)}
    assert over_samples(runs).high - over_samples(runs).number > 10
    assert over_samples({0: runs[0]}).high == 60


def test_trials_of_all_seeds_are_pooled():
    value = over_trials({0: Value(35.0), 1: Value(35.0)}, trials=20)
    ends = stats.binomtest(14, 40).proportion_ci(method="wilson")
    assert (value.low, value.high) == pytest.approx((100 * ends.low, 100 * ends.high))


def test_trials_are_all_alike_or_those_of_the_length_of_a_metric():
    task = {"trials": [20, 10], "lengths": [2048, 8192]}
    assert trials_of(task, "passkey/accuracy@8192") == 10
    assert trials_of(task, "passkey/accuracy@2048") == 20
    assert trials_of(task | {"trials": 7}, "passkey/accuracy@2048") == 7
