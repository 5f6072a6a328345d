"""What is said of a claim: the rule of intervals, the figures beside each other, and verdicts of
every artifact.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tape_exp.paper import artifacts
from tape_exp.paper.claims import (
    FLOOR,
    GRAVITY,
    NO,
    NO_CLAIM,
    ORDERED,
    REVERSED,
    UNCLEAR,
    UNTESTED,
    YES,
    Contest,
    decide,
    written,
)
from tape_exp.paper.values import Value, over_runs, over_seeds
from tests.paper.test_artifacts import fake_record
from tests.paper.test_language import record
from tests.paper.test_statistics import of_samples


def seeds(values: list) -> Value:
    """The mean over seeds 0, 1, …"""
    return over_seeds(dict(enumerate(values)))


def contest(ours: list[float], *rivals: list[float], **options) -> Contest:
    measured = {
        name: seeds(values) for name, values in zip("tbc", (ours, *rivals), strict=False) if values
    }
    published = {name: Value(number) for name, number in options.pop("published", {}).items()}
    return Contest("", "t", ["b", "c"][: len(rivals)], measured, published, **options)


@pytest.mark.parametrize(
    ("ours", "rival", "outcome"),
    [
        ([9.0, 9.2], [1.0, 1.1], YES),
        ([1.0, 1.1], [9.0, 9.2], NO),
        ([9.0, 1.1], [8.0, 0.0], YES),
        ([9.0, 9.1], [1.0, 1.1], UNCLEAR),
        ([9.0, 1.0], [0.0, 0.1], UNCLEAR),
        ([9.0], [1.0], ORDERED),
        ([9.0, 9.1, 9.2], [1.0], ORDERED),
        ([1.0], [9.0, 9.1], REVERSED),
        ([1.0], [1.0], UNCLEAR),
        ([1.0, 1.0], [1.0, 1.0], UNCLEAR),
        ([9.0, 9.1], [], UNTESTED),
        ([], [9.0], UNTESTED),
    ],
)
def test_outcome_of_two(ours, rival, outcome):
    assert contest(ours, rival).outcome() == outcome
    mirrored = {YES: NO, NO: YES, ORDERED: REVERSED, REVERSED: ORDERED}.get(outcome, outcome)
    assert contest(ours, rival, higher=False).outcome() == mirrored


def test_one_rival_ahead_refutes_and_one_missing_leaves_it_open():
    assert contest([5.0, 5.2], [1.0, 1.1], [9.0, 9.1]).outcome() == NO
    assert contest([5.0, 5.2], [1.0, 1.1], []).outcome() == UNTESTED
    assert contest([5.0, 5.2], [], [9.0, 9.1]).outcome() == NO
    assert contest([5.0, 5.2], [1.0, 1.1], [2.0]).outcome() == ORDERED
    assert decide([contest([9.0, 9.2], [1.0, 1.1]), contest([5.0], [1.0])]).holds == ORDERED
    assert decide([]).holds == UNTESTED


values = st.lists(st.floats(-100, 100), min_size=0, max_size=4)


@given(values, values, values, st.booleans())
def test_a_claim_holds_only_where_a_paired_test_tells_every_rival_apart(
    ours, first, second, higher
):
    held = contest(ours, first, second, higher=higher)
    outcome = held.outcome()
    assert outcome in GRAVITY
    if outcome == YES:
        for rival in (first, second):
            n = min(len(ours), len(rival))
            assert n > 1
            side = "greater" if higher else "less"
            assert stats.ttest_rel(ours[:n], rival[:n], alternative=side).pvalue < 0.025
    assert decide([held]).holds == outcome
    if outcome == REVERSED or (outcome == NO and 3 * max(held.tests.values()) < 0.05):
        assert decide([held, contest([1.0], [9.0])]).holds in (NO, REVERSED)
    assert held.ours() == "" or "t " in held.ours() or "not run" in held.ours()


def test_figures_show_the_favourite_and_the_rival_that_decides():
    found = contest(
        [25.0, 25.1], [33.0, 33.2], [30.0, 50.0], published={"t": 32.82, "b": 26.98, "c": 22.45}
    )
    assert found.outcome() == NO
    assert (
        found.ours() == "t 25.05 (25.00, 25.10), b 33.10 (33.00, 33.20) (paired: -8.05 ± 0.64)"
    )  # c is higher, but its lead spreads over the seeds
    assert found.papers() == "t 32.82, b 26.98"
    assert contest([25.0], [33.0], []).ours() == "t 25.00, b 33.00 (not run: c)"
    interval = Value(50.0, 20.0, 70.0)
    assert (
        Contest("set", "t", ["b"], {"t": interval, "b": interval}, {}, digits=0).ours()
        == "set: t 50 [20, 70], b 50 [20, 70]"
    )
    one_pair = Contest("", "t", ["b"], {"t": seeds([1.0, 5.0]), "b": over_seeds({1: 4.0})}, {})
    assert one_pair.outcome() == ORDERED  # by seed 1, though the means are the other way round
    assert one_pair.ours() == "t 3.00 (1.00, 5.00), b 4.00 (paired: +1.00, one pair)"
    assert written(Value(9e-05), 2) == "9e-05"
    assert decide([contest([1.0], [2.0, 3.0])]).seeds == "1 to 2"


def test_of_several_comparisons_those_that_decided_are_shown():
    ahead, behind = contest([9.0, 9.2], [1.0, 1.1]), contest([1.0, 1.1], [9.0, 9.2])
    assert decide([ahead, behind]).ours == behind.ours()
    assert decide([ahead, ahead]).ours == f"{ahead.ours()}; {ahead.ours()}"


def test_an_interval_of_one_run_is_in_brackets_though_it_is_symmetric():
    assert written(Value(35.0, 23.33, 46.67), 2) == "35.00 [23.33, 46.67]"
    assert written(seeds([1.0, 2.0, 3.0]), 2) == "2.00 ± 2.48"


def test_runs_of_few_samples_that_agree_are_no_certainty():
    same = over_runs(dict.fromkeys(range(3), Value(5.0, 1.0, 24.0)))
    assert (same.number, same.low, same.high, same.n) == (5.0, 1.0, 24.0, 3)
    assert str(same) == "5.00 [1.00, 24.00]"
    apart = {seed: Value(n, n - 3, n + 4) for seed, n in enumerate((1.0, 9.0, 5.0))}
    alone, both = seeds([1.0, 9.0, 5.0]), over_runs(apart)
    half = alone.high - 5
    assert both.low == pytest.approx(5 - (half**2 + 3**2) ** 0.5), "errors add as squares"
    assert both.high == pytest.approx(5 + (half**2 + 4**2) ** 0.5)
    own = over_runs(apart, pooled=Value(5.0, 3.0, 7.0))
    assert (own.low, own.high) == (alone.low, alone.high), "seeds show what their samples do"
    assert over_runs(dict.fromkeys(range(3), Value(5.0))) == seeds([5.0] * 3)


def test_samples_that_all_seeds_share_do_not_average_out():
    """Of two equal methods on the same questions, each a little lucky in its own way, the mean of
    many seeds lies outside its interval over seeds nearly always, and inside this one mostly.
    """
    generator = np.random.default_rng(5)
    narrow = wide = 0
    for _ in range(300):
        luck = generator.normal(0, 1.0)
        numbers = luck + generator.normal(0, 0.3, size=4)
        runs = {seed: Value(x, x - 1.96, x + 1.96) for seed, x in enumerate(numbers)}
        alone, both = seeds([*numbers]), over_runs(runs)
        narrow += alone.low <= 0 <= alone.high
        wide += both.low <= 0 <= both.high
    assert narrow < 0.6 * 300
    assert 0.93 * 300 < wide < 300


def test_the_lead_is_judged_by_pairs_of_seeds_though_seeds_differ_by_more():
    """Each method spreads by ten points over seeds; the lead of 1 is the same but for a tenth."""
    ours, theirs = [31.0, 41.1, 21.05], [30.0, 40.0, 20.0]
    assert contest(ours, theirs).outcome() == YES
    mine, others = seeds(ours), seeds(theirs)
    assert mine.low < others.high, "the intervals of the means overlap"


def test_one_rival_of_many_must_be_ahead_by_more_to_refute():
    """A p of 0.03 refutes alone, but not as one of three: some rival is ahead by chance."""
    rival, ours, other = [1.0, 2.0, 3.0], [0.0, 0.4, 2.0], [0.0, 1.4, 1.0]
    assert 0.02 < stats.ttest_rel(ours, rival).pvalue < 0.05
    alone, another = contest(ours, rival), contest(ours, other)
    assert decide([alone]).holds == NO
    assert decide([alone, another, another]).holds == UNCLEAR


def test_comparisons_that_have_not_run_count_too():
    """A verdict that they would take back is none."""
    rival, ours = [1.0, 2.0, 3.0], [0.0, 0.4, 2.0]
    alone = contest(ours, rival)
    assert decide([alone], planned=1).holds == NO
    assert decide([alone], planned=3).holds == UNCLEAR


def test_rivals_that_have_not_run_count_too():
    """The same p of 0.03, first of one rival of four, then of four with the others unclear."""
    rival, ours, other = [1.0, 2.0, 3.0], [0.0, 0.4, 2.0], [0.0, 1.4, 1.0]
    ran = {"t": seeds(ours), "a": seeds(rival)}
    rest = {name: seeds(other) for name in "bcd"}
    assert Contest("", "t", ["a"], ran, {}).outcome() == NO
    assert Contest("", "t", [*"abcd"], ran, {}).outcome() == UNTESTED
    assert decide([Contest("", "t", ["a"], ran, {})]).holds == NO
    assert decide([Contest("", "t", [*"abcd"], ran, {})]).holds == UNTESTED
    assert decide([Contest("", "t", [*"abcd"], ran | rest, {})]).holds == UNCLEAR


def test_a_lead_is_no_yes_before_every_comparison_has_run():
    ahead = contest([9.0, 9.2], [1.0, 1.1])
    assert decide([ahead], planned=1).holds == YES
    told = decide([ahead], planned=2)
    assert (told.holds, told.ours) == (UNTESTED, decide([ahead]).ours), "the figures are there"
    assert decide([contest([1.0, 1.1], [9.0, 9.2])], planned=2).holds == NO


def test_a_lead_over_every_rival_needs_no_adjustment():
    """All four must be behind, each at 5 %: that one is so by chance makes no claim hold."""
    ours, rival = [30.0, 30.0, 30.0], [29.0, 29.3, 28.7]
    assert 0.02 < stats.ttest_rel(ours, rival).pvalue < 0.05
    assert decide([contest(ours, rival) for _ in range(4)]).holds == YES


def test_more_right_answers_never_weaken_a_verdict():
    """Two seeds of 20 trials against none right: equal counts have no spread, but their samples."""
    none = [of_samples(0, 20)] * 2
    for counts in ((9, 9), (9, 10), (12, 12)):
        lead = contest([of_samples(k, 20) for k in counts], none)
        assert lead.tests["b"] == max(lead.tests["b"], p_of_counts(counts))
    one = contest([of_samples(1, 20)] * 2, none)
    assert one.outcome() == UNCLEAR
    assert contest([of_samples(9, 20)] * 2, none).outcome() == YES


def p_of_counts(counts: tuple[int, ...]) -> float:
    """Student's, or 0 where all are equal."""
    return 0.0 if len(set(counts)) == 1 else float(stats.ttest_rel(counts, [0, 0]).pvalue)


