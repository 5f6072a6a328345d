"""The words of generated texts, and sentences that say nothing."""

import random
from collections.abc import Sequence

PEOPLE = ["Tom", "Mary", "Sam", "Eve", "Max", "Ann", "Bob", "Jane"]
THINGS = [
    "table",
    "door",
    "ship",
    "road",
    "house",
    "tree",
    "room",
    "page",
    "book",
    "key",
    "box",
    "dog",
]
GOODS = ["book", "key", "page", "dog", "cat", "stone", "glass", "paper"]
PLACES = ["house", "room", "ship", "tree", "tower", "garden", "box", "table"]
VALUES = {  # kind of a property -> what it may be
    "colour": ["red", "white", "green", "blue", "black"],
    "size": ["long", "short", "small", "large", "full"],
    "state": ["open", "closed", "empty", "new", "old"],
}
NOUNS = ["user", "server", "method", "object", "string", "number", "line", "class", "value", "word"]
FILLERS = (
    "The {0} is the first {1} of the {2}.",
    "One {0} was not in the {1}.",
    "It is the {0} and the {1}.",
    "At the start the {0} was at the {1}.",
)


def filler_sentence(generator: random.Random) -> str:
    """Write a sentence that answers nothing, as ``It is the class and the user.``"""
    return generator.choice(FILLERS).format(*generator.sample(NOUNS, 3))


def as_options(values: Sequence[str]) -> str:
    """Write four values as options, one a line.

    >>> print(as_options(["red", "white", "green", "blue"]))
    (A) red
    (B) white
    (C) green
    (D) blue
    """
    return "\n".join(f"({letter}) {value}" for letter, value in zip("ABCD", values, strict=True))
