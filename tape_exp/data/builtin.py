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
    """Yield the rows of a split."""
    for index in range(SIZES[split]):
        generator = random.Random(seed_for(0, "scrolls", dataset, split, index))
        draft = SCROLLS[dataset](generator)
        id_ = f"{split}-{index}"
        document = _fill(generator, draft)
        text = document if draft.question is None else f"{draft.question}\n\n{document}"
        for number, reference in enumerate(draft.references):
            yield {"id": id_, "pid": f"{id_}_{number}", "input": text, "output": reference}


def _fill(generator: random.Random, draft: Draft) -> str:
    """Scatter the key sentences among others."""
    least, most = WORDS
    target = generator.randint(least + LONGEST, most)
    length = sum(len(key.split()) for key in draft.keys)
    sentences: list[str] = []
    while length + LONGEST <= target:
        sentence = generator.choice(FILLERS).format(*generator.sample(NOUNS, 3))
        if draft.speakers:
            sentence = f"{generator.choice(PEOPLE)}: {sentence}"
        sentences.append(sentence)
        length += len(sentence.split())
    indices = sorted(generator.randint(0, len(sentences)) for _ in draft.keys)
    for index, key in reversed(list(zip(indices, draft.keys, strict=True))):
        sentences.insert(index, key)
    return ("\n" if draft.speakers else " ").join(sentences)


class Properties(NamedTuple):
    """Four things with a property of one kind each, and a question for one of them."""

    question: str
    sentences: list[str]
    value: str  # that answers the question
    values: list[str]  # of all four


def _properties(generator: random.Random) -> Properties:
    kind = generator.choice(list(VALUES))
    things = generator.sample(THINGS, 4)
    values = generator.sample(VALUES[kind], 4)
    sentences = []
    for thing, value in zip(things, values, strict=True):
        sentences.append(f"The {kind} of the {thing} is {value}.")
    chosen = generator.randrange(4)
    question = f"What is the {kind} of the {things[chosen]}?"
    return Properties(question, sentences, values[chosen], values)


class Story(NamedTuple):
    """Who put what where."""

    person: str
    thing: str
    place: str

    @property
    def sentence(self) -> str:
        """Write it as a sentence."""
        return f"{self.person} put the {self.thing} in the {self.place}."


def _stories(generator: random.Random, count: int) -> list[Story]:
    people = generator.sample(PEOPLE, count)
    goods = generator.sample(GOODS, count)
    places = generator.sample(PLACES, count)
    return list(map(Story, people, goods, places))


def _qasper(generator: random.Random) -> Draft:
    """Four things with one property each; a third of the questions have a second reference."""
    properties = _properties(generator)
    references = [properties.value]
    if generator.randrange(3) == 0:
        references.append(f"It is {properties.value}.")
    return Draft(properties.question, properties.sentences, references)


def _narrative_qa(generator: random.Random) -> Draft:
    """Who put what where; two references."""
    stories = _stories(generator, 4)
    keys = [story.sentence for story in stories]
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
    properties = _properties(generator)
    options = _options(generator.sample(properties.values, 4))
    question = f"{properties.question}\n\n{options}"
    return Draft(question, properties.sentences, [properties.value])


def _options(values: list[str]) -> str:
    """Write ``(A) red``, ``(B) white`` and so on, one a line."""
    return "\n".join(f"({letter}) {value}" for letter, value in zip("ABCD", values, strict=True))


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
    directions = [story.sentence for story in _stories(generator, 3)]
    keys = [f"[ {direction} ]" for direction in directions]
    return Draft(None, keys, [" ".join(directions)], speakers=True)


def _gov_report(generator: random.Random) -> Draft:
    """A report: its four findings are the summary."""
    findings = _properties(generator).sentences
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
ATTRIBUTES = {"colour": VALUES["colour"], "size": VALUES["size"], "owner": PEOPLE, "place": PLACES}
TIMES = _listed("morning noon evening night spring summer autumn winter")
VISIT = (  # sentence, question, values
    ("The one who came was {}.", "Who came?", PEOPLE),
    ("The visit was in the {}.", "Where was the visit?", PLACES),
    ("The time of the visit was {}.", "When was the visit?", TIMES),
    ("What was lost is the {}.", "What was lost?", GOODS),
)


def four_facts(dataset: str, generator: random.Random) -> list[Fact]:
    """Draw four facts of four kinds about one thing or visit, in an order that is drawn too.

    Which fact answers a question follows from the kind of its value: nothing has to be matched.
    """
    facts = []
    if FACTS[dataset] == "visit":
        for sentence, question, values in VISIT:
            value = generator.choice(values)
            facts.append(Fact(sentence.format(value), question, value, values))
    else:
        thing = generator.choice(THINGS)
        for kind, values in ATTRIBUTES.items():
            value = generator.choice(values)
            sentence = f"The {kind} of the {thing} is {value}."
            facts.append(Fact(sentence, f"What is the {kind} of the {thing}?", value, values))
    generator.shuffle(facts)
    return facts


