"""The command of a record composes to what the record says."""

import shlex

import pytest

from tape_exp.paper import rerun
from tape_exp.paper.records import matches, read_records
from tape_exp.runs.identity import identity_of
from tape_exp.settings.compose import compose_config


def kinds() -> list:
    """A committed record of every task, method and checkpoint."""
    found = {}
    for record in read_records():
        config = record["config"]
        peft = config.get("peft", {}).get("name")
        found.setdefault(
            (config["task"]["name"].split("_")[0], peft, config.get("checkpoint")), record
        )
    return list(found.values())


@pytest.mark.parametrize("record", kinds(), ids=lambda record: record["run"])
def test_command_makes_the_same_run(record):
    program, script, *words = shlex.split(rerun.command(record))
    assert (program, script) == ("tape-exp", "train")
    assert matches(record, identity_of(compose_config(words)))


def test_what_was_set_apart_from_the_choices_is_in_the_command():
    choices = ["model=tape_yarn", "task=arithmetic", "scale=smoke", "seed=3"]
    told = [
        *choices,
        "model.scaling.factor=4.0",
        "task.train_digits=6",
        "task.optim.betas=[0.8,0.9]",
        "task.optim.decay=null",
        "trainer.precision=bf16-mixed",
    ]
    config = identity_of(compose_config(told))
    words = rerun.words(config)
    assert set(told) <= set(words)
    assert identity_of(compose_config(words)) == config


def test_a_compiled_run_is_compiled_again():
    """It would not repeat itself bit for bit otherwise."""
    record = {"config": identity_of(compose_config(["model=rope", "task=arithmetic"]))}
    assert "trainer.compile" not in rerun.command(record)
    assert rerun.command(record | {"compiled": True}).endswith(" trainer.compile=true")


def test_a_run_of_a_debug_mode_is_one_again():
    told = ["model=rope", "task=arithmetic", "debug=overfit"]
    config = identity_of(compose_config(told))
    assert "debug=overfit" in rerun.words(config)
    assert identity_of(compose_config(rerun.words(config))) == config
