"""Small generated substitutes for SCROLLS, and for MMLU and ARC in lm-eval's format.

Each text holds the answer to its question, in short words, most of which a BPE of Python's own text
holds whole. Every row is a pure function of the data set, the split and its index.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tape_exp.data.retrieval import with_filler
from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import seed_for

_listed = str.split
SIZES = {"train": 400, "validation": 60, "test": 60}  # examples of SCROLLS
WORDS = (60, 120)  # of a document, at least and at most
LABELS = ("Entailment", "Contradiction", "Not mentioned")
PEOPLE = _listed("Tom Mary Sam Eve Max Ann Bob Jane")
THINGS = _listed("table door ship road house tree room page book key box dog")
GOODS = _listed("book key page dog cat stone glass paper")
PLACES = _listed("house room ship tree tower garden box table")
VALUES = {
    "colour": _listed("red white green blue black"),
    "size": _listed("long short small large full"),
    "state": _listed("open closed empty new old"),
}
ACTIONS = _listed("open close copy move read send print delete")
OBJECTS = _listed("file list code report page table model data")
NOUNS = _listed("user server method object string number line class value word")
FILLERS = (
    "The {0} is the first {1} of the {2}.",
    "One {0} was not in the {1}.",
    "It is the {0} and the {1}.",
    "At the start the {0} was at the {1}.",
)
LONGEST = 10  # words of a filler sentence with its speaker
MMLU_SPLITS = {"test": 40, "dev": 5}  # questions a subject
ARC_SPLITS = {"test": 60, "train": 20, "validation": 10}
SPELLED = _listed("apple book cat dog egg fish garden house key letter moon night paper river")
OPPOSED = "long-short new-old open-closed first-last true-false left-right hot-cold small-large"
OPPOSITES = dict(pair.split("-") for pair in OPPOSED.split())


class Draft(NamedTuple):
    """An example of SCROLLS before its document is filled up."""

    question: str | None
    keys: list[str]  # sentences that the document must hold, in this order
    references: list[str]
    speakers: bool = False  # a dialogue: a sentence a line, each with who says it


def scrolls_rows(dataset: str, split: str) -> Iterator[dict[str, str]]:
    """The rows of a split."""
    for index in range(SIZES[split]):
        generator = random.Random(seed_for(0, "scrolls", dataset, split, index))
        draft = SCROLLS[dataset](generator)
        id_ = f"{split}-{index}"
        document = _fill(generator, draft)
        text = document if draft.question is None else f"{draft.question}\n\n{document}"
        for number, reference in enumerate(draft.references):
            yield {"id": id_, "pid": f"{id_}_{number}", "input": text, "output": reference}


def _fill(generator: random.Random, draft: Draft) -> str:
    """The key sentences scattered among others."""
    least, most = WORDS
    target = generator.randint(least + LONGEST, most)
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


def _property(generator: random.Random) -> tuple[str, list[str], str, list[str]]:
    """A question, four sentences one of which answers it, the answer, and all four values."""
    kind = generator.choice(list(VALUES))
    things = generator.sample(THINGS, 4)
    values = generator.sample(VALUES[kind], 4)
    keys = [f"The {kind} of the {t} is {v}." for t, v in zip(things, values, strict=True)]
    chosen = generator.randrange(4)
    return f"What is the {kind} of the {things[chosen]}?", keys, values[chosen], values


def _stories(generator: random.Random, count: int) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Draw who puts what where, and write each as a sentence."""
    people = generator.sample(PEOPLE, count)
    goods = generator.sample(GOODS, count)
    places = generator.sample(PLACES, count)
    stories = list(zip(people, goods, places, strict=True))
    return stories, [
        f"{person} put the {thing} in the {place}." for person, thing, place in stories
    ]


def _qasper(generator: random.Random) -> Draft:
    """Four things with one property each; a third of the questions have a second reference."""
    question, keys, value, _ = _property(generator)
    references = [value]
    if generator.randrange(3) == 0:
        references.append(f"It is {value}.")
    return Draft(question, keys, references)


