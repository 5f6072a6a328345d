"""What a trained model's positional state is for: parts of its update are left out."""

import numpy as np
import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.trace import trace
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.tasks.position_use import RESETS, state_metrics, without
from tape_exp.training.module import OnDevice
from tests.conftest import make_decoder, silent

UPDATED = ["tape", "tape_householder", "tape_tensor"]
ARCH = Arch(layers=3, width=32, heads=4, ffn=32)
TOKENS = torch.randint(1, 14, (2, 12), generator=torch.Generator().manual_seed(0))
# of each part, the parameters that are zero without it; of reflections, U', which makes them cancel
ZEROED = {"attention": ("p", "up_apart"), "feed_forward": ("w2",)}


def small_task() -> Arithmetic:
    return Arithmetic(ARCH, Optim(batch=8, max_steps=2, lr=1e-3), 0, 2, 3, samples_per_cell=20)


def trained(name, task) -> OnDevice:
    """A model as if it were trained, as its run gives it to the task."""
    decoder = make_decoder(name, task.arch).eval().requires_grad_(False)
    randomise(decoder)
    return OnDevice(decoder, torch.device("cpu"))


def logits_of(model):
    """Of the same rows, at the same positions where an encoding samples them."""
    return model(TOKENS, sampler=RowSampler(5))


def zeroed(decoder, parts):
    """The decoder after its parameters of these parts are set to zero, for good."""
    for name, parameter in decoder.named_parameters():
        if name.rpartition(".")[2] in [zero for part in parts for zero in ZEROED[part]]:
            parameter.data.zero_()
    return decoder


@pytest.mark.parametrize("parts", RESETS.values(), ids=RESETS)
@pytest.mark.parametrize("name", UPDATED)
def test_a_part_is_left_out_as_if_its_weights_were_zero(name, parts):
    model = trained(name, small_task())
    decoder = model.decoder
    before, weights = logits_of(model), {k: v.clone() for k, v in decoder.state_dict().items()}
    own = [dict(vars(block.position)) for block in decoder.blocks()]
    with without(decoder, parts):
        found = logits_of(model)
    assert torch.equal(logits_of(model), before)
    assert [dict(vars(block.position)) for block in decoder.blocks()] == own
    assert all(torch.equal(weights[k], v) for k, v in decoder.state_dict().items())
    assert torch.allclose(found, logits_of(zeroed(decoder, parts)), atol=1e-3)


def test_sizes_and_turns_are_those_of_complex_numbers():
    model = trained("tape", small_task())
    counts = torch.ones_like(TOKENS, dtype=torch.bool)
    counts[1, 7:] = False
    found = state_metrics(model, TOKENS, counts)
    states = {}
    for layer, of_layer in trace(model.decoder, TOKENS).items():
        e = of_layer.matrices[0].expand(2, -1, 4, -1, -1, -1)[counts].numpy()
        states[layer] = e[..., 0, 0] + 1j * e[..., 0, 1]
    for layer, e in states.items():
        size = np.abs(e).mean() / np.abs(states[1]).mean()
        turn = np.abs(np.angle(e / states[1])).mean()
        assert found[f"state/size@{layer}"] == pytest.approx(size, rel=1e-5)
        assert found[f"state/turn@{layer}"] == pytest.approx(turn, abs=1e-5)
    assert found["state/turn@3"] > 0.1


def test_causal_metrics_are_those_of_reset_weights_on_a_few_samples(monkeypatch):
    """Against decoders whose weights are zeroed for good, evaluated on as many samples a cell."""
    task = small_task()

    def lenient(logits, labels):
        """Any function of the logits that depends on the updates."""
        return {"exact_match": (logits[:, -1, 3] > 0), "token_accuracy": logits[:, -1, 3]}

    monkeypatch.setattr("tape_exp.tasks.base.row_scores", lenient)
    found = task.evaluate(trained("tape", task), silent).metrics
    few = small_task()
    few.samples_per_cell = task.diagnosed_per_cell
    for name, parts in RESETS.items():
        model = trained("tape", task)
        zeroed(model.decoder, parts)
        expected = few.evaluate(model, silent).metrics
        for split in ("id", "ood"):
            key = f"{split}/exact_match"
            assert found[f"causal/{name}/{key}"] == pytest.approx(expected[key])
    assert len({value for key, value in found.items() if key.startswith("causal/")}) > 3
    assert task.samples_per_cell == 20


def test_what_has_no_state_has_no_metrics_of_it():
    """With two batches of the grid, as debug=one_batch has one."""
    task = small_task()
    found = task.evaluate(trained("rope", task), silent, limit=2)
    assert {key.partition("/")[0] for key in found.metrics} >= {"forced", "failures"}
    assert not [key for key in found.metrics if key.startswith(("causal/", "state/"))]
