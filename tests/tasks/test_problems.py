"""Problems of the battery: every row is right, every right row can be drawn, and row k of a stream
is a function of its key and k.
"""

from collections import Counter

import numpy as np
import pytest

from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM
from tape_exp.tasks.battery import PROBLEMS
from tape_exp.tasks.battery.scan import commands
from tests.tasks.solvers import NEXT, length

# Length -> how many rows there are, counted by hand, and whether all are equally likely.
COUNTS = {
    "copy": (6, 2**6, True),
    "reverse": (6, 2**6, True),
    "sort": (3, 5**3, True),
    "induction": (3, 2 * 15**2, True),
    "flip_flop": (4, 2 * 5**2, False),
    "dyck_2": (3, 5 * 2**3, True),
    "modular_arithmetic": (5, 5 * 3 * 5, True),
    "stack": (3, 2 * 3**2 + 2**2 * 3, False),
    "missing_duplicate": (7, 6 * 2**3, True),
    "binary_addition": (5, 1 * 7 + 3 * 3 + 7 * 1, False),
    "binary_multiplication": (5, 1 * 7 + 3 * 3 + 7 * 1, False),
    "multiplication": (1, 9 * 9, True),
    "scan": (2, 8 + 2 + 6 + 2 * 6 * 6, True),  # turn and act, turn opposite, twice, two commands
}


ARCH = Arch(layers=1, width=8, heads=2, ffn=8)


def make(name, n=3):
    return PROBLEMS[name](ARCH, NO_OPTIM, 0, n, [n], 1)


def stream(name, key, first, count, lengths):
    """Rows of tokens, and which of them are scored."""
    task = make(name)
    return list(task.rows(key, first, count, lengths, task.draws(max(lengths))))


def texts(name, *wanted):
    """Rows of symbols, and which of them are scored."""
    task = make(name)
    return [([task.vocabulary[i] for i in row], marks) for row, marks in stream(name, *wanted)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_scored_is_what_must_follow(name):
    lengths = list(filter(make(name).has, range(1, 20)))
    seen = set()
    for row, scored in texts(name, 1, 0, 150, lengths) + texts(name, 2, 0, 5, [40]):
        seen.add(length(name, row))
        for place, symbol in enumerate(row):
            must = NEXT[name](row[:place]) if place else None
            is_scored = symbol in ")]" if name == "dyck_2" else must is not None
            assert scored[place] == is_scored, (row, place)
            assert symbol == must or not is_scored, (row, place)
        assert NEXT[name](row) is None, row  # nothing is cut off
    assert seen == {*lengths, 40}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_every_row_can_be_drawn(name):
    n, count, uniform = COUNTS[name]
    rows = [tuple(row) for row, _ in stream(name, 3, 0, (30 if uniform else 120) * count, [n])]
    times = np.array(list(Counter(rows).values()))
    assert len(times) == count
    assert name == "scan" or max(map(len, rows)) == make(name).width(n)
    if uniform:  # χ² is within four standard deviations of its degrees of freedom
        assert abs(((times - 30) ** 2 / 30).sum() - count + 1) < 4 * (2 * (count - 1)) ** 0.5


@pytest.mark.parametrize("name", PROBLEMS)
def test_row_k_is_a_function_of_key_and_k(name):
    lengths = list(filter(make(name).has, (3, 4, 6, 8)))
    whole = stream(name, 5, 0, 24, lengths)
    parts = [stream(name, 5, *part, lengths) for part in ((0, 5), (5, 1), (6, 18))]
    assert whole == [row for part in parts for row in part]
    assert max(len(row) for row, _ in whole) <= make(name).width(8)
    assert whole != stream(name, 6, 0, 24, lengths)


def test_scan_has_the_commands_of_its_paper():
    counts = [len(commands().get(n, ())) for n in range(1, 49)]
    assert (sum(counts), sum(counts[:22])) == (20_910, 16_990)  # as the paper counts them
    assert [n for n in range(50) if not make("scan").has(n)][-3:] == [46, 47, 49]


def test_flip_flops_ignore_as_often_as_they_say():
    task = make("flip_flop", 102)
    task.samples = 400
    for slice_, share in ((102, 0.8), ("sparse", 0.98), ("dense", 0.1)):
        task._tested.clear()
        rows = np.array([row for row, _ in task.test_rows(102, slice_)])
        kinds = np.array(task.vocabulary)[rows[:, 2:-2:2]]
        for kind, expected in (("i", share), ("w", (1 - share) / 2), ("r", (1 - share) / 2)):
            assert np.isclose((kinds == kind).mean(), expected, atol=0.01)


@pytest.mark.slow
def test_pairs_are_recalled_with_the_weights_of_zoology():
    for row, _ in texts("mqar", 1, 0, 40, [9]):
        pairs = set(zip(row[:18:2], row[1:18:2], strict=True))
        assert pairs == set(zip(row[18::2], row[19::2], strict=True))
        assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == 9
    tokens = np.array([row for row, _ in stream("mqar", 1, 0, 20_000, [2])])
    first = (tokens[:, 0] == tokens[:, 4]).mean()
    assert np.isclose(first, 1 / (1 + 2**-0.99), atol=0.01)
