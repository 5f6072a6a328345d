"""Lightning's profilers, by name."""

import json

import pytest

from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config


def test_a_profiler_changes_where_a_run_reports_and_not_what_it_is():
    hashes = [
        RunDirectory(compose_config(words)).hash for words in ([], ["trainer.profiler=simple"])
    ]
    assert len({*hashes}) == 1
    short = compose_config(["debug=profiler"])
    assert (short.trainer.profiler, short.debug.max_steps) == ("pytorch", 10)
    assert (
        compose_config(["debug=profiler", "trainer.profiler=simple"]).trainer.profiler == "simple"
    )


def test_the_operators_of_a_run_are_in_its_folder(tiny_run):
    cfg, _ = tiny_run("model=rope", "debug=profiler", "debug.max_steps=14")
    folder = RunDirectory(cfg).path / "profile"
    table = (folder / "fit-pytorch.txt").read_text()
    assert "aten::mm" in table
    traces = [*folder.glob("fit-pytorch*training_step*.pt.trace.json")]
    assert len(traces) == 1, "one, however long the run is"
    assert json.loads(traces[0].read_text())["traceEvents"]


@pytest.mark.slow
def test_the_simple_profiler_has_the_time_of_each_hook(tiny_run):
    cfg, _ = tiny_run("model=rope", "trainer.profiler=simple")
    table = (RunDirectory(cfg).path / "profile" / "fit-simple.txt").read_text()
    assert "training_step" in table
