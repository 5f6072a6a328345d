"""SCAN: commands in English and the actions that they ask for."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tape_exp.data.problems.base import ENDS, EOS, Problem, Rows, draw

ACTIONS = {"walk": "WALK", "look": "LOOK", "run": "RUN", "jump": "JUMP"}
TURNS = {"left": "LTURN", "right": "RTURN"}
TIMES = {"": 1, "twice": 2, "thrice": 3}
WORDS = ("turn", "opposite", "around", "twice", "thrice", "and", "after")


class Scan(Problem):
    """``jump left twice->LTURN JUMP LTURN JUMP<eos>``: a length counts actions.

    All 20,910 commands of the grammar of Lake and Baroni (2018, "Generalization without
    Systematicity"). Their length split trains on up to 22 actions and tests on 24 to 48, which
    ``task.train_length=22`` does here.

    Deviations: a length is drawn first, uniformly, then a command that asks for so many actions;
    theirs show every command, and most are long. The test is by length.
    """

    name = "scan"
    summary = "translate a command into actions"
    unit = "actions"
    symbols = (*ENDS, "->", *ACTIONS, *TURNS, *WORDS, *ACTIONS.values(), *TURNS.values())
    longest = 48

    def has(self, length: int) -> bool:
        """Whether a command asks for so many actions."""
        return super().has(length) and self.count(length) > 0

    def usual(self, n: int) -> tuple[int, ...]:
        """Half of n, n, and all beyond."""
        return n // 2, n, *range(n + 1, self.longest + 1)

    def count(self, length: int) -> int:
        """Commands that ask for so many actions."""
        return int(np.diff(commands().first)[length])

    def width(self, length: int) -> int:
        """A command of at most nine words, an arrow, the actions and EOS."""
        return length + 11

    def draws(self, length: int) -> int:
        """One, for the command."""
        return 1

    def write(self, lengths: np.ndarray, random: np.ndarray) -> Rows:
        """Commands and actions."""
        every = commands()
        chosen = every.first[lengths] + draw(np.diff(every.first)[lengths], random[:, 0])
        return every.tokens[chosen], every.scored[chosen]


@dataclass(frozen=True)
class Commands:
    """All rows, in the order of their numbers of actions; ``first`` has the first one of each."""

    tokens: np.ndarray
    scored: np.ndarray
    first: np.ndarray


@lru_cache(maxsize=1)
def commands() -> Commands:
    """The commands of the grammar: a tenth of a second."""
    phrases = [
        ((*words, name) if name else words, actions * times)
        for words, actions in directions()
        for name, times in TIMES.items()
    ]
    whole = phrases + [
        ((*a, word, *b), second + first if word == "after" else first + second)
        for word in ("and", "after")
        for a, first in phrases
        for b, second in phrases
    ]
    whole.sort(key=lambda command: len(command[1]))
    token = {symbol: number for number, symbol in enumerate(Scan.symbols)}
    tokens = np.zeros((len(whole), 59), dtype=np.int16)
    for row, (words, actions) in zip(tokens, whole, strict=True):
        row[: len(words) + len(actions) + 2] = [
            *[token[word] for word in (*words, "->", *actions)],
            EOS,
        ]
    arrow = (tokens == token["->"]).argmax(1)[:, None]
    scored = (np.arange(tokens.shape[1]) > arrow) & (tokens > 0)
    first = np.searchsorted([len(actions) for _, actions in whole], np.arange(50))
    return Commands(tokens, scored, first)


def directions() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Commands for one action or direction, with their actions."""
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        ((verb,), (action,)) for verb, action in ACTIONS.items()
    ]
    for verb in ("turn", *ACTIONS):
        does = (ACTIONS[verb],) if verb in ACTIONS else ()
        for side, turn in TURNS.items():
            found += [
                ((verb, side), (turn, *does)),
                ((verb, "opposite", side), (turn, turn, *does)),
                ((verb, "around", side), (turn, *does) * 4),
            ]
    return found
