"""Generated multiple choice in place of MMLU and ARC, as YAMLs and files that lm-eval reads."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tape_exp.data.builtin.facts import ask_among_facts, four_facts
from tape_exp.data.builtin.words import GOODS, PEOPLE, PLACES
from tape_exp.data.retrieval import with_filler
from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import seed_for

MMLU_SPLITS = {"test": 40, "dev": 5}  # questions a subject
ARC_SPLITS = {"test": 60, "train": 20, "validation": 10}
MMLU_GROUPS = {  # the two subjects of each
    "mmlu_humanities": ("spelling", "alphabet"),
    "mmlu_social_sciences": ("ages", "trade"),
    "mmlu_stem": ("arithmetic", "python"),
    "mmlu_other": ("places", "opposites"),
}
SPELLED = [
    "apple",
    "book",
    "cat",
    "dog",
    "egg",
    "fish",
    "garden",
    "house",
    "key",
    "letter",
    "moon",
    "night",
    "paper",
    "river",
]
OPPOSITES = {
    "long": "short",
    "new": "old",
    "open": "closed",
    "first": "last",
    "true": "false",
    "left": "right",
    "hot": "cold",
    "small": "large",
}


# ---- files ----


def write_benchmarks(folder: Path) -> Path:
    """Write YAMLs of MMLU and ARC and their JSONL files into ``folder``, unless they are there
    already; returns it.

    Each includes lm-eval's own YAML of the benchmark that it replaces, so that questions are asked
    and scored in the same way; MMLU's four groups have two subjects each.
    """
    files = {}
    for name, content in _yamls().items():
        files[f"{name}.yaml"] = yaml.safe_dump(content, sort_keys=False)
    for name in BENCHMARKS:
        for split, count in _splits(name).items():
            rows = [json.dumps(benchmark_row(name, split, index)) for index in range(count)]
            files[_file(name, split)] = "\n".join(rows) + "\n"
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
    return folder


def _yamls() -> dict[str, dict[str, Any]]:
    """Describe each group and benchmark as lm-eval's YAMLs do, by name."""
    import lm_eval

    tasks = Path(lm_eval.__file__).parent / "tasks"
    mmlu = tasks / "mmlu" / "default"
    yamls: dict[str, dict[str, Any]] = {"mmlu": {"include": str(mmlu / "_mmlu.yaml")}}
    for group, subjects in MMLU_GROUPS.items():
        yamls[group] = {"include": str(mmlu / f"_{group}.yaml")}
        for subject in subjects:
            yamls[f"mmlu_{subject}"] = {
                "include": str(mmlu / "_default_template_yaml"),
                "tag": f"{group}_tasks",
                "description": f"Questions about {subject}, with answers.\n\n",
            }
    for name in ("arc_easy", "arc_challenge"):
        yamls[name] = {"include": str(tasks / "arc" / f"{name}.yaml")}
    for name in BENCHMARKS:
        data = {split: _file(name, split) for split in _splits(name)}
        yamls[name] |= {
            "task": name,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": data},
        }
    return yamls


def _splits(name: str) -> dict[str, int]:
    """Return how many questions each split of a benchmark has."""
    return MMLU_SPLITS if name.startswith("mmlu") else ARC_SPLITS


def _file(name: str, split: str) -> str:
    """Name the file of a split, as its YAML does."""
    return f"{name}/{split}.jsonl"


def benchmark_row(name: str, split: str, index: int) -> dict[str, Any]:
    """Make a question as MMLU's files have it, or as ARC's."""
    made = multiple_choice(name, split, index)
    if name.startswith("mmlu"):
        return {
            "question": made.text,
            "subject": name.removeprefix("mmlu_"),
            "choices": made.choices,
            "answer": made.answer,
        }
    return {
        "id": f"{name}-{split}-{index}",
        "question": made.text,
        "choices": {"text": made.choices, "label": list("ABCD")},
        "answerKey": "ABCD"[made.answer],
    }


@dataclass(frozen=True)
class MultipleChoice:
    """A question with its choices, as it is asked."""

    text: str
    choices: list[str]  # four
    answer: int  # the place of the right one


def multiple_choice(name: str, split: str, index: int) -> MultipleChoice:
    """Ask a benchmark's question; the right choice is the first, second, third, fourth in turn.

    >>> multiple_choice("mmlu_spelling", "dev", 2).answer
    2
    """
    generator = random.Random(seed_for(0, "benchmarks", name, split, index))
    item = BENCHMARKS[name](generator)
    choices = generator.sample(item.wrong, 3)
    answer = index % 4
    choices.insert(answer, item.right)
    return MultipleChoice(item.question, choices, answer)


