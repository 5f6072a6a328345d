"""Why longer sums fail: the rows are those of the ladder, each run once."""

import pytest

from tape_exp.paper import artifacts
from tape_exp.paper.failures import BEYOND, TRAINED
from tape_exp.paper.records import read_records


@pytest.fixture(scope="module")
def found():
    artifact = artifacts.load("tab_addition_failures")
    return artifact, artifact.collect("ladder", read_records())


def test_the_runs_are_those_of_the_ladder_and_none_is_begun(found):
    artifact, records = found
    ladder = artifacts.load("fig_addition_trend")
    assert artifact.at_scales(read_records()).keys() == {"ladder"}
    assert records == ladder.collect("ladder", read_records())
    assert not list(artifact.configs("ladder", [0]))
    assert artifact.command("ladder") == ladder.command("ladder")


def test_shares_are_those_of_the_records(found):
    artifact, records = found
    table = artifact.table("ladder", records)
    runs = [run["metrics"] for run in records["tape rung5"]]
    for key, metric in {
        "forced": "forced/ood/exact_match",
        "eos_early": "failures/ood/eos_early",
        ("no_attention", BEYOND): "causal/no_attention/ood/exact_match",
        ("no_feed_forward", TRAINED): "causal/no_feed_forward/id/exact_match",
    }.items():
        value = table.values(key, rung="rung5")["tape"]
        assert value.number == pytest.approx(sum(run[metric] for run in runs) / len(runs))
    (row,) = [row for row in table.rows if (row["rung"], row["model"]) == ("rung5", "tape")]
    kinds = ("wrong_digit", "eos_early", "eos_late")
    assert sum(row[kind].number for kind in kinds) == pytest.approx(100), "of the failed ones"


def test_a_model_without_an_update_has_nothing_to_reset(found):
    artifact, records = found
    table = artifact.table("ladder", records)
    assert table.values(("no_update", BEYOND)).keys() <= {
        *("tape", "tape_randpe", "tape_householder")
    }
    assert {"rope", "fire"} <= table.values("forced").keys()


def test_a_run_of_several_variants_has_one_row(found):
    artifact, records = found
    assert records["tape rung5 equal"] == records["tape rung5"]
    rows = artifact.table("ladder", records).rows
    assert ("rung5 equal", "tape") not in [(row["rung"], row["model"]) for row in rows]
    assert ("rung5 equal", "rope") in [(row["rung"], row["model"]) for row in rows]