def _narrative_qa(generator: random.Random) -> Draft:
    """Who put what where; two references."""
    stories, keys = _stories(generator, 4)
    person, thing, place = generator.choice(stories)
    if generator.randrange(2):
        return Draft(f"Who put the {thing} in the {place}?", keys, [person, f"It was {person}."])
    return Draft(f"Where did {person} put the {thing}?", keys, [f"in the {place}", f"the {place}"])


def _contract_nli(generator: random.Random) -> Draft:
    """What the party may do and may not do."""
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
    """The four properties that the document names are the options."""
    question, keys, value, values = _property(generator)
    return Draft(f"{question}\n\n{_options(generator.sample(values, 4))}", keys, [value])


def _options(values: list[str]) -> str:
    """``(A) red``, ``(B) white`` and so on, one a line."""
    return "\n".join(f"({letter}) {v}" for letter, v in zip("ABCD", values, strict=True))


def _qmsum(generator: random.Random) -> Draft:
    """A meeting that decides twice on each of two topics; the query is for one."""
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
    """A script: its three stage directions are the summary."""
    _, directions = _stories(generator, 3)
    keys = [f"[ {direction} ]" for direction in directions]
    return Draft(None, keys, [" ".join(directions)], speakers=True)


def _gov_report(generator: random.Random) -> Draft:
    """A report: its four findings are the summary."""
    _, findings, _, _ = _property(generator)
    return Draft(None, [f"Finding: {finding}" for finding in findings], [" ".join(findings)])


_EACH = (_qasper, _narrative_qa, _contract_nli, _quality, _qmsum, _summ_screen_fd, _gov_report)
SCROLLS = {make.__name__.removeprefix("_"): make for make in _EACH}


class Fact(NamedTuple):
    """One of the four facts of a document."""

    sentence: str
    question: str
    value: str
    choices: list[str]  # all values of its kind


FACTS = {"qasper": "thing", "quality": "thing", "narrative_qa": "visit"}  # data set -> its subject
KINDS = {"colour": VALUES["colour"], "size": VALUES["size"], "owner": PEOPLE, "place": PLACES}
TIMES = _listed("morning noon evening night spring summer autumn winter")
VISIT = (  # sentence, question, values
    ("The one who came was {}.", "Who came?", PEOPLE),
    ("The visit was in the {}.", "Where was the visit?", PLACES),
    ("The time of the visit was {}.", "When was the visit?", TIMES),
    ("What was lost is the {}.", "What was lost?", GOODS),
)


def four_facts(dataset: str, generator: random.Random) -> list[Fact]:
    """Four facts of four kinds about one thing or visit, in an order that is drawn.

    Which fact answers a question follows from the kind of its value: nothing has to be matched.
    """
    facts = []
    if FACTS[dataset] == "visit":
        for sentence, question, words in VISIT:
            value = generator.choice(words)
            facts.append(Fact(sentence.format(value), question, value, words))
    else:
        thing = generator.choice(THINGS)
        for kind, words in KINDS.items():
            value = generator.choice(words)
            what = f"the {kind} of the {thing}"
            facts.append(Fact(f"T{what[1:]} is {value}.", f"What is {what}?", value, words))
    generator.shuffle(facts)
    return facts


def asked(dataset: str, fact: Fact, generator: random.Random) -> str:
    """The question about a fact; QuALITY's with the value and three others of its kind."""
    if dataset != "quality":
        return fact.question
    wrong = generator.sample([value for value in fact.choices if value != fact.value], 3)
    options = generator.sample([fact.value, *wrong], 4)
    return f"{fact.question}\n\n{_options(options)}"


