"""Problems of the battery: every row is right, every right row can be drawn, and row k of a stream
is a function of its key and k.
"""

import numpy as np
import pytest

from tape_exp.data.problems import PROBLEMS
from tape_exp.data.problems.base import ENDS, Problem
from tests.data.solvers import NEXT, length

# Length -> how many rows there are, counted by hand, and whether all are equally likely.
COUNTS = {
    "copy": (6, 2**6, True),
    "reverse": (6, 2**6, True),
    "sort": (3, 5**3, True),
    "indirect_indexing": (2, 52 * 51 * 2, True),
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


def texts(name, *stream):
    """Rows as symbols without padding, and which of them are scored."""
    problem = PROBLEMS[name]
    tokens, scored = problem.rows(*stream)
    rows = [problem.text(row) for row in tokens.tolist()]
    assert not (scored & (tokens == 0)).any()
    return [(row, marks[: len(row)]) for row, marks in zip(rows, scored.tolist(), strict=True)]


def test_each_problem_has_an_oracle_and_says_what_it_is():
    assert list(PROBLEMS) == list(NEXT)
    for problem in PROBLEMS.values():
        assert problem.symbols[:2] == ENDS
        assert len(set(problem.symbols)) == len(problem.symbols)
        assert problem.summary
        assert problem.unit
        assert [problem.symbols[i] for i in problem.digits] in ([], list("01"), list("0123456789"))


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_scored_is_what_must_follow(name):
    lengths = [n for n in range(1, 20) if PROBLEMS[name].has(n)]
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


@pytest.mark.parametrize("name", COUNTS)
def test_every_row_can_be_drawn(name):
    n, count, uniform = COUNTS[name]
    problem = PROBLEMS[name]
    tokens, _ = problem.rows(3, 0, (30 if uniform else 120) * count, [n])
    assert problem.count(n) == count
    _, times = np.unique(tokens, axis=0, return_counts=True)
    assert len(times) == count
    assert name == "scan" or tokens[:, -1].any()  # the longest row fills its width
    if uniform:  # χ² is within four standard deviations of its degrees of freedom
        assert abs(((times - 30) ** 2 / 30).sum() - count + 1) < 4 * (2 * (count - 1)) ** 0.5


@pytest.mark.parametrize("name", PROBLEMS)
def test_row_k_is_a_function_of_key_and_k(name):
    problem, lengths = PROBLEMS[name], [n for n in (3, 4, 6, 8) if PROBLEMS[name].has(n)]
    whole = problem.rows(5, 0, 24, lengths)
    parts = [problem.rows(5, first, count, lengths) for first, count in ((0, 5), (5, 1), (6, 18))]
    for i, array in enumerate(whole):
        assert array.shape == (24, problem.width(8))
        assert np.array_equal(array, np.concatenate([part[i] for part in parts]))
    assert not np.array_equal(whole[0], problem.rows(6, 0, 24, lengths)[0])


def test_other_problems_have_as_many_rows_as_their_parts_allow():
    assert PROBLEMS["mqar"].count(2) == (256 * 255) ** 2 * 2
    assert PROBLEMS["multi_addition"].count(3) == 999**3
    counts = [PROBLEMS["scan"].count(n) for n in range(1, 49)]
    assert (sum(counts), sum(counts[:22])) == (20_910, 16_990)  # as the paper counts them
    assert [n for n in range(50) if not PROBLEMS["scan"].has(n)][-3:] == [46, 47, 49]
    assert PROBLEMS["multiplication"].count(2) == 99**2 - 9**2


def test_flip_flops_ignore_as_often_as_they_say():
    problem = PROBLEMS["flip_flop"]
    for share, each in ((0.8, problem), *zip((0.98, 0.1), problem.others.values(), strict=True)):
        tokens, _ = each.rows(1, 0, 400, [102])
        kinds = np.array(each.symbols)[tokens[:, 2:-2:2]]
        for kind, expected in (("i", share), ("w", (1 - share) / 2), ("r", (1 - share) / 2)):
            assert np.isclose((kinds == kind).mean(), expected, atol=0.01)


def test_pairs_are_recalled_with_the_weights_of_zoology():
    for row, _ in texts("mqar", 1, 0, 40, [9]):
        pairs = set(zip(row[:18:2], row[1:18:2], strict=True))
        assert pairs == set(zip(row[18::2], row[19::2], strict=True))
        assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == 9
    tokens, _ = PROBLEMS["mqar"].rows(1, 0, 20_000, [2])
    first = (tokens[:, 0] == tokens[:, 4]).mean()
    assert np.isclose(first, 1 / (1 + 2**-0.99), atol=0.01)


class Bits(Problem):
    """Random bits, each followed by what a rule makes of the bits so far; every so many of that
    are there and scored.
    """

    name = summary = unit = ""
    symbols = (*ENDS, *"01ab")

    def __init__(self, rule, every):
        self.rule, self.every = rule, every

    def count(self, length):
        return 2**length

    def width(self, length):
        return 2 * length

    def draws(self, length):
        return length

    def write(self, lengths, random):
        bits = random[:, : lengths.max()] % 2
        answers = np.array([[self.rule(row[: t + 1]) for t in range(len(row))] for row in bits])
        there = np.broadcast_to(np.arange(bits.shape[1]) % self.every == 0, bits.shape)
        rows = np.stack([2 + bits, 4 + answers * there], 2).reshape(len(bits), -1)
        return rows, np.stack([np.zeros_like(there), there], 2).reshape(rows.shape)


@pytest.mark.parametrize(
    ("rule", "every", "least", "most"),
    [
        (lambda bits: bits[-1], 1, 100, 100),  # of the token before
        (lambda bits: bits[-2:].sum() % 2, 1, 100, 100),  # of both bits among the last three tokens
        (lambda bits: bits[-3:].sum() % 2, 1, 50, 60),  # of one bit more
        (lambda bits: bits[0], 4, 88, 92),  # of the answer before; the first of five has none
    ],
)
def test_a_guess_sees_the_last_tokens_and_the_answer_before_and_no_more(rule, every, least, most):
    assert least <= Bits(rule, every).guessed(20) <= most


def test_numbers_are_uniform_among_those_of_their_length():
    for name, factor in (("multi_addition", "+"), ("multiplication", "*")):
        firsts = [
            int("".join(row).split(factor)[0][::-1]) for row, _ in texts(name, 1, 0, 6000, [2])
        ]
        for low in (1, 10):
            of_length = [number for number in firsts if low <= number < 10 * low]
            times = np.bincount(of_length)[low:]
            expected = len(of_length) / (9 * low)
            assert len(times) == 9 * low
            assert ((times - expected) ** 2 / expected).sum() < 9 * low + 4 * (18 * low) ** 0.5
