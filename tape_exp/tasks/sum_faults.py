"""What is wrong with wrong sums: where the first mistake is, and of which digits and sums."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE
from tape_exp.tasks.slices import Scores, split_means

Cell = tuple[int, int]
FAULTS = ("wrong_digit", "eos_early", "eos_late")  # numbered from 1; 0 is a sum without a fault


def sum_scores(logits: Tensor, labels: Tensor, eos: int, places: int) -> dict[str, Tensor]:
    """How the arg-max of ``logits`` (B, T, V) fails, given the right answer so far.

    Greedy decoding makes the same first mistake, and goes its own way only after it.

    Returns:
        ``fault`` (B,): the first mistake, 0 where there is none: 1, another token than EOS instead
        of a digit; 2, EOS instead of a digit; 3, another token than EOS after the last digit.
        ``forced`` (B,): whether all digits are right where EOS may not be chosen before their end,
        and is given after it. ``digits`` (B, places): 1 where the arg-max is the right digit, 0
        where not, from the least significant one; -1 where the sum has no such place.
    """
    labelled = labels != IGNORE
    of_digits, chosen = labelled & (labels != eos), logits.argmax(-1)
    wrong = labelled & (chosen != labels)
    kind = wrong * (1 + (of_digits & (chosen == eos)).int() + 2 * ~of_digits)
    fault = kind.gather(1, wrong.int().argmax(1, keepdim=True))[:, 0]
    barred = logits.clone()
    barred[..., eos] = -torch.inf
    forced = ((barred.argmax(-1) == labels) | ~of_digits).all(1)
    columns = labelled.int().argmax(1, keepdim=True) + torch.arange(places, device=labels.device)
    columns = columns.clamp(max=labels.shape[1] - 1)  # no digit is there: a row ends with EOS
    right = (chosen == labels).gather(1, columns).to(torch.int8)
    digits = right.masked_fill(~of_digits.gather(1, columns), -1)
    return {"fault": fault.to(torch.int8), "forced": forced, "digits": digits}


def longest_carry_chain(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The largest number of successive places that carry, of each sum: (rows,).

    The digits of the operands are (rows, length) each, the least significant first.
    """
    rows, n = len(first), max(first.shape[1], second.shape[1])
    total = np.zeros((rows, n), dtype=np.int64)
    for operand in (first, second):
        total[:, : operand.shape[1]] += operand
    chain, longest = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for column in total.T:
        chain = np.where(column + (chain > 0) >= 10, chain + 1, 0)
        longest = np.maximum(longest, chain)
    return longest


def fault_metrics(
    scores: Mapping[Cell, Scores], is_trained: Callable[[Any], bool]
) -> dict[str, float]:
    """``forced/<split>/exact_match`` in percent, and ``failures/<split>/<fault>``: the share of
    wrong sums that begin with each fault, where there are wrong sums.
    """
    forced = {cell: {"exact_match": of_cell["forced"]} for cell, of_cell in scores.items()}
    means = split_means(forced, ("exact_match",), is_trained)
    metrics = {f"forced/{name}": value for name, value in means.items()}
    for split, parts in by_split(scores, is_trained).items():
        shares = fault_shares(np.concatenate([part["fault"] for part in parts]))
        metrics |= {f"failures/{split}/{name}": value for name, value in shares.items()}
    return metrics


def fault_tables(
    scores: Mapping[Cell, Scores],
    chains: Mapping[Cell, np.ndarray],
    is_trained: Callable[[Any], bool],
) -> dict[str, list[dict[str, Any]]]:
    """Tables ``rings``, ``places`` and ``carries``; every sum weighs the same, as all cells have
    equally many.

    Args:
        chains: of each cell, the longest carry chain of its sums.
    """
    splits = by_split(
        {cell: {**scores[cell], "chain": chains[cell]} for cell in scores}, is_trained
    )
    places, carries = [], []
    for split, parts in splits.items():
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for place, right in enumerate(whole["digits"].T, 1):
            places += [{"cells": split, "place": place} | counted("accuracy", right[right >= 0])]
        for chain in np.unique(whole["chain"]):
            solved = whole["fault"][whole["chain"] == chain] == 0
            carries += [{"cells": split, "chain": int(chain)} | counted("exact_match", solved)]
    rings = [
        ring_row(ring, [scores[cell] for cell in scores if max(cell) == ring])
        for ring in sorted(set(map(max, scores)))
    ]
    return {"rings": rings, "places": [row for row in places if row["samples"]], "carries": carries}


def by_split(
    scores: Mapping[Cell, Scores], is_trained: Callable[[Any], bool]
) -> dict[str, list[Scores]]:
    """The cells that training shows, ``id``, and the others, ``ood``, where there are any."""
    splits: dict[str, list[Scores]] = {}
    for cell in sorted(scores, key=lambda cell: (not is_trained(cell), cell)):
        splits.setdefault("id" if is_trained(cell) else "ood", []).append(scores[cell])
    return splits


def fault_shares(faults: np.ndarray) -> dict[str, float]:
    """The share of each fault among the wrong sums, in percent; none where all are right."""
    wrong = faults[faults > 0]
    kinds = enumerate(FAULTS, 1) if len(wrong) else ()
    return {name: 100 * float((wrong == number).mean()) for number, name in kinds}


def ring_row(ring: int, cells: list[Scores]) -> dict[str, Any]:
    """The sums whose longer operand has ``ring`` digits."""
    fault, forced = (np.concatenate([cell[key] for cell in cells]) for key in ("fault", "forced"))
    digits = np.concatenate([cell["digits"].ravel() for cell in cells])
    shares = {name: round(share, 2) for name, share in fault_shares(fault).items()}
    row = {"ring": ring, **counted("exact_match", fault == 0)}
    row |= {"forced_exact_match": percent(forced), "digit_accuracy": percent(digits[digits >= 0])}
    return row | dict.fromkeys(FAULTS) | shares


def counted(name: str, right: np.ndarray) -> dict[str, Any]:
    """A share in percent, and of how many."""
    return {name: percent(right) if len(right) else None, "samples": len(right)}


def percent(right: np.ndarray) -> float:
    """The mean, as a table shows it."""
    return round(100 * float(right.mean()), 2)