@pytest.mark.parametrize(("fresh", "outcome"), [(False, UNCLEAR), (True, YES)])
def test_a_lead_on_the_same_few_questions_is_none_however_many_seeds_have_it(fresh, outcome):
    """Five seeds agree on 36 to 37 of 60 against 27 to 28: Fisher's p of one seed is 0.14."""
    assert stats.fisher_exact([[36, 24], [27, 33]]).pvalue == pytest.approx(0.14, abs=0.01)
    ours = [of_samples(k, 60) for k in (36, 37, 36, 37, 36)]
    theirs = [of_samples(k, 60) for k in (27, 27, 28, 28, 27)]
    assert contest(ours, theirs, fresh=fresh).outcome() == outcome


def test_two_equal_methods_that_all_seeds_ask_the_same_questions_rarely_differ():
    """Of 300 pairs, each seed of which answers a tenth of 60 questions anew: 5 %, and not one in
    four, as if five seeds were asked 300 questions.
    """
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        runs = []
        for known in generator.random((2, 60)) < 0.5:
            anew, other = generator.random((2, 5, 60)) < [[[0.1]], [[0.5]]]
            runs.append([of_samples(int(k), 60) for k in np.where(anew, other, known).sum(-1)])
        wrong += contest(*runs).outcome() != UNCLEAR
    assert wrong <= 0.08 * 300


