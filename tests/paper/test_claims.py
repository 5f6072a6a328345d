"""Verdicts on claims: by hand, by simulation, and those of the paper's own numbers."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tape_exp.artifacts.artifact import Artifact, Claim, load, names
from tape_exp.artifacts.view import View
from tape_exp.paper import claims, outcomes
from tape_exp.paper.claims import contests
from tape_exp.paper.outcomes import NO, ONE_SEED, UNCLEAR, UNTESTED, YES, Contest
from tape_exp.paper.verdicts import Verdict, decide
from tape_exp.results.statistics import Value, over_seeds
from tape_exp.results.store import read_records
from tests.artifacts.fakes import CLAIM, record, runs, view


def verdict(view: View) -> Verdict:
    """On the one claim of an artifact."""
    (claim,) = view.artifact.claims
    return claims.verdict(view, claim)


values = st.lists(st.floats(-100, 100), min_size=0, max_size=4)


def contest(ours: list[float], *rivals: list[float], **options) -> Contest:
    named = zip("tbc", (ours, *rivals), strict=False)
    measured = {
        name: over_seeds({seed: Value(n) for seed, n in enumerate(numbers)})
        for name, numbers in named
        if numbers
    }
    return Contest("", "t", ["b", "c"][: len(rivals)], measured, {}, **options)


def test_every_key_of_a_claim_is_explained():
    assert claims.__doc__ is not None
    for key in fields(Claim):
        assert f"``{key.name}``" in claims.__doc__ or f" {key.name}:" in claims.__doc__, key.name


@pytest.mark.parametrize(
    ("ours", "rival", "outcome"),
    [
        ([9.0, 9.2], [1.0, 1.1], YES),
        ([1.0, 1.1], [9.0, 9.2], NO),
        ([9.0, 1.1], [8.0, 0.0], YES),
        ([9.0, 9.1], [1.0, 1.1], outcomes.FEW_SEEDS),
        ([9.0, 1.0], [0.0, 0.1], UNCLEAR),
        ([9.0], [1.0], ONE_SEED),
        ([9.0, 9.1, 9.2], [1.0], ONE_SEED),
        ([1.0], [9.0, 9.1], ONE_SEED),
        ([1.0], [1.0], UNCLEAR),
        ([9.0, 9.1], [], UNTESTED),
        ([], [9.0], UNTESTED),
    ],
)
def test_outcome_of_two(ours, rival, outcome):
    assert decide([contest(ours, rival)]).holds == outcome
    mirrored = {YES: NO, NO: YES}.get(outcome, outcome)
    assert decide([contest(ours, rival, higher=False)]).holds == mirrored


def test_one_difference_in_every_seed_is_told_by_the_sign_test():
    """Three seeds of 100 against 0 do not tell, and are no missing difference; six do."""
    found = decide([contest([100.0] * 3, [0.0] * 3)])
    assert found.holds == outcomes.FEW_SEEDS
    assert found.ours.endswith("(paired: +100.00 in each of 3 seeds, p = 0.25)")
    assert decide([contest([0.0] * 3, [100.0] * 3)]).holds == outcomes.FEW_SEEDS
    assert decide([contest([5.0] * 3, [5.0] * 3)]).holds == UNCLEAR
    assert decide([contest([100.0] * 6, [0.0] * 6)]).holds == YES
    assert decide([contest([0.0] * 6, [100.0] * 6)]).holds == NO


def test_one_rival_ahead_refutes_and_one_missing_leaves_it_open():
    assert decide([contest([5.0, 5.2], [1.0, 1.1], [9.0, 9.1])]).holds == NO
    assert decide([contest([5.0, 5.2], [1.0, 1.1], [])]).holds == UNTESTED
    assert decide([contest([9.0, 9.2], [1.0, 1.1]), contest([5.0], [1.0])]).holds == ONE_SEED
    assert decide([]).holds == UNTESTED


@given(values, values, values, st.booleans())
def test_a_claim_holds_only_where_a_paired_test_tells_every_rival_apart(ours, one, two, higher):
    holds = decide([contest(ours, one, two, higher=higher)]).holds
    assert holds in outcomes.PRIORITY
    for rival in (one, two) if holds == YES else ():
        n = min(len(ours), len(rival))
        found = stats.ttest_rel(ours[:n], rival[:n])
        assert n > 1
        assert found.pvalue < 0.05
        assert (found.statistic > 0) == higher


def test_comparisons_that_have_not_run_count_in_the_adjustment():
    """p is 0.042 of one rival: enough for one comparison, too little for one of two."""
    behind = ([1.0, 1.1], [3.0, 2.85])
    assert decide([contest(*behind)]).holds == NO
    assert decide([contest(*behind, [])]).holds == UNTESTED


def test_the_short_figures_are_of_the_pair_with_the_lowest_adjusted_p():
    """Both rivals are ahead; c is further ahead, and b with the smaller spread. The p of b, that of
    SciPy's test, is twice its own.
    """
    ours, near, far = [1.0, 1.3, 1.1], [3.0, 3.31, 3.1], [9.0, 7.0, 9.5]
    found = decide([contest(ours, near, far)])
    p = 2 * stats.ttest_rel(ours, near).pvalue
    assert found.short == f"t 1.13, b 3.14, p = {p:.2g}"
    one = decide([contest([9.0, 9.2], [1.0, 1.1], [1.1, 1.0])])
    assert (one.holds, one.short) == (YES, "t 9.10, c 1.05, p = 0.012")


def test_a_no_says_which_comparisons_refute():
    better, worse = ([9.0, 9.2], [1.0, 1.1]), ([1.0, 1.1], [9.0, 9.0])
    assert decide([contest(*worse)]).extent == ""
    two = [replace(contest(*pair), where=name) for pair, name in ((better, "16"), (worse, "32"))]
    assert decide(two).extent == "32"
    assert decide([contest([5.0, 5.2], [1.0, 1.1], [9.0, 9.1])]).extent == "1 of 2 comparisons"
    assert decide([contest(*better)]).extent == ""


def test_what_is_behind_by_less_than_the_margin_is_on_par():
    """By SciPy's test of the numbers with the margin added."""
    ours, rival = [88.0, 90.0, 86.0], [90.0, 91.0, 89.5]
    assert decide([contest(ours, rival)]).holds == UNCLEAR
    found = decide([contest(ours, rival, margin=8.0)])
    p = stats.ttest_rel(np.add(ours, 8.0), rival).pvalue
    assert (found.holds, found.short) == (YES, f"t 88.00, b 90.17, p = {p:.2g}")
    losses = [[-number for number in each] for each in (ours, rival)]
    assert decide([contest(*losses, margin=8.0, higher=False)]).holds == YES
    assert decide([contest([1.0, 2.0, 1.5], rival, margin=8.0)]).holds == NO


