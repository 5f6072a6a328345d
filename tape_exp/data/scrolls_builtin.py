"""Small generated substitutes for the seven SCROLLS sets; each document holds its answer."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tape_exp.machine.seeding import seed_for

SIZES = {"train": 400, "validation": 60, "test": 60}  # examples
WORDS = (60, 120)  # of a document, at least and at most
LABELS = ("Entailment", "Contradiction", "Not mentioned")

# Short words, most of which a BPE of Python's own text holds whole: a document is then 100 to 200
# tokens.
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
VALUES = {
    "colour": ["red", "white", "green", "blue", "black"],
    "size": ["long", "short", "small", "large", "full"],
    "state": ["open", "closed", "empty", "new", "old"],
}
ACTIONS = ["open", "close", "copy", "move", "read", "send", "print", "delete"]
OBJECTS = ["file", "list", "code", "report", "page", "table", "model", "data"]
NOUNS = ["user", "server", "method", "object", "string", "number", "line", "class", "value", "word"]
FILLERS = (
    "The {0} is the first {1} of the {2}.",
    "One {0} was not in the {1}.",
    "It is the {0} and the {1}.",
    "At the start the {0} was at the {1}.",
)
LONGEST = 10  # words of a filler sentence with its speaker


class Draft(NamedTuple):
    """An example before its document is filled up."""

    question: str | None
    keys: list[str]  # sentences that the document must hold, in this order
    references: list[str]
    speakers: bool = False  # a dialogue: a sentence a line, each with who says it


def rows(
    dataset: str, split: str, count: int | None = None, words: tuple[int, int] = WORDS
) -> Iterator[dict[str, str]]:
    """Rows of ``count`` examples, each a pure function of (dataset, split, its index, words)."""
    for index in range(SIZES[split] if count is None else count):
        generator = random.Random(seed_for(0, "scrolls", dataset, split, index))
        draft = DRAFTS[dataset](generator)
        document = _fill(generator, draft, words)
        text = document if draft.question is None else f"{draft.question}\n\n{document}"
        for number, reference in enumerate(draft.references):
            yield {
                "id": f"{split}-{index}",
                "pid": f"{split}-{index}_{number}",
                "input": text,
                "output": reference,
            }


def _fill(generator: random.Random, draft: Draft, words: tuple[int, int]) -> str:
    """The key sentences scattered among others."""
    target = generator.randint(words[0] + LONGEST, words[1])
    length = sum(len(key.split()) for key in draft.keys)
    sentences: list[str] = []
    while length + LONGEST <= target:
        filler = generator.choice(FILLERS).format(*generator.sample(NOUNS, 3))
        sentences.append(f"{generator.choice(PEOPLE)}: {filler}" if draft.speakers else filler)
        length += len(sentences[-1].split())
    places = sorted(generator.randint(0, len(sentences)) for _ in draft.keys)
    for place, key in reversed(list(zip(places, draft.keys, strict=True))):
        sentences.insert(place, key)
    return ("\n" if draft.speakers else " ").join(sentences)


def _qasper(generator: random.Random) -> Draft:
    """Four things with one property each; a third of the questions have a second reference."""
    question, keys, value, _ = _property(generator)
    return Draft(
        question, keys, [value, f"It is {value}."] if generator.randrange(3) == 0 else [value]
    )


def _narrative_qa(generator: random.Random) -> Draft:
    """Who put what where; two references."""
    stories = list(
        zip(*(generator.sample(words, 4) for words in (PEOPLE, GOODS, PLACES)), strict=True)
    )
    keys = [f"{person} put the {thing} in the {place}." for person, thing, place in stories]
    person, thing, place = generator.choice(stories)
    if generator.randrange(2):
        return Draft(f"Who put the {thing} in the {place}?", keys, [person, f"It was {person}."])
    return Draft(f"Where did {person} put the {thing}?", keys, [f"in the {place}", f"the {place}"])


def _contract_nli(generator: random.Random) -> Draft:
    """What the party may do and may not do."""
    acts = generator.sample([f"{action} the {thing}" for action in ACTIONS for thing in OBJECTS], 5)
    may = [generator.choice(["may", "may not"]) for _ in acts]
    keys = [f"The party {how} {act}." for how, act in list(zip(may, acts, strict=True))[:4]]
    label = generator.choice(LABELS)
    chosen = 4 if label == "Not mentioned" else generator.randrange(4)
    how = may[chosen]
    if label == "Contradiction":
        how = "may" if how == "may not" else "may not"
    return Draft(f"The party {how} {acts[chosen]}.", keys, [label])


def _quality(generator: random.Random) -> Draft:
    """The four properties that the document names are the options."""
    question, keys, value, values = _property(generator)
    options = "\n".join(
        f"({letter}) {v}" for letter, v in zip("ABCD", generator.sample(values, 4), strict=True)
    )
    return Draft(f"{question}\n\n{options}", keys, [value])


def _property(generator: random.Random) -> tuple[str, list[str], str, list[str]]:
    """A question, four sentences one of which answers it, the answer, and all four values."""
    kind = generator.choice(list(VALUES))
    things, values = generator.sample(THINGS, 4), generator.sample(VALUES[kind], 4)
    keys = [f"The {kind} of the {t} is {v}." for t, v in zip(things, values, strict=True)]
    chosen = generator.randrange(4)
    return f"What is the {kind} of the {things[chosen]}?", keys, values[chosen], values


def _qmsum(generator: random.Random) -> Draft:
    """A meeting that decides twice on each of two topics; the query is for one."""
    topics = generator.sample(OBJECTS, 2)
    decided = [
        (topic, f"We {action} the {topic}.")
        for topic in topics
        for action in generator.sample(ACTIONS, 2)
    ]
    generator.shuffle(decided)
    summary = " ".join(sentence for topic, sentence in decided if topic == topics[0])
    return Draft(
        f"What was decided on the {topics[0]}?",
        [f"Decision: {s}" for _, s in decided],
        [summary],
        speakers=True,
    )


def _summ_screen_fd(generator: random.Random) -> Draft:
    """A script: its three stage directions are the summary."""
    stories = zip(*(generator.sample(words, 3) for words in (PEOPLE, GOODS, PLACES)), strict=True)
    directions = [f"{person} put the {thing} in the {place}." for person, thing, place in stories]
    return Draft(
        None,
        [f"[ {direction} ]" for direction in directions],
        [" ".join(directions)],
        speakers=True,
    )


def _gov_report(generator: random.Random) -> Draft:
    """A report: its four findings are the summary."""
    _, findings, _, _ = _property(generator)
    return Draft(None, [f"Finding: {finding}" for finding in findings], [" ".join(findings)])


DRAFTS: dict[str, Callable[[random.Random], Draft]] = {
    "qasper": _qasper,
    "contract_nli": _contract_nli,
    "narrative_qa": _narrative_qa,
    "quality": _quality,
    "qmsum": _qmsum,
    "summ_screen_fd": _summ_screen_fd,
    "gov_report": _gov_report,
}