def test_pass_keys_are_pooled_since_every_seed_has_its_own():
    """No key in three times 20 trials: Wilson's interval of 60, which the table has too."""
    artifact = artifacts.load("fig_passkey")
    records = {
        label: [with_value(artifact, label, cfg, seed, 0.0, wide=20.0) for seed in range(3)]
        for label, cfg in artifact.configs("smoke", [0])
    }
    (found,) = artifact.contests("smoke", records)
    assert found.fresh
    assert found.ours().startswith("512 tokens: TAPE 0 [0, 6], ")


def test_where_nobody_is_above_guessing_a_claim_is_at_floor():
    chance = [Value(25.0, 20.0, 30.0), Value(27.0, 22.0, 32.0), Value(24.0, 19.0, 29.0)]
    assert contest(chance, chance[::-1], floor=25.0).outcome() == FLOOR
    above = [Value(50.0, 45.0, 55.0)] * 3
    assert contest(chance, above, floor=25.0).outcome() == NO
    assert contest(chance, above).outcome() == NO
    assert contest(chance, chance[::-1]).outcome() == UNCLEAR


@pytest.mark.parametrize("name", ["fig_passkey", "tab_bench", "tab_scrolls"])
def test_three_equal_seeds_at_chance_cannot_tell(name):
    """One right answer of twenty in every seed, against none: the spread over seeds is 0."""
    artifact = artifacts.load(name)
    records = {}
    for label, cfg in artifact.configs("smoke", [0]):
        value = 5.0 if label.split("/")[0] in artifact.favourites else 0.0
        records[label] = [
            with_value(artifact, label, cfg, seed, value, wide=20.0) for seed in range(3)
        ]
    verdict = artifact.verdict("smoke", records)
    assert verdict.holds == (UNCLEAR if name == "fig_passkey" else FLOOR)
    assert "± 0" not in verdict.ours


