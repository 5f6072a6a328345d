"""Generated questions: the text has the answer, every fact is asked for, a guess is a guess."""

import random
from collections import Counter

import pytest

from tape_exp.data.builtin.benchmarks import BENCHMARKS
from tape_exp.data.builtin.facts import SUBJECTS, asked, facts_document, four_facts

NUMBERS = range(2000)


@pytest.mark.parametrize("dataset", SUBJECTS)
def test_four_facts_of_four_kinds_are_in_every_document(dataset):
    for number in range(50):
        write, facts = facts_document(dataset, random.Random(number))
        assert len({fact.question for fact in facts}) == len(facts) == 4
        for count in (0, 1, 30):
            text = write(count)
            places = [text.index(fact.sentence) for fact in facts]
            assert places == sorted(places)
            assert text.count(".") == 4 + count
        again, same = facts_document(dataset, random.Random(number))
        assert (again(30), same) == (write(30), facts)


@pytest.mark.parametrize("dataset", SUBJECTS)
def test_the_order_of_facts_does_not_tell_their_kind(dataset):
    first = Counter(
        four_facts(dataset, random.Random(n))[0].sentence.rpartition(" ")[0].split(" of ")[0]
        for n in NUMBERS
    )
    assert len(first) == 4
    assert min(first.values()) > 0.2 * len(NUMBERS)


def test_options_of_quality_are_of_the_asked_kind_and_one_is_in_the_text():
    for number in range(200):
        generator = random.Random(number)
        _, facts = facts_document("quality", generator)
        fact = generator.choice(facts)
        options = [line[4:] for line in asked("quality", fact, generator).split("\n")[2:]]
        assert sorted(options) == sorted({*options} & {*fact.choices})
        assert len(options) == 4
        assert [option for option in options if f" {option}." in fact.sentence] == [fact.value]


@pytest.mark.parametrize("dataset", SUBJECTS)
def test_a_guess_among_the_four_facts_is_right_in_a_quarter(dataset):
    """And one among the values of the asked kind, without reading, in fewer."""
    copied = blind = 0
    for number in NUMBERS:
        generator = random.Random(number)
        facts = four_facts(dataset, generator)
        wanted = generator.choice(facts)
        copied += generator.choice(facts).value == wanted.value
        blind += generator.choice(wanted.choices) == wanted.value
    assert copied / len(NUMBERS) == pytest.approx(0.25, abs=0.04)
    assert blind / len(NUMBERS) < 0.22


def test_each_of_four_places_is_asked_for_equally_often():
    """That the first was always asked for made the answer a place in the text."""
    places = Counter()
    for number in NUMBERS:
        made = BENCHMARKS["mmlu_places"](random.Random(number))
        text = made.question
        right = made.right
        told = [sentence for sentence in text.split(". ") if " is in the " in sentence]
        assert len(told) == 4
        assert len({right, *made.wrong}) == 4
        (place,) = (n for n, sentence in enumerate(told) if sentence.rstrip(".").endswith(right))
        assert f"Where is the {told[place].split()[1]}?" in text
        places[place] += 1
    assert min(places.values()) > 0.2 * len(NUMBERS)


def test_of_the_choices_of_arc_challenge_only_the_right_one_is_a_fact_of_its_kind():
    for number in range(200):
        made = BENCHMARKS["arc_challenge"](random.Random(number))
        text = made.question
        what = text.splitlines()[-1].removeprefix("What is ").removesuffix("?")
        said = f"T{what[1:]} is "
        assert text.count(said) == 1
        assert f"{said}{made.right}." in text
        assert made.right not in made.wrong
        assert len(made.wrong) >= 3
