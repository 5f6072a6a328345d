"""tab_flops: what TAPE adds to RoPE, as counted and as the paper counts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tape_exp.artifacts.artifact import Claim
from tape_exp.paper.outcomes import NO, UNTESTED, YES
from tape_exp.paper.verdicts import Verdict
from tape_exp.results.statistics import Value

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


COUNTS = {  # what a verdict calls a count -> the columns of it, the paper's and ours
    "FLOPs": "FLOPs {who} (G)",
    "MACs": "MACs {who} (G)",
    "parameters": "params {who} (M)",
}


def flops_verdict(view: "View", claim: Claim) -> Verdict:
    """Say what TAPE adds to RoPE; counts have no spread: the claim holds if ours agree to 0.1 %."""
    ours = added_by_tape(view, "ours")
    papers = added_by_tape(view, "paper")
    errors = [abs(ours[count] - papers[count]) for count in ours if count in papers]
    holds = UNTESTED
    if errors:
        holds = YES if max(errors) < 0.1 else NO
    return Verdict(
        paper=in_words(papers),
        ours=in_words(ours),
        holds=holds,
        seeds="a count" if errors else "",
        short=in_words(ours),
        short_paper=in_words(papers),
    )


def in_words(added: Mapping[str, float]) -> str:
    """Write percentages by count: ``+1.2 % FLOPs, +0.5 % parameters``."""
    return ", ".join(f"{percent:+.1f} % {count}" for count, percent in added.items())


def added_by_tape(view: "View", who: str) -> dict[str, float]:
    """Return what TAPE has more than RoPE of each count, in percent: the paper's, or ours."""
    rows = {row.labels["model"]: row for row in view.rows}
    added = {}
    for count, key in COUNTS.items():
        for column in view.columns_named(key):
            tape = view.cell(rows["tape"], column)
            rope = view.cell(rows["rope"], column)
            if column.who == who and isinstance(tape, Value) and isinstance(rope, Value):
                added[count] = 100 * (tape.number / rope.number - 1)
    return added