def test_the_claim_on_layers_is_tested_from_each_layer_to_the_next():
    artifact = artifacts.load("fig_dp_layers")

    def of(*diagonals: float) -> dict:
        def grids(seed: int) -> dict:
            return {
                f"products@{n}": (
                    np.ones((4, 4)) + (value - 1 + seed / 100 / n) * np.eye(4)
                ).tolist()
                for n, value in enumerate(diagonals, 1)
            }

        return {"tape": [{"matrices": grids(seed), "seed": seed} for seed in (0, 1)]}

    assert artifact.verdict("smoke", of(4.0, 3.0, 2.0)).holds == YES
    verdict = artifact.verdict("smoke", of(4.0, 1.0, 2.0))
    assert verdict.holds == NO, "the last is below the first, and not below the one before it"
    assert verdict.ours.startswith("diagonal / rest: layer 3 2.00 (2.00, 2.00), layer 2 1.00 (")


def test_addition_claims_the_highest_mean():
    artifact = artifacts.load("fig_addition")
    records = {m: [fake_record(m, s, 20.0 + s / 10) for s in (0, 1)] for m in artifact.models}
    records["tape"] = [fake_record("tape", s, 40.0 + s / 5) for s in (0, 1)]
    verdict = artifact.verdict("smoke", records)
    assert (verdict.holds, verdict.seeds, verdict.paper) == (YES, "2", "TAPE 32.82, FIRE 26.98")
    assert verdict.ours.startswith("TAPE 40.10 (40.00, 40.20), ")
    assert (
        artifact.verdict("smoke", {m: r for m, r in records.items() if m != "nope"}).holds
        == UNTESTED
    )
    assert artifact.verdict("smoke", {m: r[:1] for m, r in records.items()}).holds == ORDERED


def test_yarn_is_compared_with_tape_alone():
    artifact = artifacts.load("fig_addition_yarn")
    records = {
        m: [fake_record(m, 0, v)]
        for m, v in {"tape": 30.0, "tape_yarn": 31.0, "fire": 90.0}.items()
    }
    assert artifact.verdict("smoke", records).holds == ORDERED


def test_two_widths_must_both_be_ahead():
    artifact = artifacts.load("tab_ablation_I")
    found = {"tape_i1": 54.0, "tape_i2": 51.0, "tape": 52.0, "tape_i8": 53.0, "tape_i16": 55.0}
    records = {m: [record(artifact, m, 0, {"github/perplexity@256": v})] for m, v in found.items()}
    assert artifact.verdict("smoke", records).holds == ORDERED
    records["tape"][0]["metrics"]["github/perplexity@256"] = 53.5
    assert artifact.verdict("smoke", records).holds == REVERSED


def test_counts_have_no_seeds():
    artifact = artifacts.load("tab_flops")
    paper = artifact.paper()
    units = (
        ("flops_paper", "flops_g", 1e9),
        ("macs_paper", "macs_g", 1e9),
        ("parameters", "parameters_m", 2**20),
    )
    records = {
        m: [
            {"metrics": {f"count/{k}": paper[c][m] * unit for k, c, unit in units}}
            | {"git": {"commit": "0123456789", "dirty": False}}
        ]
        for m in ("tape", "rope")
    }
    verdict = artifact.verdict("smoke", records)
    assert (verdict.holds, verdict.seeds, verdict.ours) == (YES, "a count", verdict.paper)
    another = records["tape"][0] | {"git": {"commit": "abcdefghij", "dirty": False}}
    both = artifact.cells("smoke", {"tape": [another, *records["tape"]]})
    assert both.rows[0]["commit"] == "0123456 abcdefg", "the caption counts the commits of all"
    records["tape"][0]["metrics"]["count/macs_paper"] *= 1.01
    assert artifact.verdict("smoke", records).holds == NO
    assert artifact.verdict("smoke", {}).holds == UNTESTED


