"""A small task is symbols and a sample: what the base class makes of them."""

import numpy as np
import pytest

from tape_exp.data.batch import IGNORE
from tape_exp.machine.seeding import random_rows
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.sequences import Draws, SequenceTask

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)


class Reverse(SequenceTask):
    symbols = "abcdefgh|"

    def sample(self, n, rng):
        word = rng.choice("abcdefgh", n)
        return [*word, "|"], word[::-1]


def make(cls=Reverse, seed=0, lengths=None):
    return cls(ARCH, Optim(batch=4, max_steps=2, lr=1e-3), seed, 4, lengths)


def test_symbols_and_a_sample_are_a_task():
    task = make()
    assert (task.arch.vocab, task.arch.train_length, task.arch.max_length) == (11, 9, 65)
    assert task.axes == {"length (symbols)": [4, 6, 8, 16, 32]}  # there are 64 words of two letters
    [row] = task.train_batch(7, 1)["inputs"].tolist()
    word = task.decode(row).partition("|")[0]
    assert task.decode([*row[: 2 * len(word) + 1], task.eos]) == f"{word}|{word[::-1]}<eos>"
    assert task.encode(f"{word}|") == row[: len(word) + 1]
    labels = task.test_batches()[0][1]["labels"]
    assert (labels[:, :4] == IGNORE).all()
    assert (labels[:, 4:] != IGNORE).all()
    with pytest.raises(ConfigError, match="'9' is not a symbol of the task"):
        task.encode("a9|")


def test_a_row_may_take_more_numbers_than_it_was_given():
    few, many = (Draws(random_rows(3, 5, 1, width)[0], 3, 5) for width in (4, 8))
    assert (few.words(4) == many.words(8)[:4]).all()
    again = Draws(random_rows(3, 5, 1, 4)[0], 3, 5)
    assert (again.words(40)[4:] == few.words(36)).all()
    other = Draws(random_rows(3, 6, 1, 4)[0], 3, 6)
    assert (other.words(40)[4:] != again._words[4:40]).any()
    long, short = (Draws(random_rows(3, 5, 1, 4)[0], 3, 5) for _ in range(2))
    told = long.words(900)
    assert len({*told.tolist()}) == 900
    assert (told == np.concatenate([short.words(n) for n in (7, 93, 800)])).all()
    one, two = Draws(random_rows(3, 5, 1, 4)[0], 3, 5).split(2)
    assert (one.words(40)[2:] != two.words(40)[2:]).any()
