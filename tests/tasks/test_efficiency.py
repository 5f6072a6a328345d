"""Counts: the paper's table must come out of its convention; ours are counted by torch."""

import pytest
import torch

from tape_exp.artifacts.artifact import reported
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.schema import Arch
from tape_exp.tasks.efficiency import paper_convention, true_flops
from tests.conftest import make_decoder
from tests.tasks.in_two import evaluate

PAPER = Arch(12, 768, 12, 3072, vocab=32_000, max_length=1024, train_length=1024)


@pytest.mark.parametrize("model", ["rope", "tape", "fire", "t5"])
def test_counts_are_the_papers(model):
    published = reported()["tab_flops"]
    with torch.device("meta"):
        decoder = make_decoder(model, PAPER)
    macs, flops = paper_convention(decoder, 1024)
    assert round(flops / 1e9, 2) == published["flops_g"][model]
    assert round(macs / 1e9, 2) == published["macs_g"][model]
    assert decoder.parameter_count() / 2**20 == pytest.approx(
        published["parameters_m"][model], abs=0.006
    )


def test_true_count_of_rope_by_hand():
    """Linear layers and the head, and causal attention: 2 products, half of the square."""
    parameters = 12 * (4 * 768**2 + 3 * 768 * 3072) + 768 * 32_000
    expected = 2 * parameters * 1024 + 2 * 12 * 12 * 64 * 1024**2
    assert true_flops(PAPER, RoPE, 1024) == expected


def test_tape_computes_little_more_than_rope():
    """The complex state adds one product in attention, and two H × H products a token: 3.4 %, not
    the 14 % published.
    """
    rope, tape = true_flops(PAPER, RoPE, 1024), true_flops(PAPER, TAPE, 1024)
    assert 1.02 < tape / rope < 1.04
    published = reported()["tab_flops"]["flops_g"]
    assert published["tape"] / published["rope"] == pytest.approx(1.139, abs=1e-3)


@pytest.mark.slow
def test_other_encodings_are_not_counted_in_the_papers_convention():
    sizes = ["task.arch.layers=2", "task.arch.width=32", "task.arch.heads=2", "task.arch.ffn=32"]
    metrics = evaluate(["model=cope", "task=efficiency", "task.length=16", *sizes])
    assert metrics.keys() == {"count/parameters", "count/flops"}
    decoder = make_decoder("cope", Arch(2, 32, 2, 32, vocab=32_000))
    assert metrics["count/parameters"] == decoder.parameter_count()


def test_the_rival_computes_the_same_function():
    """SeparateTAPE in three calls equals TAPE, or its time would mean nothing."""
    from benchmarks.speed import SeparateTAPE, separate_calls
    from tape_exp.models.conformance import randomise

    arch = Arch(3, 32, 4, 32, vocab=14, max_length=32, train_length=32)
    ours = Decoder(arch, TAPE)
    randomise(ours)
    rival = Decoder(arch, SeparateTAPE)
    for block in rival.blocks():
        block.attend = separate_calls
    rival.load_state_dict(ours.state_dict())
    tokens = torch.randint(0, 14, (2, 20), generator=torch.Generator().manual_seed(0))
    assert (ours(tokens) - rival(tokens)).abs().max() < 1e-4
