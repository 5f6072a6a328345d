"""Rows of additions, the least significant digits first: written, and scored by how they fail."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.seeding import uniform_ints
from tape_exp.tasks.slices import RowScores, split_means

# Tokens; the other digits are up to ZERO + 9
PAD = 0
EOS = 1
PLUS = 2
EQUALS = 3
ZERO = 4
VOCABULARY = ["<pad>", "<eos>", "+", "=", *"0123456789"]
FAULTS = ("wrong_digit", "eos_early", "eos_late")  # numbered from 1; 0 is a sum without a fault


def sums_of(batch: Batch) -> list[bytes]:
    """Return the tokens of each row as bytes, without EOS and padding."""
    rows = batch["inputs"].byte().numpy()
    return [row.tobytes().rstrip(bytes((PAD, EOS))) for row in rows]


def row_length(digits: int) -> int:
    """Count the tokens of the longest row: two operands, a sum of one digit more, ``+``, ``=`` and
    EOS.
    """
    return 3 * digits + 4


def write_rows(a: np.ndarray, b: np.ndarray, random: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write additions of operands of ``a`` and ``b`` digits, which ``random`` (rows, 2 n) gives.

    With n = 2, a = 2 and b = 1, the operands 12 and 9 make ``21+9=12<eos>`` and two tokens of
    padding; ``12<eos>`` is the answer.

    Returns:
        tokens (rows, :func:`row_length` of n) uint8, right-padded, and which of them are the answer
        and its EOS.
    """
    rows = random.shape[0]
    n = random.shape[1] // 2
    first = draw_operands(a, random[:, :n])
    second = draw_operands(b, random[:, n:])
    total = add(first, second)
    longest = np.maximum(a, b)
    c = longest + (total[np.arange(rows), longest] > 0)

    sign = np.ones((rows, 1), dtype=np.uint8)
    # The columns that a row may take, and how many of them it takes.
    pieces = (
        (first + ZERO, a),
        (sign * PLUS, 1),
        (second + ZERO, b),
        (sign * EQUALS, 1),
        (total + ZERO, c),
        (sign * EOS, 1),
    )
    symbols = []
    is_used = []
    for columns, used in pieces:
        symbols.append(columns)
        is_used.append(np.arange(columns.shape[1]) < np.broadcast_to(used, rows)[:, None])
    column = np.arange(row_length(n))
    end = (a + b + c + 3)[:, None]
    tokens = np.zeros((rows, len(column)), dtype=np.uint8)
    tokens[column < end] = np.concatenate(symbols, 1)[np.concatenate(is_used, 1)]
    return tokens, (column > (a + b + 1)[:, None]) & (column < end)


def draw_operands(lengths: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Draw the digits of numbers of these lengths, (rows, n) uint8, the least significant first.

    The last digit of a number is not 0, and after it are zeros.
    """
    row = np.arange(len(lengths))
    is_digit = np.arange(random.shape[1]) < lengths[:, None]
    digits = (uniform_ints(10, random) * is_digit).astype(np.uint8)
    digits[row, lengths - 1] = uniform_ints(9, random[row, lengths - 1]) + 1
    return digits


def add(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Add numbers digit by digit: (rows, n) and (rows, n) give (rows, n + 1), all uint8.

    >>> add(np.array([[2, 9]], dtype=np.uint8), np.array([[9, 0]], dtype=np.uint8)).tolist()
    [[1, 0, 1]]
    """
    rows, n = first.shape
    total = np.zeros((n + 1, rows), dtype=np.uint8)  # place by place: the carry runs over rows
    total[:n] = (first + second).T
    for place in range(n):
        carry = total[place] >= 10
        total[place] -= 10 * carry.astype(np.uint8)
        total[place + 1] += carry
    return total.T


def sum_scores(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Say how the arg-max of ``logits`` (B, T, V) fails, given the right answer so far.

    Greedy decoding makes the same first mistake, and goes its own way only after it.

    Returns:
        ``fault`` (B,): the first mistake, 0 where there is none: 1, another token than EOS instead
        of a digit; 2, EOS instead of a digit; 3, another token than EOS after the last digit.
        ``forced`` (B,): whether all digits are right where EOS may not be chosen before their end,
        and is given after it.
    """
    labelled = labels != IGNORE
    of_digits = labelled & (labels != EOS)
    chosen = logits.argmax(-1)
    wrong = labelled & (chosen != labels)
    kind = wrong * (1 + (of_digits & (chosen == EOS)).int() + 2 * ~of_digits)
    fault = kind.gather(1, wrong.int().argmax(1, keepdim=True))[:, 0]
    barred = logits.clone()
    barred[..., EOS] = -torch.inf
    forced = ((barred.argmax(-1) == labels) | ~of_digits).all(1)
    return {"fault": fault.to(torch.int8), "forced": forced}


def fault_metrics(
    scores: Mapping[Any, RowScores], is_trained: Callable[[Any], bool]
) -> dict[str, float]:
    """Compute ``forced/<split>/exact_match`` in percent, and ``failures/<split>/<fault>``: the
    share of wrong sums that begin with each fault, where there are wrong sums.

    Trained sums with the faults 0, 0, 1, 3 give ``failures/id/wrong_digit`` = 50,
    ``failures/id/eos_early`` = 0 and ``failures/id/eos_late`` = 50.
    """
    forced = {cell: {"exact_match": of_cell["forced"]} for cell, of_cell in scores.items()}
    means = split_means(forced, ("exact_match",), is_trained)
    metrics = {f"forced/{name}": value for name, value in means.items()}
    for split, trained in (("id", True), ("ood", False)):
        cells = [of["fault"] for cell, of in scores.items() if is_trained(cell) == trained]
        faults = np.concatenate(cells) if cells else np.zeros(0)
        for number, name in enumerate(FAULTS, 1) if faults.any() else ():
            share = (faults[faults > 0] == number).mean()
            metrics[f"failures/{split}/{name}"] = 100 * float(share)
    return metrics
