"""PoSE: rows of a few tokens whose positions reach far."""

import json

import numpy as np
import pytest
import torch

import tape_exp as te
from tape_exp.models.head import TokenNll
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.pretrain import skipping_positions

WORDS = ["scale.text=builtin", "task.train_length=96", "task.validation_rows=4", "checkpoint=null"]
WORDS += ["task.init_from=null", "task.windows.lengths=[96]", "task.rows={text: 1}"]


def extend(*words, model="rope"):
    return te.build(model, *WORDS, *words, task="extend")


def test_positions_are_drawn_as_in_the_paper():
    """Two pieces: the first from 0, up to half of a row long; the second moved by any of the places
    that the span has room for, evenly.
    """
    T, span, rows = 10, 50, 4000
    places = skipping_positions(3, range(rows), T, span)
    assert places.shape == (rows, T)
    steps = places.diff(dim=1)
    assert (places[:, 0] == 0).all()
    assert (steps >= 1).all()
    assert ((steps > 1).sum(1) <= 1).all(), "one cut"
    assert places.max() == span - 1
    cut = steps.argmax(1) + 1
    moved = steps.max(1).values - 1
    lengths = torch.bincount(cut[moved > 0], minlength=T)[1:]
    assert (lengths[:5] > 0).all()
    assert (lengths[5:] == 0).all()
    expected = (moved > 0).sum() / 5
    assert (lengths[:5] - expected).abs().max() < 5 * expected**0.5
    counts = np.bincount(moved.numpy(), minlength=span - T + 1)
    assert len(counts) == span - T + 1
    assert abs(counts - rows / len(counts)).max() < 5 * (rows / len(counts)) ** 0.5


def test_a_row_is_a_function_of_its_number_and_the_seed():
    whole = skipping_positions(1, range(20), 8, 99)
    assert torch.equal(whole[7:12], skipping_positions(1, range(7, 12), 8, 99))
    assert not torch.equal(whole, skipping_positions(2, range(20), 8, 99))


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["{text: 1}", "{text: 2, fact: 1}"])
def test_batches_of_training_and_validation_have_positions(rows):
    _, task = extend("task.skip_to=128", f"task.rows={rows}")
    _, plain = extend(f"task.rows={rows}")
    batch, expected = task.train_batch(4, 6), plain.train_batch(4, 6)
    assert torch.equal(batch["positions"], skipping_positions(task.seed, range(4, 10), 96, 128))
    assert torch.equal(batch["inputs"], expected["inputs"])
    assert "positions" not in expected
    for one in task.validation_batches():
        assert one["positions"].shape == one["inputs"].shape
    assert task.arch.max_length == 128


@pytest.mark.slow
def test_training_turns_by_the_positions_of_its_rows(tmp_path):
    """The loss of the first step is that of the decoder at these positions, and no other."""
    words = [*WORDS, "task.skip_to=4096", "task.optim.batch=2", "task.optim.max_steps=1"]
    words += ["trainer.log_every=1", f"runs={tmp_path}", "logger=none", "task.optim.lr=1e-9"]
    run = te.train("task=extend", "model=rope", *words, quiet=True)
    decoder, task = te.build("rope", *words, task="extend")
    batch = task.train_batch(0, 2)
    losses = []
    for places in (batch["positions"], None):
        with torch.no_grad():
            nll = decoder(batch["inputs"], positions_BT=places, output=TokenNll(batch["labels"]))
        losses.append(float((nll * batch["weights"]).sum() / batch["weights"].sum()))
    lines = [json.loads(x) for x in (run.folder / "metrics.jsonl").read_text().splitlines()]
    first = next(line["train/loss"] for line in lines if "train/loss" in line)
    assert first == pytest.approx(losses[0], abs=1e-4)
    assert abs(losses[0] - losses[1]) > 1e-4


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"task\.skip_to=64 is below task\.train_length=96"):
        extend("task.skip_to=64")


@pytest.mark.slow
def test_an_encoding_that_draws_positions_refuses_others(tmp_path):
    words = [*WORDS, "task.skip_to=640", f"runs={tmp_path}", "logger=none"]
    with pytest.raises(ConfigError, match="draws positions, as model=randpe does itself"):
        te.train("task=extend", "model=randpe", *words, quiet=True)
