"""The diagnostics of wrong sums, on models that make planted mistakes and against brute force."""

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.arithmetic import EOS, EQUALS, VOCABULARY, Arithmetic
from tape_exp.tasks.sum_faults import FAULTS, longest_carry_chain, sum_scores

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)
OPTIM = Optim(batch=8, max_steps=2, lr=1e-3)


def silent(items, description):
    return items


def evaluated(says):
    """The evaluation of a model that, for operands a and b, chooses what ``says`` gives for each
    place of the answer, the right one second; trained on 2 digits, tested on 4.
    """

    def model(tokens, sampler=None):
        logits = torch.zeros(*tokens.shape, len(VOCABULARY))
        for of_row, row in zip(logits, tokens.tolist(), strict=True):
            equal = row.index(EQUALS)
            a, b = "".join(VOCABULARY[t] for t in row[:equal]).split("+")
            right = [*str(int(a[::-1]) + int(b[::-1]))[::-1], "<eos>"]
            said = says(a, b, right)
            for place, (word, best) in enumerate(zip(right, said, strict=True), equal):
                of_row[place, VOCABULARY.index(word)] = 1
                of_row[place, VOCABULARY.index(best)] = 2
        return logits

    task = Arithmetic(ARCH, OPTIM, 0, 2, 4, samples_per_cell=20, rows_per_batch=50)
    return task, task.evaluate(model, silent)


def test_a_model_without_mistakes():
    _, found = evaluated(lambda a, b, right: right)
    for split in ("test", "id", "ood"):
        assert found.metrics[f"forced/{split}/exact_match"] == 100
    assert not any(name.startswith("failures/") for name in found.metrics)
    assert [row["ring"] for row in found.tables["rings"]] == [1, 2, 3, 4]
    assert all(row["exact_match"] == row["digit_accuracy"] == 100 for row in found.tables["rings"])
    assert all(row[fault] is None for row in found.tables["rings"] for fault in FAULTS)


def test_right_digits_with_eos_too_early():
    """It ends every answer after two digits, as if all sums were short."""
    _, found = evaluated(lambda a, b, right: [*right[:2], *["<eos>"] * (len(right) - 2)])
    assert found.metrics["ood/exact_match"] == 0
    assert found.metrics["forced/ood/exact_match"] == 100
    for split in ("id", "ood"):
        assert [found.metrics[f"failures/{split}/{fault}"] for fault in FAULTS] == [0, 100, 0]
    right = {(row["cells"], row["place"]): row["accuracy"] for row in found.tables["places"]}
    places = [("id", place) for place in (1, 2, 3)] + [("ood", place) for place in range(1, 6)]
    assert right == {(split, place): 100 if place < 3 else 0 for split, place in places}
    rings = {row["ring"]: row for row in found.tables["rings"]}
    assert (rings[1]["eos_early"], rings[3]["eos_early"]) == (None, 100)
    assert (rings[3]["exact_match"], rings[3]["forced_exact_match"]) == (0, 100)
    assert (rings[1]["samples"], rings[2]["samples"], rings[4]["samples"]) == (20, 60, 140)


def test_only_carries_are_wrong():
    """A model that adds without carrying is right where nothing is carried, and only there."""

    def without_carry(a, b, right):
        n = len(right) - 1
        digits = zip(a.ljust(n, "0"), b.ljust(n, "0"), strict=True)
        return [*(str((int(x) + int(y)) % 10) for x, y in digits), "<eos>"]

    task, found = evaluated(without_carry)
    chains = {(row["cells"], row["chain"]): row for row in found.tables["carries"]}
    assert {chain for _, chain in chains} == {0, 1, 2, 3, 4}
    for (_, chain), row in chains.items():
        assert row["exact_match"] == (100 if chain == 0 else 0)
    assert sum(row["samples"] for row in chains.values()) == 20 * 16
    free = np.concatenate([task.carry_chains((a, b)) for a in range(1, 5) for b in range(1, 5)])
    assert found.metrics["test/exact_match"] == pytest.approx(100 * (free == 0).mean())


def test_carry_chains_are_those_of_adding_by_hand():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 10, (500, 7)), rng.integers(0, 10, (500, 4))
    for x, y, found in zip(first, second, longest_carry_chain(first, second), strict=True):
        carry, carries = 0, ""
        for place in range(7):
            carry = int(x[place] + (y[place] if place < 4 else 0) + carry >= 10)
            carries += str(carry)
        assert found == max(map(len, carries.split("0")))
    for a, b, length in (("5", "5", 1), ("99", "1", 2), ("505", "505", 1), ("12", "34", 0)):
        digits = ([[int(d) for d in reversed(number)]] for number in (a, b))
        assert longest_carry_chain(*map(np.array, digits)).tolist() == [length]


def test_scores_are_those_of_decoding_place_by_place():
    """Random logits that lean towards the right token, so that every fault occurs."""
    generator = torch.Generator().manual_seed(0)
    task = Arithmetic(ARCH, OPTIM, 0, 2, 4, samples_per_cell=40)
    labels = task.grid_batch([(1, 1), (2, 1), (3, 4)])["labels"]
    logits = torch.randn(*labels.shape, len(VOCABULARY), generator=generator)
    logits.scatter_add_(2, labels.clamp(min=0)[..., None], torch.full((*labels.shape, 1), 2.5))
    found = sum_scores(logits, labels, EOS, places=5)
    seen = set()
    for number, (of_row, row) in enumerate(zip(logits, labels, strict=True)):
        places = (row != IGNORE).nonzero()[:, 0].tolist()
        fault, forced, digits = 0, True, []
        for place in places:
            best, right = int(of_row[place].argmax()), int(row[place])
            if right != EOS:
                barred = [v if t != EOS else -9e9 for t, v in enumerate(of_row[place].tolist())]
                forced &= int(np.argmax(barred)) == right
                digits.append(int(best == right))
            if best != right and not fault:
                fault = 3 if right == EOS else 2 if best == EOS else 1
        seen.add(fault)
        assert int(found["fault"][number]) == fault
        assert bool(found["forced"][number]) == forced
        assert found["digits"][number].tolist() == [*digits, *[-1] * (5 - len(digits))]
    assert seen == {0, 1, 2, 3}
