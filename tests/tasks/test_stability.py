"""Stability under shifts: proposition 2 holds where it should, and the comparison would see where
it does not.
"""

import itertools

import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.trace import trace
from tape_exp.settings.schema import Arch
from tape_exp.tasks.stability import random_copy, shift_error, shift_rows
from tape_exp.training import from_config
from tape_exp.training.from_config import make_task
from tape_exp.training.on_device import OnDevice
from tests.conftest import DIGITS, make_decoder, silent, text_config

BOS = 1
TOKENS = torch.randint(2, 14, (2, 24), generator=torch.Generator().manual_seed(0))
STABLE = [
    "rope",
    "tape",
    "tape_tensor",
    "tape_fourier",
    "tape_yarn",
    "alibi",
    "t5",
    "nope",
    "randpe",
]


@pytest.fixture
def arch() -> Arch:
    sizes = {"layers": 3, "width": 32, "heads": 4, "ffn": 48, "vocab": 14, "digits": DIGITS}
    return Arch(**sizes, max_length=48, train_length=24)


def random_decoder(name: str, arch: Arch, std: float = 0.2):
    model = make_decoder(name, arch)
    randomise(model, std)
    return model


@pytest.mark.parametrize("name", STABLE)
def test_shifted_ids_change_nothing_but_rounding(name, arch):
    """Proposition 2, in fp32 and with weights that make attention far from uniform."""
    model = random_decoder(name, arch)
    assert shift_error(model, TOKENS) < 1e-4
    rows = shift_rows(model, TOKENS, BOS, [1, 2, 3])
    for layer in (1, 2, 3):
        assert rows["shift_ids", layer].get("products", 0) < 1e-5
        assert rows["shift_ids", layer].get("blocks", 0) < 1e-5


@pytest.mark.parametrize("name", ["tape_no_equivariance", "tape_full"])
def test_without_equivariance_they_change_from_the_second_layer_on(name, arch):
    model = random_decoder(name, arch)
    rows = shift_rows(model, TOKENS, BOS, [1, 2, 3])
    first, second, third = (rows["shift_ids", layer] for layer in (1, 2, 3))
    assert max(first.values()) < 1e-5
    assert min(second["attention_relative"], third["attention_relative"]) > 1e-2
    assert min(second["blocks"], third["products"]) > 1e-2
    assert shift_error(model, TOKENS) > 1e-2


def test_added_tokens_are_compared_with_the_original_ones(arch):
    """With q = 0 attention is uniform: 1 / (i + 1) becomes 1 / (i + 4), from an entry further down
    and to the right.
    """
    model = make_decoder("nope", arch)
    with torch.no_grad():
        for block in model.blocks():
            block.q.weight.zero_()
    T = TOKENS.shape[1]
    changes = [(i + 1) * (1 / (i + 1) - 1 / (i + 4)) for i in range(T)]
    mean = sum(changes) / (T * (T + 1) / 2)
    rows = shift_rows(model, TOKENS, BOS, [2])
    expected = pytest.approx(mean / (2 / (T + 1)), rel=1e-5)
    assert rows["add_tokens", 2] == {"attention_relative": expected}
    assert rows["shift_ids", 2] == {"attention_relative": 0}


@pytest.mark.parametrize("name", ["tape", "tape_no_equivariance"])
def test_rows_written_out(name, arch):
    """The numbers of one row against a plain loop over pairs."""
    model = random_decoder(name, arch)
    row = shift_rows(model, TOKENS, BOS, [2], shift=2)["add_tokens", 2]
    before = trace(model, TOKENS, [2])[2]
    after = trace(model, torch.cat([torch.full((2, 2), BOS), TOKENS], 1), [2])[2]
    pairs = {key: [] for key in ("attention", "of", "products", "size", "blocks", "block size")}
    for i, j in itertools.product(range(TOKENS.shape[1]), repeat=2):
        old, new = (
            layer.matrices[0][:, i + s] @ layer.matrices[1][:, j + s].mT
            for layer, s in ((before, 0), (after, 2))
        )
        found = {"blocks": (new - old).square(), "block size": old.square()}
        if j <= i:
            a, p = before.attention[:, :, i, j], before.products[:, i, j]
            found |= {"attention": (after.attention[:, :, i + 2, j + 2] - a).abs(), "of": a}
            found |= {"products": (after.products[:, i + 2, j + 2] - p).abs(), "size": p.abs()}
        for key, values in found.items():
            pairs[key].append(values)
    mean = {key: float(torch.stack(values).mean()) for key, values in pairs.items()}
    assert row["attention_relative"] == pytest.approx(mean["attention"] / mean["of"], rel=1e-4)
    assert row["products"] == pytest.approx(mean["products"] / mean["size"], rel=1e-4)
    squares = mean["blocks"] / mean["block size"]
    assert row["blocks"] == pytest.approx(squares**0.5, rel=1e-4)


@pytest.mark.parametrize("name", ["tape", "fire", "learned"])
def test_random_copy_is_reproducible_and_leaves_the_original_alone(name, arch):
    model = make_decoder(name, arch)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    copies = [random_copy(model, seed, 0.3).state_dict() for seed in (0, 0, 1)]
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
        positional = ".position." in key and key in dict(model.named_parameters())
        assert torch.equal(copies[0][key], copies[1][key]), key
        assert torch.equal(copies[0][key], value) != positional, key
        assert torch.equal(copies[0][key], copies[2][key]) != positional, key


@pytest.mark.slow
def test_task_measures_both_weights_in_both_precisions(text_run):
    """Of layers that are there; without a checkpoint random weights only."""
    text_run("model=tape", steps=2)
    words = ["model=tape", "checkpoint=c4", "task.layers=[1,2,8]", "task.rows=2", "task.length=24"]
    _, record = text_run(*words, task="stability")
    metrics = record["metrics"]
    cases = {"trained_fp32", "trained_bf16", "random_fp32", "random_bf16"}
    assert {key.split("/")[0] for key in metrics} == cases
    assert {key.split("@")[1] for key in metrics} == {"1", "2"}
    key = "shift_ids/attention_relative@2"
    assert metrics[f"random_fp32/{key}"] < 1e-5 < metrics[f"random_bf16/{key}"]


@torch.no_grad()
def test_patterns_are_of_the_asked_layers_and_the_last(text_folder):
    cfg = text_config(text_folder, "patterns", "task.layers=[1]", "task.length=16", model="tape")
    task = make_task(cfg)
    task.prepare_data()
    model = OnDevice(from_config.make_decoder(cfg, task).eval(), torch.device("cpu"))
    matrices = task.evaluate(model, silent).matrices
    assert list(matrices) == ["attention@1", "products@1", "attention@2", "products@2"]
    assert matrices["attention@2"].shape == (16, 16)
    assert matrices["attention@2"].sum(-1) == pytest.approx(1, abs=1e-3)
