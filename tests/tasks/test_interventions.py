"""What a trained model's positional state is for: parts of it or of its update are left out."""

import cmath
import itertools
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.trace import trace
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.tasks.diagnostics.interventions import (
    FACTORS,
    INTERVENTIONS,
    RESETS,
    interventions,
    mean_factors,
    with_factors,
    without,
)
from tape_exp.tasks.diagnostics.positional_state import factor_metrics, factor_names, state_metrics
from tape_exp.training.on_device import OnDevice
from tests.conftest import EVERY_MODEL, make_decoder, silent

# Of these a block of the state is one complex number.
COMPLEX = ["tape", "tape_complex", "tape_constant", "tape_unit_temperature", "tape_randpe"]
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


EVERYWHERE = torch.ones_like(TOKENS, dtype=torch.bool)


def in_fp64(name):
    """A model of random weights that computes in fp64, angles too."""
    decoder = make_decoder(name, small_task().arch).eval().requires_grad_(False).double()
    randomise(decoder)
    places = torch.arange(TOKENS.shape[1], dtype=torch.float64)[None]
    return decoder, lambda tokens, **options: decoder(
        tokens, **{"positions_BT": places} | ({"watch": options["watch"]} if options else {})
    )


def complex_states(model):
    """E of each layer as numpy has it, (B, T, H, M), from the matrices that it stands for."""
    states = {}

    def watch(block, scores, state):
        e = block.position.matrices(state)[0].expand(2, -1, 4, -1, -1, -1).numpy()
        states[block.layer] = e[..., 0, 0] + 1j * e[..., 0, 1]

    model(TOKENS, watch=watch)
    return states


def mean_over_tokens(c_NHM):
    """Written out: the exponential of the mean of log r, at the angle of the summed directions."""
    N, H, M = c_NHM.shape
    means = np.zeros((H, M), dtype=complex)
    for h, m in itertools.product(range(H), range(M)):
        r = np.prod([abs(c) ** (1 / N) for c in c_NHM[:, h, m]])
        phi = cmath.phase(sum(cmath.rect(1, cmath.phase(c)) for c in c_NHM[:, h, m]))
        means[h, m] = cmath.rect(r, phi)
    return means


def by_definition(name, c, mean):
    r, phi = cmath.polar(c)
    if name == "gain":
        return r
    if name == "turn":
        return cmath.rect(1, phi)
    return cmath.rect(abs(mean), phi) if name == "turn_mean_gain" else mean


def slow_rotation(name, layer, means, initial):
    """Queries and keys times E_1 c' with c = E_l / E_1, one pair of channels of one token each."""

    def rotate(q, k, x, state, places):
        E = state.expand(2, -1, 4, -1, -1)
        initial.setdefault("E", E)
        turned, M = [q.clone(), k.clone()], E.shape[-1]
        for b, t, h, m in itertools.product(*map(range, (*q.shape[:3], M))):
            first = complex(*initial["E"][b, t, h, :, m].tolist())
            c = complex(*E[b, t, h, :, m].tolist()) / first
            by = first * by_definition(name, c, means[layer][h, m])
            for y in turned:
                pair = complex(y[b, t, h, m], y[b, t, h, m + M]) * by
                y[b, t, h, m], y[b, t, h, m + M] = pair.real, pair.imag
        return tuple(turned)

    return rotate


@pytest.mark.parametrize("part", FACTORS)
@pytest.mark.parametrize("name", COMPLEX)
def test_parts_of_the_state_are_left_out_as_by_definition(name, part):
    """Against loops over tokens, heads and blocks that compute c from E_1 and E_l, in fp64."""
    decoder, model = in_fp64(name)
    states = complex_states(model)
    means = {n: mean_over_tokens((e / states[0]).reshape(-1, 4, 4)) for n, e in states.items()}
    intact, initial = model(TOKENS), {}
    with ExitStack() as stack:
        for block in decoder.blocks():
            slow = slow_rotation(part, block.layer, means, initial)
            stack.enter_context(patch.object(block.position, "rotate", slow))
        expected = model(TOKENS)
    with with_factors(decoder, part, mean_factors(model, [(TOKENS, EVERYWHERE)])):
        found = model(TOKENS)
    assert (found - expected).abs().max() < 1e-10
    assert torch.equal(model(TOKENS), intact)
    unchanged = name == "tape_unit_temperature" and part.startswith("turn")  # its gains are 1
    assert ((found - intact).abs().max() > 1e-3) != unchanged