def test_several_lengths_of_one_model_are_one_comparison():
    """At each of three lengths the rival is ahead with p = 0.035, too little for three tests."""
    lengths, pairs = (16, 32, 64), {"rope": [10.0, 11.0, 12.0], "tape": [12.0, 14.0, 16.0]}
    records = [
        record(model, seed, {f"test/perplexity@{n}": value + n / 100 for n in lengths})
        for model, values in pairs.items()
        for seed, value in enumerate(values)
    ]
    columns = {"at {n}": {"each": {"n": list(lengths)}, "metric": "test/perplexity@{n}"}}
    claim = {"text": "", "at": {"at {n}": "perplexity"}, "lower": True, "than": ["rope"]}
    given = {"rows": {"model": ["rope", "tape"]}, "columns": columns}
    assert verdict(view(records, **given, claim=claim | {"every": True})).holds == UNCLEAR
    found = verdict(view(records, **given, claim=claim | {"pooled": True}))
    logs = [[np.log(v + np.array(lengths) / 100).mean() for v in pairs[m]] for m in pairs]
    assert found.holds == NO
    p = stats.ttest_rel(*logs).pvalue
    means = f"TAPE {np.mean(logs[1]):.2f}, RoPE {np.mean(logs[0]):.2f}"
    assert found.short == f"perplexity: {means}, p = {p:.2g}"


