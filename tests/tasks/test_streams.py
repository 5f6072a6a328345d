"""What every task that trains owes: sample k of its stream is a function of (seed, k), and its
validation rows are the same for every seed.
"""

import pytest
import torch

from tape_exp.settings.compose import compose_config
from tape_exp.training.from_config import make_task
from tests.conftest import on_text

TASKS = {
    "arithmetic": [],
    "word_problem": [],
    "battery": ["task.problem=stack"],
    "scrolls": ["task.dataset=narrative_qa", "task.tokenizer.kind=byte"],
    "c4": [],
    "mixture": ["task.train_length=256", "task.rows={text: 2, passkey: 2, fact: 2}"],
    "retrieval_training": ["task.items=4", "task.digits=5"],
}
FAR = {"arithmetic": 10**12, "word_problem": 10**12, "battery": 10**12}  # without epochs or prompts


@pytest.mark.parametrize("name", TASKS)
def test_sample_k_is_a_function_of_the_seed_and_k(name, text_folder):
    words = [f"task={name}", f"cache={text_folder}/cache", *TASKS[name]]
    if name in ("c4", "mixture", "retrieval_training"):
        words[1:1] = on_text(text_folder, name if name != "mixture" else "pg19_proof_pile")

    def task(seed):
        made = make_task(compose_config([*words, f"seed={seed}"]))
        made.prepare_data()
        return made

    first, again, other = task(0), task(0), task(1)
    start = FAR.get(name, 1000)
    whole = first.train_batch(start, 24)
    parts = [again.train_batch(start + at, count) for at, count in ((0, 5), (5, 1), (6, 18))]
    for key, rows in whole.items():
        assert torch.equal(rows, torch.cat([part[key] for part in parts]))
    assert not torch.equal(other.train_batch(start, 24)["inputs"], whole["inputs"])
    assert len(whole["inputs"].unique(dim=0)) > 20
    for one, two in zip(first.validation_batches(), other.validation_batches(), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)