@pytest.mark.parametrize("name", COMPLEX)
def test_means_are_over_all_tokens_of_all_batches_but_padding(name):
    _, model = in_fp64(name)
    counts = EVERYWHERE.clone()
    counts[1, 7:] = False
    halves = [(TOKENS, counts), (TOKENS, counts)]
    states = complex_states(model)
    found = mean_factors(model, halves)
    for layer, e in states.items():
        expected = mean_over_tokens((e / states[0])[counts.numpy()])
        assert np.abs(found[layer].numpy() - expected).max() < 1e-10


def test_gains_and_phases_are_told_apart_from_their_means():
    _, model = in_fp64("tape_complex")
    counts = EVERYWHERE.clone()
    counts[0, 5:] = False
    found = factor_metrics(model, TOKENS, counts)
    assert found.keys() == {*factor_names(small_task().arch)}
    states = complex_states(model)
    for layer, e in states.items():
        c = (e / states[0])[counts.numpy()]
        apart = c / mean_over_tokens(c)
        log_r, phi = np.abs(np.log(np.abs(apart))), np.abs(np.angle(apart))
        assert found[f"state/log_gain@{layer + 1}"] == pytest.approx(log_r.mean(), abs=1e-9)
        assert found[f"state/phase@{layer + 1}"] == pytest.approx(phi.mean(), abs=1e-9)
    for m in range(4):
        of_block = log_r[..., m].mean(), phi[..., m].mean()
        assert found[f"state/log_gain_by_block@{m + 1}"] == pytest.approx(of_block[0], abs=1e-9)
        assert found[f"state/phase_by_block@{m + 1}"] == pytest.approx(of_block[1], abs=1e-9)
    assert min(found["state/log_gain@3"], found["state/phase@3"]) > 0.1


GENERAL = {"tape_tensor", "tape_householder", "tape_full", "tape_fourier", "tape_neither"}
GENERAL |= {"tape_no_tensor", "tape_no_equivariance"}
OF_TAPE = [n for n in EVERY_MODEL if n.startswith("tape") and n != "tape_public_addition"]


@pytest.mark.parametrize("name", OF_TAPE)
def test_every_variant_of_tape_has_the_interventions_that_its_state_allows(name):
    decoder = make_decoder(name, small_task().arch).eval()
    found = interventions(decoder, decoder, [(TOKENS, EVERYWHERE)])
    assert [*found] == ([*RESETS] if name in GENERAL else [*INTERVENTIONS])
    assert bool(factor_metrics(decoder, TOKENS, EVERYWHERE)) == (name not in GENERAL)


def test_causal_metrics_are_of_trained_longer_and_next_lengths(monkeypatch):
    """The evaluation itself under each intervention, whose means are of the trained rows."""
    task = small_task()

    def lenient(logits, labels):
        """Any function of the logits that depends on the updates."""
        return {"exact_match": (logits[:, -1, 3] > 0), "token_accuracy": logits[:, -1, 3]}

    monkeypatch.setattr("tape_exp.tasks.base.row_scores", lenient)
    model = trained("tape_complex", task)
    found = task.evaluate(model, silent).metrics
    assert {key for key in found if key.startswith(("causal/", "state/", "address/"))} <= {
        *task.metric_names()
    }
    few = small_task()
    few.samples_per_cell = task.diagnosed_per_cell
    trained_cells = [(a, b) for a in (1, 2) for b in (1, 2)]
    tokens = few.grid_batch(trained_cells)["inputs"]
    means = mean_factors(model, [(tokens, tokens != 0)])
    for name in FACTORS:
        with with_factors(model.decoder, name, means):
            grid = few.evaluate(model, silent).heatmap.values
        longer = [grid[a, b] for a in range(3) for b in range(3) if max(a, b) == 2]
        assert found[f"causal/{name}/id/exact_match"] == pytest.approx(grid[:2, :2].mean())
        assert found[f"causal/{name}/ood/exact_match"] == pytest.approx(np.mean(longer))
        assert found[f"causal/{name}/next/exact_match"] == pytest.approx(np.mean(longer))
    assert len({found[f"causal/{name}/id/exact_match"] for name in INTERVENTIONS}) > 3
