"""What the paper's text says of its tables, against the tables in results/paper.yaml."""

import pytest
from omegaconf import OmegaConf

from tape_exp.paper.artifacts import RESULTS


def table(name: str) -> dict:
    return OmegaConf.to_container(OmegaConf.load(RESULTS / "paper.yaml"))[name]


def test_added_tokens_move_tape_further_than_its_ablation():
    """In dot products of positions, in the last layer of the table; shifted ids do not."""
    added, shifted = (table("tab_shift")["products"][how] for how in ("add_tokens", "shift_ids"))
    last = {model: values[-1] for model, values in added.items()}
    assert last["tape"] > last["tape_no_equivariance"] > 200 * last["rope"]
    assert shifted["tape"][-1] < 0.05 * shifted["tape_no_equivariance"][-1]


def test_the_lead_in_print_is_that_of_another_length():
    """The lead over the worst rival on PG-19, in percent."""
    paper = table("tab_tune_ppl")
    rivals = dict(paper["perplexity"]["pg19"])
    tape = rivals.pop("tape")
    worst = [max(values) for values in zip(*rivals.values(), strict=True)]
    leads = [100 * (1 - ours / theirs) for ours, theirs in zip(tape, worst, strict=True)]
    found = dict(zip(paper["lengths"], leads, strict=True))
    assert [found[n] for n in (1024, 4096, 8192)] == pytest.approx([17.6, 18.7, 18.3], abs=0.05)


def test_three_times_the_heads_is_no_row_of_the_ablation():
    """The added parameters, which are proportional to the width, say which widths were run."""
    added = table("tab_ablation_I")["added_m"]
    assert [m / added["tape_i1"] for m in added.values()] == pytest.approx([1, 2, 4, 8, 16])


def test_theta_scaling_finds_as_many_pass_keys_as_tape():
    found = table("fig_passkey")["accuracy"]
    assert sum(found["theta"]) == sum(found["tape"])
    assert max(found["lora"][0], found["longlora"][0]) == 40, "within Llama-2's own context"
