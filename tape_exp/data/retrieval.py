"""Questions about texts of any length, in which filler surrounds the sentence that is asked for."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numpy.random import Generator

FILLER = (  # short, so that little room is left over, and without digits
    "The line is long.",
    "The sea is calm.",
    "The tree is old.",
    "Time goes by.",
    "The day is new.",
    "The road is open.",
    "The wind is warm.",
    "The house is small.",
)
# None is a part of another, or of a template: an answer holds a word only if it says that word.
LISTED = """
apple arrow badge baker banjo barrel basin basket beach beaver bishop blanket boat bottle branch
bread bridge broom bucket butter button cabin cactus camel candle canoe canvas carpet carrot
castle cattle cellar chain chalk cherry chess chimney circus clay clock cloud coat coffee comet
copper coral cotton cradle crane cricket crown crystal curtain daisy desert desk diamond doctor
dolphin donkey dragon drum eagle elbow engine falcon farmer feather fence ferry fiddle finger
flame flute forest fork fountain fox frost garlic gate ginger giraffe glacier glove goat grape
guitar hammer harbor hawk hedge helmet honey horse island ivory jacket jelly jewel kettle kitten
knife ladder lamp lantern lawyer lemon letter lizard magnet maple marble market meadow melon
mirror monkey mountain mushroom needle nephew nest nurse oyster paddle palace panda parrot
pebble pencil pepper piano pigeon pillow pirate planet plate pocket pond prince pump puzzle
quarry queen rabbit ribbon river rocket rope saddle sailor salmon scarf school shadow sheep
shovel silver snow soap spider spoon statue stove sugar sword tailor teacher temple thumb
thunder tiger tomato torch tower tractor trumpet turtle tunnel umbrella uncle valley velvet
violin wagon walnut walrus whale wheat whistle window winter wolf yard zebra
"""
WORDS = LISTED.split()
NEEDLE = "One number of {key} is {value}."
NUMBER = "What is the number of {key}? The number of {key} is"
# Words of questions that are asked no more: without them, recorded runs would have other tokens.
FORMER = """
Let Which above and are be frequent have most names numbers that value words
"""


def vocabulary() -> list[str]:
    """List every word of the texts and questions, sorted."""
    said = re.sub(r"{\w+}", "", " ".join((*FILLER, NEEDLE, NUMBER, FORMER)))
    return sorted({*WORDS, *re.findall(r"\w+", said)})


@dataclass(frozen=True)
class Question:
    """A question about a text that can have any size."""

    write: Callable[[int], str]  # the text, of so many filler sentences, and the question
    wanted: str  # what an answer must say
    depth: float = 0.0  # where the sentence is that is asked for, from 0 to 1

    @property
    def answer(self) -> str:
        """Return what training shows after the question."""
        return f" {self.wanted}."


def with_filler(lines: Sequence[tuple[float, str]], question: str) -> Callable[[int], str]:
    """Return what writes as many filler sentences as one asks for, then the question. Among them
    are lines, given as (depth, line), the first one first: 0 is before all sentences, 1 after all
    of them.

    With the line ``(0.5, "The key is 7.")`` and the question ``Key?`` the text of two sentences is
    ``The line is long.``, ``The key is 7.``, ``The sea is calm.`` and ``Key?``, one a line.
    """

    def write(sentences: int) -> str:
        filler = [FILLER[n % len(FILLER)] for n in range(sentences)]
        paragraphs = []
        last = 0
        for depth, line in lines:
            place = int(depth * (sentences + 1))
            paragraphs += [" ".join(filler[last:place]), line]
            last = place
        paragraphs += [" ".join(filler[last:]), question]
        return "\n".join(filter(None, paragraphs))

    return write


def multi_key(generator: Generator, keys: int, depth: float, digits: int) -> Question:
    """Ask for the number of one of several keys, whose sentence is at ``depth``; after RULER (Hsieh
    et al., 2024).
    """
    words = [WORDS[n] for n in generator.permutation(len(WORDS))[:keys]]
    low = 10 ** (digits - 1)
    high = 10**digits
    values = [str(low + n) for n in generator.choice(high - low, keys, replace=False)]
    depths = [depth, *map(float, generator.random(keys - 1))]
    lines = []
    for place, key, value in zip(depths, words, values, strict=True):
        lines.append((place, NEEDLE.format(key=key, value=value)))
    return Question(with_filler(sorted(lines), NUMBER.format(key=words[0])), values[0], depth)
