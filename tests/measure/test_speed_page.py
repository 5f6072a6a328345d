"""docs/speed.md: its tables are those that the commands print, and those of the records."""

import json
import math
import subprocess

import pytest

from tape_exp.measure import count, goals, lengths, registers, utilisation
from tape_exp.settings.folders import ROOT

PAGE = (ROOT / "docs" / "speed.md").read_text()
# Those that are committed: a user may have measured a machine of one's own.
COMMITTED = subprocess.run(
    ["git", "ls-files", "results/speed"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
RECORDS = [
    (module, ROOT / name)
    for module in (lengths, registers, utilisation)
    for name in COMMITTED
    if name.startswith(f"results/speed/{module.__name__.rpartition('.')[2]}")
]


@pytest.mark.parametrize(("module", "path"), RECORDS, ids=lambda part: str(part).split("/")[-1])
def test_tables_of_records_are_on_the_page(module, path):
    table = "\n".join(module.table(json.loads(path.read_text())))
    assert table in PAGE, f"copy what python -m {module.__name__} printed"


def test_the_tables_of_the_goals_are_on_the_page():
    counted = goals.design()
    for table in (goals.goals(counted), goals.layers(counted)):
        assert "\n".join(table) in PAGE, "copy what python -m tape_exp.measure.goals prints"


def test_without_the_record_of_what_is_fused_the_command_that_writes_it_is_named(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(goals, "FUSED", tmp_path / "fusion.json")
    monkeypatch.setattr(goals, "fused", goals.fused.__wrapped__)
    monkeypatch.setattr(goals, "design", dict)
    assert goals.main([]) == 2
    assert "python -m tape_exp.measure.fusion writes it." in capsys.readouterr().err


def test_products_of_attention_are_counted():
    """TAPE's values are twice as wide: 3 products for 2 forward, 7 for 5 in one walk backward."""
    assert goals.attention_ratio(goals.UNFUSED) == pytest.approx(13 / 7, rel=1e-4)
    forward, backward = (count.attention_flops("tape", phase) for phase in (False, True))
    of_rope = [count.attention_flops("rope", phase) for phase in (False, True)]
    assert [forward / of_rope[0], backward / of_rope[1]] == [3 / 2, 7 / 5]


def test_the_grid_is_that_of_the_task():
    rows, task = goals.grid_rows(), goals.addition()
    assert sum(count for count, _ in rows) == 80**2 * task.samples_per_cell
    assert len(rows) == len(task.test_batches())
    longest = task.few().grid_batch([(80, 80)])["inputs"].shape[1]
    assert rows[-1][1] == math.ceil(longest / goals.MULTIPLE) * goals.MULTIPLE
