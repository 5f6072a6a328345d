"""The addition task: its stream, its grid, scores as of decoding, and why sums are wrong."""

import re

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.tasks.sums import (
    EOS,
    EQUALS,
    FAULTS,
    PAD,
    VOCABULARY,
    row_length,
    sum_scores,
    sums_of,
)
from tests.conftest import silent

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)
OPTIM = Optim(batch=8, max_steps=2, lr=1e-3)
ROW = re.compile(r"(\d+)\+(\d+)=(\d+)<eos>")


def make(train_digits=3, test_digits=6, seed=0, **options) -> Arithmetic:
    return Arithmetic(ARCH, OPTIM, seed, train_digits, test_digits, **options)


def text(tokens) -> str:
    return make().decode(tokens)


def rows_of(digits, count, seed) -> list[list[int]]:
    """The first rows of a training stream, with their EOS."""
    batch = make(digits, digits, seed).train_batch(0, count)
    last = batch["labels"][:, -1:].clamp(min=0)
    return torch.cat([batch["inputs"], last], 1).tolist()


def parse(tokens) -> tuple[int, int, int, int, int]:
    """(a, b, a + b as written, length of a, length of b) of a row of tokens, least-significant
    digit first.
    """
    a, b, c = ROW.fullmatch(text(tokens)).groups()
    assert not c.endswith("0") or c == "0"
    return int(a[::-1]), int(b[::-1]), int(c[::-1]), len(a), len(b)


def test_sums_of_the_test_are_held_out_of_training():
    """But for those of 1 × 1 and 1 × 2 digits; other rows stay as they are."""
    plain, held = (make(3, hold_out=value) for value in (False, True))
    few = [(1, 1), (1, 2), (2, 1)]
    cells = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if (a, b) not in few]
    test, rare = ({*sums_of(held.grid_batch(some))} for some in (cells, few))
    before, after = (sums_of(task.train_batch(40, 4000)) for task in (plain, held))
    assert test.isdisjoint(after)
    assert rare & {*after}
    assert {old in test for old, new in zip(before, after, strict=True) if old != new} == {True}


@pytest.mark.parametrize("digits", [1, 5, 40])
def test_rows_are_true_additions(digits):
    for row in rows_of(digits, 500, 7):
        assert len(row) == row_length(digits)
        a, b, c, length_a, length_b = parse(row)
        assert a + b == c
        assert len(str(a)) == length_a
        assert len(str(b)) == length_b
        assert row == sorted(row, key=lambda token: token == PAD)


@pytest.mark.slow
def test_lengths_and_digits_are_uniform_and_independent():
    rows = [parse(row) for row in rows_of(4, 40_000, 3)]
    counts = np.zeros((4, 4))
    for *_, a, b in rows:
        counts[a - 1, b - 1] += 1
    expected = len(rows) / 16
    assert (
        ((counts - expected) ** 2) / expected
    ).sum() < 37.7  # χ², 15 degrees of freedom, p = 0.001
    first = np.bincount([a for a, *_, length, _ in rows if length == 1], minlength=10)[1:]
    assert ((first - first.mean()) ** 2 / first.mean()).sum() < 26.1  # 8 degrees of freedom
    second = np.bincount([a % 10 for a, *_, length, _ in rows if length == 2], minlength=10)
    assert ((second - second.mean()) ** 2 / second.mean()).sum() < 27.9  # 9 degrees of freedom


def test_loss_is_on_the_answer_and_eos_alone():
    batch = make().train_batch(0, 200)
    for inputs, labels in zip(batch["inputs"], batch["labels"], strict=True):
        row = [*inputs.tolist()]
        equal = row.index(EQUALS)
        scored = [VOCABULARY[t] for t in labels[labels != IGNORE].tolist()]
        assert (labels[:equal] == IGNORE).all()
        _, _, c = ROW.fullmatch(
            text([*row[: equal + 1], *labels[labels != IGNORE].tolist()])
        ).groups()
        assert scored == [*c, "<eos>"]


