"""Documents with facts, from which one fact is asked for.

Two kinds: :func:`facts_document` has four facts of four kinds about one subject, so that the kind
of an answer tells the fact; :func:`ask_among_facts` has up to four facts of one kind about
different things, so that the thing must be found.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tape_exp.data.builtin.words import (
    GOODS,
    PEOPLE,
    PLACES,
    THINGS,
    VALUES,
    as_options,
    filler_sentence,
)
from tape_exp.data.retrieval import with_filler

# Data set -> what its four facts are about
SUBJECTS = {"qasper": "thing", "quality": "thing", "narrative_qa": "visit"}
ATTRIBUTES = {  # kind of a fact about a thing -> what it may be
    "colour": VALUES["colour"],
    "size": VALUES["size"],
    "owner": PEOPLE,
    "place": PLACES,
}
TIMES = ["morning", "noon", "evening", "night", "spring", "summer", "autumn", "winter"]


@dataclass(frozen=True)
class Fact:
    """One of the four facts of a document."""

    sentence: str
    question: str
    value: str
    choices: list[str]  # all values of its kind


@dataclass(frozen=True)
class VisitKind:
    """A kind of fact about a visit."""

    sentence: str
    question: str
    values: list[str]


VISIT = (
    VisitKind("The one who came was {}.", "Who came?", PEOPLE),
    VisitKind("The visit was in the {}.", "Where was the visit?", PLACES),
    VisitKind("The time of the visit was {}.", "When was the visit?", TIMES),
    VisitKind("What was lost is the {}.", "What was lost?", GOODS),
)


def four_facts(dataset: str, generator: random.Random) -> list[Fact]:
    """Draw four facts of four kinds about one thing or visit, in an order that is drawn too.

    Which fact answers a question follows from the kind of its value: nothing has to be matched.
    """
    facts = _visit(generator) if SUBJECTS[dataset] == "visit" else _thing(generator)
    generator.shuffle(facts)
    return facts


def _visit(generator: random.Random) -> list[Fact]:
    """Draw who came, where and when, and what was lost."""
    facts = []
    for kind in VISIT:
        value = generator.choice(kind.values)
        facts.append(Fact(kind.sentence.format(value), kind.question, value, kind.values))
    return facts


def _thing(generator: random.Random) -> list[Fact]:
    """Draw the attributes of a thing."""
    facts = []
    thing = generator.choice(THINGS)
    for kind, values in ATTRIBUTES.items():
        value = generator.choice(values)
        sentence = f"The {kind} of the {thing} is {value}."
        facts.append(Fact(sentence, f"What is the {kind} of the {thing}?", value, values))
    return facts


def asked(dataset: str, fact: Fact, generator: random.Random) -> str:
    """Ask about a fact; in QuALITY with the value and three others of its kind as options."""
    if dataset != "quality":
        return fact.question
    others = [value for value in fact.choices if value != fact.value]
    options = generator.sample([fact.value, *generator.sample(others, 3)], 4)
    return f"{fact.question}\n\n{as_options(options)}"


def facts_document(
    dataset: str, generator: random.Random
) -> tuple[Callable[[int], str], list[Fact]]:
    """Return what writes four facts in their order, scattered among so many sentences of filler;
    and the facts.
    """
    facts = four_facts(dataset, generator)
    depths = sorted(generator.random() for _ in facts)
    seed = generator.getrandbits(32)

    def write(count: int) -> str:
        filler = random.Random(seed)
        sentences = [filler_sentence(filler) for _ in range(count)]
        # From the last to the first, so that no insertion moves a later place.
        for depth, fact in reversed([*zip(depths, facts, strict=True)]):
            sentences.insert(int(depth * (count + 1)), fact.sentence)
        return " ".join(sentences)

    return write, facts


@dataclass(frozen=True)
class FactQuestion:
    """A question about a text that can have any size, its right answer and wrong ones."""

    write: Callable[[int], str]  # the text, of so many sentences of filler, and the question
    right: str
    wrong: list[str]  # three


def ask_among_facts(generator: random.Random, count: int) -> FactQuestion:
    """Ask for one of ``count`` facts of one kind, 4 at most. The wrong choices are three other
    values of the kind, those of the other facts first.
    """
    kind = generator.choice(list(VALUES))
    goods = generator.sample(GOODS, count)
    values = generator.sample(VALUES[kind], 4)
    facts = [f"The {kind} of the {goods[n]} is {values[n]}." for n in range(count)]
    generator.shuffle(facts)
    depths = sorted(generator.random() for _ in facts)
    lines = list(zip(depths, facts, strict=True))
    write = with_filler(lines, f"What is the {kind} of the {goods[0]}?")
    return FactQuestion(write, values[0], values[1:])
