"""What a verdict says of contests: their numbers, how many seeds, and which of them decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tape_exp.paper.outcomes import Comparison, Contest
from tape_exp.results.statistics import Value
from tape_exp.results.tables import decimal, span, written
from tape_exp.settings.naming import display_name


def our_numbers(contests: Sequence[Contest], decisive: Sequence[Comparison]) -> str:
    """Write our numbers of each contest, with the best of those rivals that decided."""
    texts = []
    for contest in contests:
        rivals = [comparison.rival for comparison in decisive if comparison.contest is contest]
        text = numbers_with_test(contest, rivals) if rivals else ""
        if text:
            texts.append(text)
    return "; ".join(texts)


def numbers_with_test(contest: Contest, rivals: Sequence[str]) -> str:
    """Write the favourite's number and the best of these rivals': ``TAPE 25 ± 0.3, FIRE 34 ± 8
    (paired: -9 ± 8, p = 0.04)``.
    """
    text = numbers(contest, contest.measured, rivals)
    if not text:
        return ""
    text += paired_difference(contest, best_rival(contest, contest.measured, rivals))
    missing = []
    for name in (contest.favourite, *contest.rivals):
        if name not in contest.measured:
            missing.append(display_name(name))
    if missing:
        text += f" (not run: {', '.join(missing)})"
    return at(contest.where, text)


def paired_difference(contest: Contest, rival: str) -> str:
    """Write the difference from a rival in brackets; empty where there is none, or where it is that
    of the only seed.
    """
    difference = contest.difference(rival)
    if difference is None:
        return ""
    value = difference.value
    sign = "+" if value.number > 0 else ""
    if value.high is not None:
        return f" (paired: {written(value, contest.digits, sign)}, p = {difference.p:.2g})"
    number = decimal(value.number, contest.digits, sign)
    if difference.is_constant:
        return f" (paired: {number} in each of {value.n} seeds, p = {difference.p:.2g})"
    seeds = {*contest.measured[contest.favourite].runs, *contest.measured[rival].runs}
    if value.n == 1 and len(seeds) > 1:
        return f" (paired: {number}, one pair)"
    return ""


def papers_numbers(contests: Sequence[Contest]) -> str:
    """Write the paper's numbers of each contest, of the favourite and the best rival."""
    texts: list[str] = []
    for contest in contests:
        text = plain_numbers(contest, contest.published, contest.rivals)
        text = at(contest.published_where, text)
        if text and text not in texts:
            texts.append(text)
    return "; ".join(texts)


def plain_numbers(contest: Contest, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
    """Write numbers without their intervals."""
    plain = {name: Value(value.number) for name, value in values.items()}
    return numbers(contest, plain, rivals)


def numbers(contest: Contest, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
    """Write the favourite and the best of these rivals, each with its value: ``TAPE 25, FIRE 34``;
    who has none is left out.
    """
    texts = []
    for name in (contest.favourite, best_rival(contest, values, rivals)):
        if name in values:
            texts.append(f"{display_name(name)} {written(values[name], contest.digits)}")
    return ", ".join(texts)


def best_rival(contest: Contest, values: Mapping[str, Value], rivals: Sequence[str]) -> str:
    """Find the best of these rivals; empty where none has a value."""
    known = [name for name in rivals if name in values]
    if not known:
        return ""
    best = max if contest.higher else min
    return best(known, key=lambda name: values[name].number)


def at(where: str, text: str) -> str:
    """Put in front of a text what it is about: ``512 tokens: TAPE 25``; nothing where one of the
    two is empty.
    """
    return f"{where}: {text}" if where and text else text


def seeds_of(contests: Sequence[Contest]) -> str:
    """Say how many seeds the methods have that are compared, ``2 to 3``; empty without any."""
    counts = set()
    for contest in contests:
        for name in (contest.favourite, *contest.rivals):
            if name in contest.measured:
                counts.add(contest.measured[name].n)
    return span(str(min(counts)), str(max(counts))) if counts else ""


def extent(comparisons: Sequence[Comparison], decisive: Sequence[Comparison]) -> str:
    """Say which comparisons decide, where not all do: the one place of several, or how many."""
    if len(decisive) == len(comparisons):
        return ""
    places = {comparison.contest.where for comparison in comparisons}
    deciding_places = {comparison.contest.where for comparison in decisive}
    if len(deciding_places) == 1 < len(places):
        return deciding_places.pop()
    return f"{len(decisive)} of {len(comparisons)} comparisons"


# ---- the overview: one comparison ----


@dataclass(frozen=True)
class Short:
    """The numbers of one comparison, ours and the paper's, for the overview."""

    ours: str = ""
    paper: str = ""


def short_of(decisive: Sequence[Comparison]) -> Short:
    """Write the numbers of the most telling of the comparisons that decided."""
    if not decisive:
        return Short()
    telling = most_telling(decisive)
    contest = telling.contest
    ours = at(contest.where, plain_numbers(contest, contest.measured, [telling.rival]))
    if telling.tested:
        ours += f", p = {telling.decisive:.2g}"
    papers_rivals = [telling.rival] if telling.rival in contest.published else contest.rivals
    return Short(ours, plain_numbers(contest, contest.published, papers_rivals))


def most_telling(decisive: Sequence[Comparison]) -> Comparison:
    """Choose one of several comparisons: of the rival that is ahead with the lowest p, or where
    none is, of the lead with the highest.
    """
    tested = [comparison for comparison in decisive if comparison.tested]
    candidates = tested or decisive
    behind = [comparison for comparison in candidates if not comparison.ahead]
    if behind:
        return min(behind, key=lambda comparison: comparison.p)
    return max(candidates, key=lambda comparison: comparison.p)
