"""The attention of a model on sums of which it solves one and fails at another."""

import numpy as np
import pytest

from tape_exp.models.trace import trace
from tape_exp.tasks.arithmetic import PAD
from tape_exp.tasks.position_use import maps_of_row, positions_of_row
from tape_exp.tasks.slices import row_scores
from tests.conftest import MODELS
from tests.tasks.test_position_use import small_task, trained
from tests.tasks.test_sum_faults import silent


@pytest.mark.parametrize("name", MODELS)
def test_a_map_is_the_attention_of_that_row_in_its_batch(name):
    """Also of encodings that sample the positions of a row."""
    task = small_task()
    model, batch = trained(name, task), task.few().grid_batch([(3, 3), (3, 1)])
    whole = trace(model.decoder, batch["inputs"], sampler=positions_of_row(0))
    row = 12
    end = int((batch["inputs"][row] != PAD).sum())
    maps = maps_of_row(model, batch, row, end)
    with_state = {f"products@{i}" for i, one in whole.items() if one.products is not None}
    assert {*maps} == {"attention@1", "attention@2", "attention@3"} | with_state
    for key, found in maps.items():
        kind, layer = key.split("@")
        of_layer = whole[int(layer)]
        attention = kind == "attention"
        expected = of_layer.attention[row].mean(0) if attention else of_layer.products[row]
        atol = 1e-5 if attention else 1e-5 * abs(expected).max()
        assert np.allclose(found[:end, :end], expected[:end, :end], atol=atol)
        if attention:
            assert np.allclose(found[:end, :end].sum(1), 1, atol=1e-5)
        assert np.isnan(found[end:]).all()
        assert np.isnan(found[:, end:]).all()


def test_maps_are_of_the_ring_after_the_trained_one_and_not_in_the_record(monkeypatch):
    task = small_task()  # trained on 2 digits
    model = trained("tape", task)

    def third_is_right(logits, labels):
        scores = row_scores(logits, labels)
        scores["exact_match"][2::3] = True
        return scores

    monkeypatch.setattr("tape_exp.tasks.position_use.row_scores", third_is_right)
    found = task.evaluate(model, silent, limit=1)
    names = {f"attention@{layer} {kind}" for layer in (1, 2, 3) for kind in ("solved", "failed")}
    assert set(found.matrices) == names | {f"products@{layer} solved" for layer in (1, 2, 3)}
    assert "matrices" not in found.for_record()
    rows = found.tables["mapped_sums"]
    assert [row["sum"] for row in rows] == ["solved", "failed"]
    for row in rows:
        written = row["text"].removesuffix("<eos>").replace("=", "+").split("+")
        a, b, c = (int(number[::-1]) for number in written)
        assert a + b == c
        assert len(str(a)) == 3
