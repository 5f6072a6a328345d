"""Index hints: a letter before each digit of a sum, the same for digits of equal place."""

import numpy as np

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens (rows, length), right-padded with 0; the index of ``=`` in each row; each row's length."""


def with_hints(rows: Rows, zero: int, first: int, offset: np.ndarray) -> Rows:
    """The rows with the letter ``first + offset + i`` before digit i = 0, 1, … of each number.

    Args:
        zero: the id of the digit 0; those of the others follow, and no higher ones are in a row.
        first: the id of the letter ``a``.
        offset: how many letters each row leaves out, (rows,).
    """
    tokens, equals, end = rows
    count, length = tokens.shape
    index, digit = np.arange(length), tokens >= zero
    place = index - np.maximum.accumulate(np.where(digit, -1, index), 1) - 1
    inside = index < end[:, None]
    after = (inside * (1 + digit)).cumsum(1)  # where the new row goes on after each token
    hinted = np.zeros((count, 2 * length - 3), dtype=np.int32)  # +, = and EOS have no letter
    row, column = np.nonzero(inside)
    hinted[row, after[row, column] - 1] = tokens[row, column]
    row, column = np.nonzero(digit)
    hinted[row, after[row, column] - 2] = first + offset[row] + place[row, column]
    return hinted, after[np.arange(count), equals] - 1, after[:, -1]


def letter(number: int) -> str:
    """a, b, … z, aa, ab, … of 0, 1, …"""
    higher, lowest = divmod(number, 26)
    return (letter(higher - 1) if higher else "") + chr(ord("a") + lowest)