# ---- questions ----


@dataclass(frozen=True)
class Item:
    """A question, its right answer, and wrong ones to choose from."""

    question: str
    right: str
    wrong: list[str]  # three or more


def _spelling(generator: random.Random) -> Item:
    """Ask for the word that begins with a letter."""
    right, *wrong = generator.sample(SPELLED, 4)
    return Item(f"Which word begins with the letter {right[0]}?", right, wrong)


def _alphabet(generator: random.Random) -> Item:
    """Ask which of four words comes first."""
    right, *wrong = sorted(generator.sample(SPELLED, 4))
    return Item("Which word comes first in the alphabet?", right, wrong)


def _ages(generator: random.Random) -> Item:
    """Ask which of four people is the oldest."""
    people = generator.sample(PEOPLE, 4)
    ages = generator.sample(range(10, 90), 4)
    facts = ", ".join(f"{person} is {age}" for person, age in zip(people, ages, strict=True))
    right = people[ages.index(max(ages))]
    wrong = [person for person in people if person != right]
    return Item(f"{facts} years old. Who is the oldest?", right, wrong)


def _trade(generator: random.Random) -> Item:
    """Ask what is left after a gift."""
    giver, taker = generator.sample(PEOPLE, 2)
    gift = generator.randint(1, 9)
    left = generator.randint(1, 9)
    return _number(
        f"{giver} has {gift + left} coins and gives {gift} of them to {taker}. How many coins "
        "are left?",
        left,
    )


def _arithmetic(generator: random.Random) -> Item:
    """Ask for a sum of two numbers up to 20."""
    a = generator.randint(1, 20)
    b = generator.randint(1, 20)
    return _number(f"What is {a} + {b}?", a + b)


def _python(generator: random.Random) -> Item:
    """Ask for the length of a word."""
    word = generator.choice(SPELLED)
    return _number(f"What is the value of len('{word}') in Python?", len(word))


def _number(question: str, right: int) -> Item:
    """Ask a question whose wrong answers are numbers beside the right one."""
    return Item(question, str(right), [str(right + step) for step in (-1, 1, 2)])


def _places(generator: random.Random) -> Item:
    """Ask where one of four things is, each of which is told."""
    goods = generator.sample(GOODS, 4)
    places = generator.sample([p for p in PLACES if p not in GOODS], 4)
    facts = [f"The {thing} is in the {place}." for thing, place in zip(goods, places, strict=True)]
    answers = [f"in the {place}" for place in places]
    chosen = generator.randrange(4)
    right = answers.pop(chosen)
    return Item(f"{' '.join(facts)} Where is the {goods[chosen]}?", right, answers)


def _opposites(generator: random.Random) -> Item:
    """Ask for the opposite of a word."""
    word = generator.choice(list(OPPOSITES))
    right = OPPOSITES[word]
    wrong = generator.sample([w for w in OPPOSITES.values() if w != right], 3)
    return Item(f"What is the opposite of {word}?", right, wrong)


def _arc_easy(generator: random.Random) -> Item:
    """Ask for the one fact of a short text."""
    asked = ask_among_facts(generator, 1)
    return Item(asked.write(generator.randint(1, 8)), asked.right, asked.wrong)


def _arc_challenge(generator: random.Random) -> Item:
    """Ask for one of four facts of four kinds; the choices are of the asked kind."""
    facts = four_facts("qasper", generator)
    chosen = generator.choice(facts)
    depths = sorted(generator.random() for _ in facts)
    lines = [(depth, fact.sentence) for depth, fact in zip(depths, facts, strict=True)]
    write = with_filler(lines, chosen.question)
    wrong = [value for value in chosen.choices if value != chosen.value]
    return Item(write(generator.randint(14, 24)), chosen.value, wrong)


BENCHMARKS: dict[str, Callable[[random.Random], Item]] = {
    "mmlu_spelling": _spelling,
    "mmlu_alphabet": _alphabet,
    "mmlu_ages": _ages,
    "mmlu_trade": _trade,
    "mmlu_arithmetic": _arithmetic,
    "mmlu_python": _python,
    "mmlu_places": _places,
    "mmlu_opposites": _opposites,
    "arc_easy": _arc_easy,
    "arc_challenge": _arc_challenge,
}