def test_of_the_lengths_of_each_corpus_the_last_counts_and_the_papers_are_beside_them(monkeypatch):
    monkeypatch.setattr(Artifact, "paper", {"lengths": [512, 1024]})
    each = {"c": ["books", "code"], "n": [64, 128]}
    columns = {"{c} {n}": {"each": each, "metric": "{c}/perplexity@{n}"}}
    claim = {"text": "", "at": {"{c} {n}": "{c}"}}

    def places(**further):
        of_claim = view([], columns=columns, claim=claim | further)
        (one,) = of_claim.artifact.claims
        found = []
        for compared in claims.columns_compared(of_claim, one):
            papers = [claims.papers_own(of_claim, column)["n"] for column in compared.columns]
            found.append(([column.name for column in compared.columns], papers))
        return found

    assert places() == [(["books 128"], [1024]), (["code 128"], [1024])]
    assert places(pooled=True) == [
        (["books 128", "books 64"], [1024, 512]),
        (["code 128", "code 64"], [1024, 512]),
    ]
    assert [papers for _, papers in places(every=True)] == [[1024], [512], [1024], [512]]


def test_a_floor_is_cleared_only_beyond_the_error_of_the_samples():
    few = {seed: Value(30.0, 10.0, 50.0) for seed in range(3)}
    both = {"t": over_seeds(few), "b": over_seeds(few)}
    assert decide([Contest("", "t", ["b"], both, {}, floor=25.0)]).holds == outcomes.FLOOR
    many = {seed: Value(30.0 + seed, 28.0, 33.0) for seed in range(3)}
    both = {"t": over_seeds(many), "b": over_seeds(few)}
    assert decide([Contest("", "t", ["b"], both, {}, floor=25.0)]).holds != outcomes.FLOOR


def test_equal_methods_rarely_differ():
    """Of 2,000 pairs of three seeds a yes or a no has a chance of 5 % together."""
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(2000, 2, 3))
    told = [decide([contest(*map(list, pair))]).holds in (YES, NO) for pair in drawn.tolist()]
    assert 0.03 < np.mean(told) < 0.07


def test_a_verdict_of_records_and_its_figures():
    found = verdict(
        view(
            [
                *runs("rope", [20.0, 21.0, 22.0]),
                *runs("fire", [30.0, 30.5, 31.5]),
                *runs("tape", [25.1, 25.6, 26.2]),
            ]
        )
    )
    assert found.holds == NO
    assert found.ours == "TAPE 25.63 ± 1.37, FIRE 30.67 ± 1.90 (paired: -5.03 ± 0.57, p = 0.0007)"
    assert (found.paper, found.seeds) == ("TAPE 32.82, FIRE 26.98", "3")
    assert verdict(view(runs("rope", [20.0]))).holds == UNTESTED


def test_rows_that_the_claim_does_not_name_are_no_rivals():
    every = [*runs("rope", [1.0, 1.1]), *runs("fire", [40.0, 40.1]), *runs("tape", [30.0, 30.2])]
    assert verdict(view(every, claim=CLAIM | {"than": ["rope"]})).holds == YES


def test_the_paper_agrees_with_its_own_claims():
    """Typed right: by the paper's numbers each favourite is ahead of every rival that has one."""
    records, checked = read_records(), 0
    for name in names():
        artifact = load(name)
        by_columns = [claim for claim in artifact.claims if claim.at]
        for scale, claim in product(artifact.scales, by_columns):
            found = contests(View(artifact, scale, records), claim)
            for one in (one for one in found if one.favourite in one.published):
                for rival in (r for r in one.rivals if r in one.published):
                    ours, theirs = (one.published[n].number for n in (one.favourite, rival))
                    lead = ours + one.allowed - theirs
                    lead = lead if one.higher else -lead
                    assert lead > 0 or (lead == 0 and one.margin), (name, one.where, rival)
                    checked += 1
    assert checked > 40
