"""Why longer sums fail: the rows are those of the ladder, each run once."""

import pytest

from tape_exp.paper import artifacts, runner
from tape_exp.paper.failures import BEYOND, FAILED, TRAINED, WITHOUT
from tape_exp.paper.records import read_records
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.position_use import RESETS
from tape_exp.tasks.sum_faults import FAULTS


@pytest.fixture(scope="module")
def found():
    artifact = artifacts.load("tab_addition_failures")
    return artifact, artifact.collect("ladder", read_records())


def test_the_runs_are_those_of_the_ladder(found):
    artifact, records = found
    ladder = artifacts.load("fig_addition_trend")
    assert artifact.at_scales(read_records()).keys() == {"ladder"}
    assert records == ladder.collect("ladder", read_records())
    assert list(artifact.configs("ladder", [4])) == list(ladder.configs("ladder", [4]))
    both = runner.named([ladder, artifact], "ladder", [4])
    assert both.keys() == runner.named([ladder], "ladder", [4]).keys(), "each is run once"
    assert artifact.command("ladder") == ladder.command("ladder")


def test_the_columns_are_what_the_task_tells_apart():
    assert FAILED == FAULTS
    assert ["intact", *WITHOUT] == [*RESETS]


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
    assert "The runs are of" in table.caption
    assert "claim" not in table.caption, "there is none"
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


@pytest.mark.parametrize("of", ["theory", "fig_addition"])
def test_an_artifact_without_runs_has_no_failures(of):
    artifact = artifacts.load("tab_addition_failures")
    artifact.of = of
    with pytest.raises(ConfigError, match=rf"failures\.yaml: of={of} is no ladder of scales"):
        artifact.scales()
