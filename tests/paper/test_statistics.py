"""Statistics against scipy's, against published examples, and against what they must never say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tape_exp.paper.page import AFTER
from tape_exp.paper.statistics import ends, holm, lead, paired, resampled
from tape_exp.paper.values import NOT_RUN, Value, over_seeds
from tape_exp.runs.evaluation import wilson

NUMBERS = st.lists(st.floats(0, 100, allow_subnormal=False), min_size=2, max_size=8)


def of_samples(correct: int, trials: int) -> Value:
    """A percentage with Wilson's interval."""
    return Value(100 * correct / trials, *wilson(correct, trials))


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(values))


def test_paired_is_scipys():
    ours, theirs = [32.8, 31.1, 30.2, 35.0], [26.3, 27.0, 24.9, 25.5]
    known = stats.ttest_rel(ours, theirs)
    low, high = known.confidence_interval(0.95)
    found = paired(by_seed(ours), by_seed(theirs))
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half == pytest.approx((high - low) / 2)
    assert found.p == pytest.approx(known.pvalue)
    assert found.n == 4


@given(NUMBERS, st.floats(-50, 50))
def test_what_is_common_to_both_leaves_the_difference(values, shift):
    found = paired(by_seed(v + shift for v in values), by_seed(values))
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.half == pytest.approx(0, abs=1e-9)


def test_only_seeds_of_both_count():
    found = paired({0: 1.0, 1: 5.0, 7: 100.0}, {0: 0.0, 1: 3.0, 8: -100.0})
    assert (found.mean, found.n) == (1.5, 2)
    assert paired({0: 1.0}, {1: 1.0}) is None
    one = paired({0: 3.0}, {0: 1.0})
    assert (one.mean, one.half, one.p) == (2.0, None, None)


def test_differences_without_spread_have_no_p():
    assert paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).p is None
    assert paired({0: 9.0, 1: 9.1}, {0: 1.0, 1: 1.1}).p is None, "equal but for rounding"


def test_a_lead_is_written_with_the_interval_of_the_pairs():
    ours, theirs = over_seeds({0: 3.0, 1: 5.0, 2: 7.0}), over_seeds({0: 1.0, 1: 3.5, 2: 5.5})
    assert str(lead(ours, theirs)) == "+1.67 ± 0.72"
    assert str(lead(over_seeds({0: 3.0}), theirs)) == "+2.00"
    assert str(lead(over_seeds({9: 3.0}), theirs)) == ""
    assert lead(NOT_RUN, theirs) is NOT_RUN


def test_holm_of_a_known_family():
    """Three tests: 0.01 · 3, 0.02 · 2, and 0.03 · 1 raised to the one before."""
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_raw_and_bonferroni(p):
    adjusted = holm(p)
    for raw, more in zip(p, adjusted, strict=True):
        assert raw <= more <= min(1.0, len(p) * raw) or more == pytest.approx(raw)
    assert [adjusted[i] for i in np.argsort(p)] == sorted(adjusted)


def test_one_of_twenty_against_none_is_no_difference():
    """Three seeds, 5, 5, 5 % against 0, 0, 0 % of 20 trials: Fisher's p of 3/60 and 0/60 is 0.24,
    while the spread over seeds, which is zero, would call it certain.
    """
    assert stats.fisher_exact([[3, 57], [0, 60]]).pvalue == pytest.approx(0.244, abs=1e-3)
    assert paired(by_seed([5.0] * 3), by_seed([0.0] * 3)).half == 0
    ours, theirs = resampled([[of_samples(1, 20)] * 3, [of_samples(0, 20)] * 3])
    low, high = ends(ours - theirs)
    assert low < 0 < high


def test_a_large_difference_of_many_samples_is_found():
    shares = ([3300, 3200, 3500], [2600, 2700, 2500])
    ours, theirs = resampled([[of_samples(k, 10_000) for k in each] for each in shares])
    low, high = ends(ours - theirs)
    assert 3 < low < 7 < high < 12


def test_both_levels_widen_the_interval():
    few, many = (np.ptp(ends(resampled([[of_samples(n // 2, n)] * 3])[0])) for n in (20, 20_000))
    spread = np.ptp(ends(resampled([[of_samples(k, 20_000) for k in (8000, 10_000, 12_000)]])[0]))
    assert many < 1.5 < spread < few < 45


def test_more_seeds_do_not_make_up_for_few_samples_that_all_of_them_share():
    """Three seeds with 12 of 20: Wilson's interval of 20 if they are the same, of 60 if not."""
    agree = [[of_samples(12, 20)] * 3]
    shared, fresh = (np.ptp(ends(resampled(agree, fresh=fresh)[0])) for fresh in (False, True))
    assert shared == pytest.approx(np.ptp(wilson(12, 20)), rel=0.05)
    assert fresh == pytest.approx(np.ptp(wilson(36, 60)), rel=0.05)


def test_the_bootstrap_agrees_with_the_error_of_a_mean():
    """Many seeds without intervals: ± 1.96 standard errors."""
    numbers = np.random.default_rng(1).normal(50, 10, 100)
    low, high = ends(resampled([[Value(n) for n in numbers]])[0])
    half = 1.96 * numbers.std() / 10
    assert low == pytest.approx(numbers.mean() - half, abs=0.1)
    assert high == pytest.approx(numbers.mean() + half, abs=0.1)


def test_whole_numbers_keep_the_ends_of_their_intervals():
    whole, decimal = (
        ends(resampled([[Value(kind(2), 1.5, 2.5), Value(kind(4), 3.5, 4.5)]])[0])
        for kind in (int, float)
    )
    assert whole == decimal


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_a_difference_is_found_in_four_of_five_cases_if_it_is_so_much_larger(seeds):
    """By the paired t test, as a multiple of the usual half-width of its interval."""
    assert "four of five such experiments find a true difference only if it is 1.5 to 2" in AFTER
    bound = stats.t.ppf(0.975, seeds - 1)
    usual = bound * np.sqrt(stats.chi2.median(seeds - 1) / (seeds - 1))
    found = [stats.nct.sf(bound, seeds - 1, ratio * usual) for ratio in (1.45, 2.0)]
    assert found[0] < 0.8 < found[1]