def facts_document(
    dataset: str, generator: random.Random
) -> tuple[Callable[[int], str], list[Fact]]:
    """What writes four facts in their order, scattered among so many sentences of filler; and the
    facts.
    """
    facts = four_facts(dataset, generator)
    depths = sorted(generator.random() for _ in facts)
    seed = generator.getrandbits(32)

    def write(count: int) -> str:
        filler = random.Random(seed)
        sentences = [filler.choice(FILLERS).format(*filler.sample(NOUNS, 3)) for _ in range(count)]
        for depth, fact in reversed([*zip(depths, facts, strict=True)]):
            sentences.insert(int(depth * (count + 1)), fact.sentence)
        return " ".join(sentences)

    return write, facts


def write_benchmarks(folder: Path) -> Path:
    """Write YAMLs of MMLU and ARC and their JSONL files into ``folder``, unless they are there
    already; returns it.

    Each includes lm-eval's own YAML of the benchmark that it replaces, so that questions are asked
    and scored in the same way; MMLU's four groups have two subjects each.
    """
    import lm_eval

    tasks = Path(lm_eval.__file__).parent / "tasks"
    mmlu = tasks / "mmlu" / "default"
    yamls: dict[str, dict[str, Any]] = {"mmlu": {"include": str(mmlu / "_mmlu.yaml")}}
    files: dict[str, str] = {}
    for group, subjects in SUBJECTS.items():
        yamls[group] = {"include": str(mmlu / f"_{group}.yaml")}
        for make in subjects:
            subject = make.__name__.removeprefix("_")
            yamls[f"mmlu_{subject}"] = {
                "include": str(mmlu / "_default_template_yaml"),
                "tag": f"{group}_tasks",
                "description": f"Questions about {subject}, with answers.\n\n",
            }
    for name in ("arc_easy", "arc_challenge"):
        yamls[name] = {"include": str(tasks / "arc" / f"{name}.yaml")}
    for name in BENCHMARKS:
        splits = MMLU_SPLITS if name.startswith("mmlu") else ARC_SPLITS
        data = {split: f"{name}/{split}.jsonl" for split in splits}
        of_json = {"dataset_path": "json", "dataset_name": None}
        yamls[name] |= {"task": name, **of_json, "dataset_kwargs": {"data_files": data}}
        for split, count in splits.items():
            rows = (json.dumps(benchmark_row(name, split, index)) for index in range(count))
            files[data[split]] = "".join(f"{row}\n" for row in rows)
    for name, content in yamls.items():
        files[f"{name}.yaml"] = yaml.safe_dump(content, sort_keys=False)
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
    return folder


def question(name: str, split: str, index: int) -> tuple[str, list[str], int]:
    """A question, four choices and the right one's place, 0 … 3 in turn."""
    generator = random.Random(seed_for(0, "benchmarks", name, split, index))
    text, right, wrong = BENCHMARKS[name](generator)
    choices = generator.sample(wrong, 3)
    place = index % 4
    choices.insert(place, right)
    return text, choices, place


def benchmark_row(name: str, split: str, index: int) -> dict[str, Any]:
    """A question as MMLU's files have it, or as ARC's."""
    text, choices, place = question(name, split, index)
    if name.startswith("mmlu"):
        subject = name.removeprefix("mmlu_")
        return {"question": text, "subject": subject, "choices": choices, "answer": place}
    row = {"id": f"{name}-{split}-{index}", "question": text}
    return row | {"choices": {"text": choices, "label": list("ABCD")}, "answerKey": "ABCD"[place]}


Choice = tuple[str, str, list[str]]  # question, the right choice, three wrong ones or more


def _spelling(generator: random.Random) -> Choice:
    right, *wrong = generator.sample(SPELLED, 4)
    return f"Which word begins with the letter {right[0]}?", right, wrong


def _alphabet(generator: random.Random) -> Choice:
    right, *wrong = sorted(generator.sample(SPELLED, 4))
    return "Which word comes first in the alphabet?", right, wrong


