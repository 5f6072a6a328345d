"""SCAN: commands in English and the actions that they ask for."""

from collections.abc import Sequence
from functools import cache

from tape_exp.tasks.sequences import Draws, SequenceTask

ACTIONS = {"walk": "WALK", "look": "LOOK", "run": "RUN", "jump": "JUMP"}
TURNS = {"left": "LTURN", "right": "RTURN"}
TIMES = {"": 1, "twice": 2, "thrice": 3}
WORDS = ("turn", "opposite", "around", "twice", "thrice", "and", "after")
Command = tuple[tuple[str, ...], tuple[str, ...]]
"""The words, and the actions that they ask for."""


class Scan(SequenceTask):
    """``jump left twice->LTURN JUMP LTURN JUMP<eos>``: a length counts actions.

    All 20,910 commands of the grammar of Lake and Baroni (2018, "Generalization without
    Systematicity"). Their length split trains on up to 22 actions and tests on 24 to 48, which
    ``task.train_length=22`` does here.

    Deviations: a length is drawn first, uniformly, then a command that asks for so many actions;
    theirs show every command, and most are long. The test is by length.
    """

    summary = "translate a command into actions"
    unit = "actions"
    symbols = ("->", *ACTIONS, *TURNS, *WORDS, *ACTIONS.values(), *TURNS.values())
    tokens = (1, 11)
    numbers = (0, 1)  # a command has at most nine words
    longest = 48

    def has(self, n: int) -> bool:
        return n in commands()

    def usual(self, n: int) -> Sequence[int]:
        return n // 2, n, *range(n + 1, self.longest + 1)

    def sample(self, n: int, rng: Draws) -> tuple[Sequence[str], Sequence[str]]:
        words, actions = commands()[n][rng.below(len(commands()[n]))]
        return (*words, "->"), actions


@cache
def commands() -> dict[int, list[Command]]:
    """The commands of the grammar by their numbers of actions."""
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
    found: dict[int, list[Command]] = {}
    for command in whole:
        found.setdefault(len(command[1]), []).append(command)
    return found


def directions() -> list[Command]:
    """Commands for one action or direction, with their actions."""
    found: list[Command] = [((verb,), (action,)) for verb, action in ACTIONS.items()]
    for verb in ("turn", *ACTIONS):
        does = (ACTIONS[verb],) if verb in ACTIONS else ()
        for side, turn in TURNS.items():
            found += [
                ((verb, side), (turn, *does)),
                ((verb, "opposite", side), (turn, turn, *does)),
                ((verb, "around", side), (turn, *does) * 4),
            ]
    return found
