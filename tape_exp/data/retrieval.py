"""Questions about texts of any length: the pass key's relatives, after RULER (Hsieh et al., 2024).

A text is as long as one asks for: filler sentences, or a list of words, surround what is asked.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
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
DIGITS = 5  # of each number, so that none is a part of another
NEEDLE = "One number of {key} is {value}."
ASSIGNED = "Let {name} be {value}."
NUMBER = "What is the number of {key}? The number of {key} is"
MORE_NUMBERS = "What are the numbers of {key}? The numbers of {key} are"
NAMES = "Which names have the value {value}? The names that have the value {value} are"
FREQUENT = "Which words are the most frequent above? The {count} most frequent words are"
DOTS = "..."  # the most frequent of all, which is not asked for
OFTEN = 6  # times as often as another word is a common one there


def vocabulary() -> list[str]:
    """Every word of the texts and questions, sorted."""
    templates = (NEEDLE, ASSIGNED, NUMBER, MORE_NUMBERS, NAMES, FREQUENT, " and ")
    said = re.sub(r"{\w+}", "", " ".join((*FILLER, *templates)))
    return sorted({*WORDS, *re.findall(r"\w+", said)})


@dataclass(frozen=True)
class Question:
    """A question about a text that can have any size.

    Args:
        write: the text, of so many filler sentences or words, and the question after it.
        wanted: the strings that an answer must hold, in the order in which training shows them.
        depth: where the one sentence is that is asked for, from 0 to 1, if it is one.
    """

    write: Callable[[int], str]
    wanted: tuple[str, ...]
    depth: float | None = None

    @property
    def answer(self) -> str:
        """What training shows after the question."""
        return f" {', '.join(self.wanted)}."

    def score(self, answer: str) -> float:
        """The share of the wanted strings that an answer holds, in any order and letter case."""
        return sum(string.lower() in answer.lower() for string in self.wanted) / len(self.wanted)


def scattered(lines: Sequence[tuple[float, str]], sentences: int) -> str:
    """So many filler sentences with lines among them, given as (depth, line), the first one first.

    A depth is from 0, before all sentences, towards 1, after all of them.
    """
    filler = [FILLER[n % len(FILLER)] for n in range(sentences)]
    parts, last = [], 0
    for depth, line in lines:
        place = int(depth * (sentences + 1))
        parts += [" ".join(filler[last:place]), line]
        last = place
    return "\n".join(part for part in (*parts, " ".join(filler[last:])) if part)


def with_filler(lines: Sequence[tuple[float, str]], question: str) -> Callable[[int], str]:
    """Writes as many filler sentences as one asks for with lines among them, then the question."""
    return lambda size: f"{scattered(lines, size)}\n{question}"


def multi_key(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """The number of one of several keys, whose sentence is at ``depth``."""
    keys, values = _words(generator, items), _numbers(generator, items, digits)
    lines = _needles([depth, *generator.random(items - 1)], keys, values)
    return Question(with_filler(lines, NUMBER.format(key=keys[0])), (values[0],), depth)


def multi_value(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """All numbers of one key."""
    keys, values = _words(generator, 1), _numbers(generator, items, digits)
    lines = _needles(sorted(generator.random(items)), keys * items, values)
    return Question(with_filler(lines, MORE_NUMBERS.format(key=keys[0])), tuple(values))


def multi_query(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """The numbers of several keys."""
    keys, values = _words(generator, items), _numbers(generator, items, digits)
    lines = _needles(sorted(generator.random(items)), keys, values)
    named = " and ".join(part for part in (", ".join(keys[:-1]), keys[-1]) if part)
    return Question(with_filler(lines, MORE_NUMBERS.format(key=named)), tuple(values))


def variable_tracking(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """All names of a value, which one gives to the next; there is another chain as well."""
    names, values = _words(generator, 2 * (items + 1)), _numbers(generator, 2, digits)
    chains = names[: items + 1], names[items + 1 :]
    lines = []
    for chain, value in zip(chains, values, strict=True):
        places = sorted(generator.random(items + 1))
        for place, name, before in zip(places, chain, [value, *chain[:-1]], strict=True):
            lines.append((float(place), ASSIGNED.format(name=name, value=before)))
    return Question(with_filler(sorted(lines), NAMES.format(value=values[0])), tuple(chains[0]))


def common_words(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """The words that a list repeats six times as often as all others."""
    words, key = _words(generator, len(WORDS)), int(generator.integers(1 << 62))
    common, others = words[:items], words[items:]

    def write(size: int) -> str:
        times = max(OFTEN, math.ceil(OFTEN * size / len(others)))
        listed = common * times + [others[n % len(others)] for n in range(size)]
        return _listed(listed, key, items)

    return Question(write, tuple(sorted(common)))


def frequent_words(generator: Generator, items: int, depth: float, digits: int) -> Question:
    """The most frequent words of a list in which the k-th is 1/k² as frequent as dots are."""
    words, key = _words(generator, len(WORDS)), int(generator.integers(1 << 62))
    ranked = [DOTS, *words]

    def write(size: int) -> str:
        counts = [int(size * 6 / (math.pi * rank) ** 2) for rank in range(1, len(ranked) + 1)]
        # one more of each that is asked for, so that no other word is as frequent
        counts = [count + (1 <= k <= items) for k, count in enumerate(counts)]
        repeated = zip(ranked, counts, strict=True)
        return _listed([word for word, count in repeated for _ in range(count)], key, items)

    return Question(write, tuple(sorted(words[:items])))


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    Args:
        ask: a question, from random numbers, a number of items, a depth and digits of a number.
        items: as many as in RULER.
        words: different ones that so many items take.
        counted: what the items are.
    """

    ask: Callable[[Generator, int, float, int], Question]
    items: int
    words: Callable[[int], int]
    counted: str

    @property
    def most(self) -> int:
        """The largest number of items that there are enough words for."""
        return max(n for n in range(1, len(WORDS) + 1) if self.words(n) <= len(WORDS))


KINDS = {
    "multi_key": Kind(multi_key, 4, lambda n: n, "keys"),
    "multi_value": Kind(multi_value, 4, lambda n: n, "numbers of a key"),
    "multi_query": Kind(multi_query, 4, lambda n: n, "keys"),
    "variable_tracking": Kind(variable_tracking, 4, lambda n: 2 * (n + 1), "hops"),
    "common_words": Kind(common_words, 10, lambda n: n + 1, "words"),
    "frequent_words": Kind(frequent_words, 3, lambda n: n + 1, "words"),
}


def _words(generator: Generator, count: int) -> list[str]:
    """Different ones."""
    return [WORDS[n] for n in generator.permutation(len(WORDS))[:count]]


def _numbers(generator: Generator, count: int, digits: int) -> list[str]:
    """Different ones."""
    low, high = 10 ** (digits - 1), 10**digits
    return [str(low + n) for n in generator.choice(high - low, count, replace=False)]


def _needles(
    depths: Sequence[float], keys: Sequence[str], values: Sequence[str]
) -> list[tuple[float, str]]:
    """A sentence for each key and value, by depth."""
    given = zip(depths, keys, values, strict=True)
    return sorted((float(d), NEEDLE.format(key=key, value=value)) for d, key, value in given)


def _listed(words: list[str], key: int, count: int) -> str:
    """The words in an order of their own, then the question for the most frequent ones."""
    order = np.random.default_rng((key, len(words))).permutation(len(words))
    return f"{' '.join(words[n] for n in order)}\n{FREQUENT.format(count=count)}"