def _ages(generator: random.Random) -> Choice:
    people = generator.sample(PEOPLE, 4)
    ages = generator.sample(range(10, 90), 4)
    facts = ", ".join(f"{person} is {age}" for person, age in zip(people, ages, strict=True))
    right = people[ages.index(max(ages))]
    wrong = [person for person in people if person != right]
    return f"{facts} years old. Who is the oldest?", right, wrong


def _trade(generator: random.Random) -> Choice:
    giver, taker = generator.sample(PEOPLE, 2)
    gift = generator.randint(1, 9)
    left = generator.randint(1, 9)
    return (
        f"{giver} has {gift + left} coins and gives {gift} of them to {taker}. How many coins "
        "are left?",
        *_numbers(left),
    )


def _arithmetic(generator: random.Random) -> Choice:
    a = generator.randint(1, 20)
    b = generator.randint(1, 20)
    return f"What is {a} + {b}?", *_numbers(a + b)


def _python(generator: random.Random) -> Choice:
    word = generator.choice(SPELLED)
    return f"What is the value of len('{word}') in Python?", *_numbers(len(word))


def _numbers(right: int) -> tuple[str, list[str]]:
    return str(right), [str(right + step) for step in (-1, 1, 2)]


def _places(generator: random.Random) -> Choice:
    goods = generator.sample(GOODS, 4)
    places = generator.sample([p for p in PLACES if p not in GOODS], 4)
    facts = [f"The {thing} is in the {place}." for thing, place in zip(goods, places, strict=True)]
    answers = [f"in the {place}" for place in places]
    chosen = generator.randrange(4)
    right = answers.pop(chosen)
    return f"{' '.join(facts)} Where is the {goods[chosen]}?", right, answers


def _opposites(generator: random.Random) -> Choice:
    word = generator.choice(list(OPPOSITES))
    right = OPPOSITES[word]
    wrong = generator.sample([w for w in OPPOSITES.values() if w != right], 3)
    return f"What is the opposite of {word}?", right, wrong


def _arc_easy(generator: random.Random) -> Choice:
    text, right, wrong = fact(generator, 1)
    return text(generator.randint(1, 8)), right, wrong


def _arc_challenge(generator: random.Random) -> Choice:
    """One of four facts of four kinds about one thing; the choices are values of the asked kind."""
    facts = four_facts("qasper", generator)
    chosen = generator.choice(facts)
    depths = sorted(generator.random() for _ in facts)
    lines = [(depth, fact.sentence) for depth, fact in zip(depths, facts, strict=True)]
    text = with_filler(lines, chosen.question)
    wrong = [value for value in chosen.choices if value != chosen.value]
    return text(generator.randint(14, 24)), chosen.value, wrong


def fact(generator: random.Random, count: int) -> tuple[Callable[[int], str], str, list[str]]:
    """One of ``count`` facts, 4 at most, among sentences of filler: the text with the question
    after so many of them, the right choice and three wrong ones, those of the other facts first.
    """
    kind = generator.choice(list(VALUES))
    goods = generator.sample(GOODS, count)
    values = generator.sample(VALUES[kind], 4)
    right, *wrong = values
    facts = [f"The {kind} of the {goods[n]} is {values[n]}." for n in range(count)]
    generator.shuffle(facts)
    lines = [*zip(sorted(generator.random() for _ in facts), facts, strict=True)]
    return with_filler(lines, f"What is the {kind} of the {goods[0]}?"), right, wrong


SUBJECTS = {
    "mmlu_humanities": (_spelling, _alphabet),
    "mmlu_social_sciences": (_ages, _trade),
    "mmlu_stem": (_arithmetic, _python),
    "mmlu_other": (_places, _opposites),
}
BENCHMARKS: dict[str, Callable[[random.Random], Choice]]
BENCHMARKS = {f"mmlu{make.__name__}": make for make in itertools.chain(*SUBJECTS.values())}
BENCHMARKS |= {"arc_easy": _arc_easy, "arc_challenge": _arc_challenge}
