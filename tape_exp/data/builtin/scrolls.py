"""Generated substitutes for the seven sets of SCROLLS: a short document and a question about it.

A set draws the sentences that its document must hold, the question, and the references: a
:class:`Draft`. Filler between the sentences makes it a document.
"""

import itertools
import random
from collections.abc import Callable, Iterator
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
from tape_exp.machine.seeding import seed_for

SIZES = {"train": 400, "validation": 60, "test": 60}  # examples of a split
# Words of a document
LEAST = 60
MOST = 120
LONGEST = 10  # words of a filler sentence with its speaker
LABELS = ("Entailment", "Contradiction", "Not mentioned")
ACTIONS = ["open", "close", "copy", "move", "read", "send", "print", "delete"]
OBJECTS = ["file", "list", "code", "report", "page", "table", "model", "data"]


@dataclass(frozen=True)
class Draft:
    """An example before its document is filled up."""

    question: str | None
    keys: list[str]  # sentences that the document must hold, in this order
    references: list[str]
    speakers: bool = False  # a dialogue: a sentence a line, each with who says it


def scrolls_rows(dataset: str, split: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a split in the benchmark's schema, one for each reference.

    >>> next(scrolls_rows("narrative_qa", "test"))["input"].splitlines()[0]
    'Who put the key in the tower?'
    """
    for index in range(SIZES[split]):
        generator = random.Random(seed_for(0, "scrolls", dataset, split, index))
        draft = SETS[dataset](generator)
        id_ = f"{split}-{index}"
        document = _filled(generator, draft)
        text = document if draft.question is None else f"{draft.question}\n\n{document}"
        for number, reference in enumerate(draft.references):
            yield {"id": id_, "pid": f"{id_}_{number}", "input": text, "output": reference}


def _filled(generator: random.Random, draft: Draft) -> str:
    """Write the document: the key sentences scattered among filler."""
    target = generator.randint(LEAST + LONGEST, MOST)
    length = sum(len(key.split()) for key in draft.keys)
    sentences: list[str] = []
    while length + LONGEST <= target:
        sentence = filler_sentence(generator)
        if draft.speakers:
            sentence = f"{generator.choice(PEOPLE)}: {sentence}"
        sentences.append(sentence)
        length += len(sentence.split())
    indices = sorted(generator.randint(0, len(sentences)) for _ in draft.keys)
    # From the last to the first, so that no insertion moves a later place.
    for index, key in reversed(list(zip(indices, draft.keys, strict=True))):
        sentences.insert(index, key)
    return ("\n" if draft.speakers else " ").join(sentences)


@dataclass(frozen=True)
class Properties:
    """Four things with a property of one kind each, and a question for one of them."""

    question: str
    sentences: list[str]
    value: str  # that answers the question
    values: list[str]  # of all four


def _properties(generator: random.Random) -> Properties:
    """Draw properties: ``The size of the door is small.`` and three more sentences like it."""
    kind = generator.choice(list(VALUES))
    things = generator.sample(THINGS, 4)
    values = generator.sample(VALUES[kind], 4)
    sentences = []
    for thing, value in zip(things, values, strict=True):
        sentences.append(f"The {kind} of the {thing} is {value}.")
    chosen = generator.randrange(4)
    question = f"What is the {kind} of the {things[chosen]}?"
    return Properties(question, sentences, values[chosen], values)


@dataclass(frozen=True)
class Story:
    """Who put what where."""

    person: str
    thing: str
    place: str

    @property
    def sentence(self) -> str:
        """Tell it in a sentence."""
        return f"{self.person} put the {self.thing} in the {self.place}."


def _stories(generator: random.Random, count: int) -> list[Story]:
    """Draw stories of different people, things and places."""
    people = generator.sample(PEOPLE, count)
    goods = generator.sample(GOODS, count)
    places = generator.sample(PLACES, count)
    return list(map(Story, people, goods, places))


def _qasper(generator: random.Random) -> Draft:
    """Ask for a property of one of four things; a third of the questions have two references."""
    properties = _properties(generator)
    references = [properties.value]
    if generator.randrange(3) == 0:
        references.append(f"It is {properties.value}.")
    return Draft(properties.question, properties.sentences, references)


def _narrative_qa(generator: random.Random) -> Draft:
    """Ask who put something somewhere, or where; two references."""
    stories = _stories(generator, 4)
    keys = [story.sentence for story in stories]
    asked = generator.choice(stories)
    if generator.randrange(2):
        question = f"Who put the {asked.thing} in the {asked.place}?"
        return Draft(question, keys, [asked.person, f"It was {asked.person}."])
    question = f"Where did {asked.person} put the {asked.thing}?"
    return Draft(question, keys, [f"in the {asked.place}", f"the {asked.place}"])


def _contract_nli(generator: random.Random) -> Draft:
    """Claim that the party may do something, or may not, of which the document says four."""
    pairs = generator.sample(list(itertools.product(ACTIONS, OBJECTS)), 5)
    acts = [f"{action} the {thing}" for action, thing in pairs]
    may = [generator.choice(["may", "may not"]) for _ in acts]
    keys = [f"The party {how} {act}." for how, act in zip(may[:4], acts[:4], strict=True)]
    label = generator.choice(LABELS)
    chosen = 4 if label == "Not mentioned" else generator.randrange(4)
    how = may[chosen]
    if label == "Contradiction":
        how = "may" if how == "may not" else "may not"
    return Draft(f"The party {how} {acts[chosen]}.", keys, [label])


def _quality(generator: random.Random) -> Draft:
    """Ask for a property; the four that the document names are the options."""
    properties = _properties(generator)
    options = as_options(generator.sample(properties.values, 4))
    question = f"{properties.question}\n\n{options}"
    return Draft(question, properties.sentences, [properties.value])


def _qmsum(generator: random.Random) -> Draft:
    """Let a meeting decide twice on each of two topics, and ask about one of them."""
    topics = generator.sample(OBJECTS, 2)
    decided = []
    for topic in topics:
        for action in generator.sample(ACTIONS, 2):
            decided.append((topic, f"We {action} the {topic}."))
    generator.shuffle(decided)
    summary = " ".join(sentence for topic, sentence in decided if topic == topics[0])
    keys = [f"Decision: {sentence}" for _, sentence in decided]
    return Draft(f"What was decided on the {topics[0]}?", keys, [summary], speakers=True)


def _summ_screen_fd(generator: random.Random) -> Draft:
    """Write a script, of which the three stage directions are the summary."""
    directions = [story.sentence for story in _stories(generator, 3)]
    keys = [f"[ {direction} ]" for direction in directions]
    return Draft(None, keys, [" ".join(directions)], speakers=True)


def _gov_report(generator: random.Random) -> Draft:
    """Write a report, of which the four findings are the summary."""
    findings = _properties(generator).sentences
    return Draft(None, [f"Finding: {finding}" for finding in findings], [" ".join(findings)])


SETS: dict[str, Callable[[random.Random], Draft]] = {
    "qasper": _qasper,
    "narrative_qa": _narrative_qa,
    "contract_nli": _contract_nli,
    "quality": _quality,
    "qmsum": _qmsum,
    "summ_screen_fd": _summ_screen_fd,
    "gov_report": _gov_report,
}
