"""A small generated substitute for MMLU and ARC, in lm-eval's format and asked in its words."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tape_exp.data.scrolls_builtin import GOODS, PEOPLE, PLACES, VALUES
from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import seed_for

MMLU_SPLITS = {"test": 40, "dev": 5}  # questions a subject
ARC_SPLITS = {"test": 60, "train": 20, "validation": 10}
LETTERS = "ABCD"
WORDS = [
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
Draft = tuple[str, str, list[str]]  # question, the right choice, three wrong ones


def write(folder: Path) -> Path:
    """Write the YAMLs and their JSONL files into ``folder``, unless they are there already; returns
    it.

    Each includes lm-eval's own YAML of the benchmark that it replaces, so that questions are asked
    and scored in the same way; MMLU's four groups have two subjects each.
    """
    import lm_eval

    theirs = Path(lm_eval.__file__).parent / "tasks"
    mmlu, arc = theirs / "mmlu" / "default", theirs / "arc"
    files: dict[str, str] = {}
    for group, subjects in SUBJECTS.items():
        files[f"{group}.yaml"] = _yaml({"include": str(mmlu / f"_{group}.yaml")})
        for subject in subjects:
            name = f"mmlu_{subject}"
            files |= _task(name, MMLU_SPLITS, _mmlu_row) | {
                f"{name}.yaml": _yaml(
                    {
                        "include": str(mmlu / "_default_template_yaml"),
                        "task": name,
                        "tag": f"{group}_tasks",
                        "description": f"Questions about {subject}, with answers.\n\n",
                        **_data(name, MMLU_SPLITS),
                    }
                )
            }
    files["mmlu.yaml"] = _yaml({"include": str(mmlu / "_mmlu.yaml")})
    for name in ("arc_easy", "arc_challenge"):
        own = {"include": str(arc / f"{name}.yaml"), "task": name, **_data(name, ARC_SPLITS)}
        files |= _task(name, ARC_SPLITS, _arc_row) | {f"{name}.yaml": _yaml(own)}
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_text() != content:
            write_atomically(path, content)
    return folder


def question(name: str, split: str, index: int) -> tuple[str, list[str], int]:
    """A question, four choices and the right one's place, 0 … 3 in turn; a pure function."""
    generator = random.Random(seed_for(0, "benchmarks", name, split, index))
    text, right, wrong = DRAFTS[name](generator)
    choices = generator.sample(wrong, 3)
    place = index % 4
    choices.insert(place, right)
    return text, choices, place


def _task(name: str, splits: dict[str, int], row: Callable[..., dict[str, Any]]) -> dict[str, str]:
    """The JSONL files of a benchmark."""
    return {
        f"{name}/{split}.jsonl": "".join(
            json.dumps(row(name, split, index)) + "\n" for index in range(count)
        )
        for split, count in splits.items()
    }


def _data(name: str, splits: dict[str, int]) -> dict[str, Any]:
    """The keys of a YAML that name its data files."""
    files = {split: f"{name}/{split}.jsonl" for split in splits}
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}


def _mmlu_row(name: str, split: str, index: int) -> dict[str, Any]:
    text, choices, place = question(name, split, index)
    return {
        "question": text,
        "subject": name.removeprefix("mmlu_"),
        "choices": choices,
        "answer": place,
    }


def _arc_row(name: str, split: str, index: int) -> dict[str, Any]:
    text, choices, place = question(name, split, index)
    labelled = {"text": choices, "label": list(LETTERS)}
    return {
        "id": f"{name}-{split}-{index}",
        "question": text,
        "choices": labelled,
        "answerKey": LETTERS[place],
    }


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False)


def _spelling(generator: random.Random) -> Draft:
    right, *wrong = generator.sample(WORDS, 4)
    return f"Which word begins with the letter {right[0]}?", right, wrong


def _alphabet(generator: random.Random) -> Draft:
    right, *wrong = sorted(generator.sample(WORDS, 4))
    return "Which word comes first in the alphabet?", right, wrong


def _ages(generator: random.Random) -> Draft:
    people, ages = generator.sample(PEOPLE, 4), generator.sample(range(10, 90), 4)
    oldest = max(ages)
    facts = ", ".join(f"{person} is {age}" for person, age in zip(people, ages, strict=True))
    right = people[ages.index(oldest)]
    return (
        f"{facts} years old. Who is the oldest?",
        right,
        [person for person in people if person != right],
    )


def _trade(generator: random.Random) -> Draft:
    giver, taker = generator.sample(PEOPLE, 2)
    given, left = generator.randint(1, 9), generator.randint(1, 9)
    text = (
        f"{giver} has {given + left} coins and gives {given} of them to {taker}. How many coins "
        "are left?"
    )
    return text, *_numbers(left)


def _arithmetic(generator: random.Random) -> Draft:
    a, b = generator.randint(1, 20), generator.randint(1, 20)
    return f"What is {a} + {b}?", *_numbers(a + b)


def _python(generator: random.Random) -> Draft:
    word = generator.choice(WORDS)
    return f"What is the value of len('{word}') in Python?", *_numbers(len(word))


def _numbers(right: int) -> tuple[str, list[str]]:
    return str(right), [str(right + step) for step in (-1, 1, 2)]


def _places(generator: random.Random) -> Draft:
    goods = generator.sample(GOODS, 4)
    places = generator.sample([p for p in PLACES if p not in GOODS], 4)
    facts = " ".join(
        f"The {thing} is in the {place}." for thing, place in zip(goods, places, strict=True)
    )
    return (
        f"{facts} Where is the {goods[0]}?",
        f"in the {places[0]}",
        [f"in the {place}" for place in places[1:]],
    )


def _opposites(generator: random.Random) -> Draft:
    word = generator.choice(list(OPPOSITES))
    right = OPPOSITES[word]
    return (
        f"What is the opposite of {word}?",
        right,
        generator.sample([w for w in OPPOSITES.values() if w != right], 3),
    )


def _arc_easy(generator: random.Random) -> Draft:
    kind = generator.choice(list(VALUES))
    thing, (right, *wrong) = generator.choice(GOODS), generator.sample(VALUES[kind], 4)
    return f"The {kind} of the {thing} is {right}. What is the {kind} of the {thing}?", right, wrong


def _arc_challenge(generator: random.Random) -> Draft:
    people = generator.sample(PEOPLE, 4)
    facts = [f"{tall} is taller than {short}." for tall, short in pairwise(people)]
    generator.shuffle(facts)
    return f"{' '.join(facts)} Who is the smallest?", people[-1], people[:-1]


SUBJECTS = {
    "mmlu_humanities": ["spelling", "alphabet"],
    "mmlu_social_sciences": ["ages", "trade"],
    "mmlu_stem": ["arithmetic", "python"],
    "mmlu_other": ["places", "opposites"],
}
DRAFTS: dict[str, Callable[[random.Random], Draft]] = {
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