def asked(dataset: str, fact: Fact, generator: random.Random) -> str:
    """Ask about a fact; in QuALITY with the value and three others of its kind as options."""
    if dataset != "quality":
        return fact.question
    others = [value for value in fact.choices if value != fact.value]
    options = generator.sample([fact.value, *generator.sample(others, 3)], 4)
    return f"{fact.question}\n\n{_options(options)}"


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
    """Make a question, four choices, and the right one's number, 0 … 3 in turn."""
    generator = random.Random(seed_for(0, "benchmarks", name, split, index))
    text, right, wrong = BENCHMARKS[name](generator)
    choices = generator.sample(wrong, 3)
    answer = index % 4
    choices.insert(answer, right)
    return text, choices, answer


def benchmark_row(name: str, split: str, index: int) -> dict[str, Any]:
    """Make a question as MMLU's files have it, or as ARC's."""
    text, choices, answer = question(name, split, index)
    if name.startswith("mmlu"):
        subject = name.removeprefix("mmlu_")
        return {"question": text, "subject": subject, "choices": choices, "answer": answer}
    return {
        "id": f"{name}-{split}-{index}",
        "question": text,
        "choices": {"text": choices, "label": list("ABCD")},
        "answerKey": "ABCD"[answer],
    }


class Choice(NamedTuple):
    """A question with choices."""

    question: str
    right: str
    wrong: list[str]  # three or more


def _spelling(generator: random.Random) -> Choice:
    right, *wrong = generator.sample(SPELLED, 4)
    return Choice(f"Which word begins with the letter {right[0]}?", right, wrong)


def _alphabet(generator: random.Random) -> Choice:
    right, *wrong = sorted(generator.sample(SPELLED, 4))
    return Choice("Which word comes first in the alphabet?", right, wrong)


def _ages(generator: random.Random) -> Choice:
    people = generator.sample(PEOPLE, 4)
    ages = generator.sample(range(10, 90), 4)
    facts = ", ".join(f"{person} is {age}" for person, age in zip(people, ages, strict=True))
    right = people[ages.index(max(ages))]
    wrong = [person for person in people if person != right]
    return Choice(f"{facts} years old. Who is the oldest?", right, wrong)


def _trade(generator: random.Random) -> Choice:
    giver, taker = generator.sample(PEOPLE, 2)
    gift = generator.randint(1, 9)
    left = generator.randint(1, 9)
    return _number(
        f"{giver} has {gift + left} coins and gives {gift} of them to {taker}. How many coins "
        "are left?",
        left,
    )


def _arithmetic(generator: random.Random) -> Choice:
    a = generator.randint(1, 20)
    b = generator.randint(1, 20)
    return _number(f"What is {a} + {b}?", a + b)


def _python(generator: random.Random) -> Choice:
    word = generator.choice(SPELLED)
    return _number(f"What is the value of len('{word}') in Python?", len(word))


def _number(question: str, right: int) -> Choice:
    """A question whose wrong answers are numbers beside the right one."""
    return Choice(question, str(right), [str(right + step) for step in (-1, 1, 2)])


def _places(generator: random.Random) -> Choice:
    goods = generator.sample(GOODS, 4)
    places = generator.sample([p for p in PLACES if p not in GOODS], 4)
    facts = [f"The {thing} is in the {place}." for thing, place in zip(goods, places, strict=True)]
    answers = [f"in the {place}" for place in places]
    chosen = generator.randrange(4)
    right = answers.pop(chosen)
    return Choice(f"{' '.join(facts)} Where is the {goods[chosen]}?", right, answers)


def _opposites(generator: random.Random) -> Choice:
    word = generator.choice(list(OPPOSITES))
    right = OPPOSITES[word]
    wrong = generator.sample([w for w in OPPOSITES.values() if w != right], 3)
    return Choice(f"What is the opposite of {word}?", right, wrong)


def _arc_easy(generator: random.Random) -> Choice:
    write, right, wrong = fact(generator, 1)
    return Choice(write(generator.randint(1, 8)), right, wrong)


def _arc_challenge(generator: random.Random) -> Choice:
    """One of four facts of four kinds about one thing; the choices are values of the asked kind."""
    facts = four_facts("qasper", generator)
    chosen = generator.choice(facts)
    depths = sorted(generator.random() for _ in facts)
    lines = [(depth, fact.sentence) for depth, fact in zip(depths, facts, strict=True)]
    write = with_filler(lines, chosen.question)
    wrong = [value for value in chosen.choices if value != chosen.value]
    return Choice(write(generator.randint(14, 24)), chosen.value, wrong)


def fact(generator: random.Random, count: int) -> tuple[Callable[[int], str], str, list[str]]:
    """Ask for one of ``count`` facts, 4 at most, among sentences of filler: return what writes the
    text with so many of them and the question, the right choice and three wrong ones, those of the
    other facts first.
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