@pytest.mark.parametrize("name", ["fig_passkey", "tab_bench", "tab_scrolls"])
def test_several_seeds_are_judged_by_their_spread(name):
    """Not by the intervals over samples, which a run has by itself."""
    artifact = artifacts.load(name)
    records = {}
    for label, cfg in artifact.configs("smoke", [0]):
        values = (100.0, 30.0) if label.split("/")[0] in artifact.favourites else (0.0, 1.0)
        records[label] = [
            with_value(artifact, label, cfg, seed, value) for seed, value in enumerate(values)
        ]
    assert artifact.verdict("smoke", records).holds == UNCLEAR
    assert (
        artifact.verdict("smoke", {label: mine[:1] for label, mine in records.items()}).holds
        == ORDERED
    )


def with_value(artifact, label: str, cfg, seed: int, value: float, wide: float = 0.1) -> dict:
    """A record whose metrics all are that value, with an interval of its own."""
    keys = [f"passkey/accuracy@{n}" for n in cfg.task.get("lengths", [])] + [
        "benchmarks/arc_challenge"
    ]
    keys += [
        f"{cfg.task.get('dataset')}/{kind}"
        for kind in ("f1", "exact_match", "rouge/geometric_mean")
    ]
    metrics = dict.fromkeys(keys, value) | {f"{key}_stderr": wide for key in keys}
    metrics |= {f"{key}_low": value - wide for key in keys} | {
        f"{key}_high": value + wide for key in keys
    }
    return record(artifact, label, seed, metrics)


def test_fused_attention_is_judged_on_gpus_alone():
    artifact = artifacts.load("tab_speed")
    rows = [{"what": "core", "T": 512, "backward": False, "ms_quartiles": [1.0, 1.1], "rounds": 9}]
    rows[0] |= {"backend": "triton", "ratio_to_rope": 1.0}
    rows = [
        {**rows[0], "encoding": name, "ms": ms}
        for name, ms in (("tape", 0.5), ("fire", 2.0), ("t5", 2.0))
    ]
    rows[0]["ms_quartiles"] = [0.4, 0.6]
    gpu, cpu = ({"machine": name, "rows": rows} for name in ("NVIDIA L4", "AMD EPYC, 2 threads"))
    assert artifact.verdict("smoke", {"x": [cpu]}).holds == UNTESTED
    assert artifact.verdict("small", {"x": [gpu]}).holds == YES
    nothing = gpu | {"rows": []}  # cut off before the first measurement
    assert artifact.verdict("small", {"x": [nothing]}).holds == UNTESTED


def test_generated_data_are_named():
    artifact = artifacts.load("tab_bench")
    metrics = {"benchmarks/arc_challenge": 30.0, "benchmarks/arc_challenge_stderr": 1.0}
    records = {m: [record(artifact, m, 0, dict(metrics))] for m in artifact.models}
    assert "(generated questions)" in artifact.verdict("smoke", records).ours
    records["tape"][0]["metrics"]["benchmarks/arc_challenge"] = 60.0
    assert artifact.verdict("smoke", records).holds == ORDERED


@pytest.mark.parametrize("name", artifacts.names())
def test_every_claim_has_figures_and_is_untested_without_records(name):
    artifact = artifacts.load(name)
    verdict = artifact.verdict("smoke", {})
    assert verdict.holds == (UNTESTED if artifact.claim else NO_CLAIM)
    assert (verdict.ours, verdict.seeds) == ("", "")
    of_others = (
        name == "fig_addition_contextual"
    )  # the encodings in it are not the paper's, but for TAPE
    assert artifact.claim or not artifact.paper() or of_others
    assert all(
        c.published.keys() >= {c.favourite} for c in artifact.contests("smoke", {}) if c.published
    )


def test_the_paper_agrees_with_its_own_claims():
    """Typed right: by the paper's numbers each favourite is ahead of every rival that has one."""
    checked = 0
    for contest_ in (
        c for name in artifacts.names() for c in artifacts.load(name).contests("smoke", {})
    ):
        for rival in (r for r in contest_.rivals if r in contest_.published):
            ours = contest_.published[contest_.favourite].number
            theirs = contest_.published[rival].number
            assert ours > theirs if contest_.higher else ours < theirs, contest_
            checked += 1
    assert checked > 40
