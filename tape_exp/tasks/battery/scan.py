"""SCAN: commands in English and the actions that they ask for."""

import itertools
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
    """Return the commands of the grammar by their numbers of actions.

    ``walk after run twice`` is among those of three: RUN RUN WALK.
    """
    phrases: list[Command] = []
    for (words, actions), (name, times) in itertools.product(directions(), TIMES.items()):
        phrases.append(((*words, name) if name else words, actions * times))
    sentences = phrases.copy()
    for (a, first), (b, second) in itertools.product(phrases, phrases):
        sentences.append(((*a, "and", *b), first + second))
    for (a, first), (b, second) in itertools.product(phrases, phrases):
        sentences.append(((*a, "after", *b), second + first))
    by_length: dict[int, list[Command]] = {}
    for words, actions in sentences:
        by_length.setdefault(len(actions), []).append((words, actions))
    return by_length


def directions() -> list[Command]:
    """List commands for one action or direction, with their actions.

    ``look left`` asks for LTURN LOOK, ``turn around left`` for LTURN four times.
    """
    phrases: list[Command] = [((verb,), (action,)) for verb, action in ACTIONS.items()]
    for verb in ("turn", *ACTIONS):
        does = (ACTIONS[verb],) if verb in ACTIONS else ()
        for side, turn in TURNS.items():
            phrases += [
                ((verb, side), (turn, *does)),
                ((verb, "opposite", side), (turn, turn, *does)),
                ((verb, "around", side), (turn, *does) * 4),
            ]
    return phrases