def test_grid_cells_hold_their_lengths_and_do_not_depend_on_seed_or_grid():
    small, large = make(test_digits=4), make(test_digits=6, seed=9)
    cells = [(1, 4), (3, 2)]
    batch = small.grid_batch(cells)
    full = torch.cat([batch["inputs"], torch.full((200, 1), PAD)], 1)
    for number, (row, labels) in enumerate(zip(full, batch["labels"], strict=True)):
        row = row.clone()
        position = int((labels != IGNORE).nonzero()[-1])
        row[position + 1] = EOS
        a, b, c, *lengths = parse(row.tolist())
        assert a + b == c
        assert tuple(lengths) == cells[number // 100]
    assert torch.equal(batch["inputs"], large.grid_batch(cells)["inputs"])


def saying(says):
    """A model that, for operands a and b, chooses what ``says`` gives for each place of the answer,
    the right one second.
    """

    def model(tokens, sampler=None):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY))
        for of_row, row in zip(logits, tokens.tolist(), strict=True):
            equal = row.index(EQUALS)
            a, b = "".join(VOCABULARY[t] for t in row[:equal]).split("+")
            right = [*str(int(a[::-1]) + int(b[::-1]))[::-1], "<eos>"]
            for place, (word, best) in enumerate(zip(right, says(a, b, right), strict=True), equal):
                of_row[place, VOCABULARY.index(word)] = 1
                of_row[place, VOCABULARY.index(best)] = 2
        return logits

    return model


def test_evaluate_fills_the_grid_in_the_right_cells():
    """A model that is right only where the first operand is the longer one."""
    task = make(train_digits=2, test_digits=4, samples_per_cell=5, rows_per_batch=7)
    model = saying(lambda a, b, right: right if len(a) > len(b) else ["+"] * len(right))
    evaluation = task.evaluate(model, silent)
    assert np.array_equal(evaluation.heatmap.values, 100.0 * np.tril(np.ones((4, 4)), -1))
    partial = task.evaluate(model, silent, limit=2)
    assert np.isnan(partial.heatmap.values).sum() == 14


@pytest.mark.parametrize("digits", [9, 2])
def test_right_digits_with_eos_too_early(digits):
    """All right, or it ends every answer after two digits, as if all sums were short."""

    def says(a, b, right):
        return [*right[:digits], *["<eos>"] * (len(right) - digits)]

    metrics = make(2, 4, samples_per_cell=20).evaluate(saying(says), silent).metrics
    for split in ("id", "ood"):
        assert metrics[f"forced/{split}/exact_match"] == 100
        shares = [metrics.get(f"failures/{split}/{fault}") for fault in FAULTS]
        assert shares == ([0, 100, 0] if digits == 2 else [None] * 3)
    assert metrics["ood/exact_match"] == (0 if digits == 2 else 100)


def test_scores_are_those_of_decoding_place_by_place():
    """Random logits that lean towards the right token, so that every fault occurs."""
    generator = torch.Generator().manual_seed(0)
    task = make(2, 4, samples_per_cell=40)
    labels = task.grid_batch([(1, 1), (2, 1), (3, 4)])["labels"]
    logits = torch.randn(*labels.shape, len(VOCABULARY), generator=generator)
    logits.scatter_add_(2, labels.clamp(min=0)[..., None], torch.full((*labels.shape, 1), 2.5))
    found = sum_scores(logits, labels)
    seen = set()
    for number, (of_row, row) in enumerate(zip(logits, labels, strict=True)):
        places = (row != IGNORE).nonzero()[:, 0].tolist()
        fault, forced = 0, True
        for place in places:
            best, right = int(of_row[place].argmax()), int(row[place])
            if right != EOS:
                barred = [v if t != EOS else -9e9 for t, v in enumerate(of_row[place].tolist())]
                forced &= int(np.argmax(barred)) == right
            if best != right and not fault:
                fault = 3 if right == EOS else 2 if best == EOS else 1
        seen.add(fault)
        assert int(found["fault"][number]) == fault
        assert bool(found["forced"][number]) == forced
    assert seen == {0, 1, 2, 3}
