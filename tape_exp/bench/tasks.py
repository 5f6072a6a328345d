"""The tasks of the bench: the battery's problems, addition and word problems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tape_exp.data.groups import GROUPS
from tape_exp.data.problems import PROBLEMS
from tape_exp.settings.errors import ConfigError, did_you_mean

RECALL = ("mqar", "induction", "indirect_indexing", "flip_flop")
# kind -> what it asks; each is task=retrieval task.kind=<kind>. Such a task joins the bench by its
# name here once the kinds can be trained on.
RETRIEVAL: Mapping[str, str] = {}
# Six that ask different things of positions: to find a place from the other end; to go from a
# place that content names to one at a distance; to tell the last of many like ones, however far;
# to know how deep one is; to carry a state; and to align digits.
QUICK = ("reverse", "indirect_indexing", "flip_flop", "stack", "parity", "multi_addition")


@dataclass(frozen=True)
class Entry:
    """A task of the bench.

    Args:
        name: in the command, and as a column.
        words: of the command line that runs it.
        summary: what it asks.
        measure: its score is ``ood/<measure>``, in percent, over rows that are longer than those of
            training: the share of right tokens, of right states, or of addition that of right rows.
    """

    name: str
    words: tuple[str, ...]
    summary: str
    measure: str = "token_accuracy"

    @property
    def metric(self) -> str:
        """The name of the score in a record."""
        return f"ood/{self.measure}"

    def rows(self, record: Mapping[str, Any]) -> int:
        """Of how many rows the score is, for its interval where all are right or none is."""
        task = record["config"]["task"]
        if task["name"] == "arithmetic":
            cells = task["test_digits"] ** 2 - task["train_digits"] ** 2
            return max(1, int(task["samples_per_cell"]) * cells)
        if task["name"] == "word_problem":
            return int(task["words"])
        lengths = [key.rpartition("@")[2] for key in record["metrics"] if "test/token_acc" in key]
        beyond = [n for n in lengths if n.isdigit() and int(n) > task["train_length"]]
        return max(1, len(beyond)) * int(task.get("samples_per_length", 1))


def _entries() -> dict[str, Entry]:
    found = [
        Entry(name, ("task=battery", f"task.problem={name}"), problem.summary)
        for name, problem in PROBLEMS.items()
    ]
    found.append(Entry("addition", ("task=arithmetic",), "add two numbers", "exact_match"))
    found += [
        Entry(
            group, ("task=word_problem", f"task.group={group}"), "follow a group's state", "state"
        )
        for group in GROUPS
    ]
    found += [
        Entry(kind, ("task=retrieval", f"task.kind={kind}"), summary)
        for kind, summary in RETRIEVAL.items()
    ]
    return {entry.name: entry for entry in found}


ENTRIES = _entries()
SETS = {
    "all": tuple(ENTRIES),
    "quick": QUICK,
    "retrieval": (*RECALL, *RETRIEVAL),
    "algorithmic": tuple(name for name in ENTRIES if name not in (*RECALL, *RETRIEVAL)),
}


def chosen(text: str) -> list[Entry]:
    """The tasks that ``tasks=`` names: sets and single ones, separated by commas, each once.

    Raises:
        ConfigError: a name is neither.
    """
    names: list[str] = []
    for word in text.split(","):
        if word not in SETS and word not in ENTRIES:
            known = [*SETS, *ENTRIES]
            raise ConfigError(f"tasks={word}{did_you_mean(word, known)} Known: {', '.join(known)}.")
        names += SETS.get(word, (word,))
    return [ENTRIES[name] for name in dict.fromkeys(names)]
