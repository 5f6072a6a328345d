"""The tasks of the bench: the battery's problems, addition, word problems and retrieval."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

from tape_exp.bench.guess import guess
from tape_exp.data.groups import GROUPS
from tape_exp.results.statistics import Value, Z
from tape_exp.runs.evaluation import wilson
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import NO_OPTIM
from tape_exp.tasks.battery import PROBLEMS

# Six that a tiny model learns within its steps, and that ask different things of positions: to find
# a place from the other end; to count, however many there are; to tell the last of many like ones;
# to know how deep one is; to go on from a mark; and to find a sentence in a text.
QUICK = ("reverse", "sort", "flip_flop", "stack", "induction", "multi_key")
RECALL = ("mqar", "induction", "indirect_indexing", "flip_flop", "multi_key")


@cache
def guess_at(problem: str, length: int) -> float:
    """What the best guess from nearby reaches on rows of a length, once for all records."""
    arch = Arch(layers=1, width=4, heads=1, ffn=4)
    return guess(PROBLEMS[problem](arch, NO_OPTIM, 0, length, [length], 1), length)


@dataclass(frozen=True)
class Entry:
    """A task of the bench. Its score is ``ood/<measure>``, in percent, over rows that are longer
    than those of training: the share of right tokens, of right states, of what retrieval wants, or
    of addition that of right rows. The metric at each length is ``<at>/<measure>@<length>``.
    """

    name: str  # in the command, and as a column
    words: tuple[str, ...]  # of the command line that runs it
    summary: str  # what it asks
    measure: str = "token_accuracy"
    at: str = "test"

    @property
    def metric(self) -> str:
        """The name of the score in a record."""
        return f"ood/{self.measure}"

    @property
    def trained(self) -> str:
        """The same at trained lengths."""
        return f"id/{self.measure}"

    def rows(self, record: Mapping[str, Any]) -> int:
        """Of how many rows the score is, for its interval where all are right or none is."""
        task = record["config"]["task"]
        if task["name"] == "arithmetic":
            cells = task["test_digits"] ** 2 - task["train_digits"] ** 2
            return int(task["samples_per_cell"]) * cells
        if task["name"] == "word_problem":
            return int(task["words"])
        samples = task.get("trials") or task.get("samples_per_length", 1)
        return max(1, len(self.beyond(record))) * int(samples)

    def score(self, record: Mapping[str, Any]) -> Value | None:
        """A run's score with its interval over samples; None where the record has none.

        Where all rows are right, or no token is, the standard error says nothing, and the interval
        is Wilson's of as many rows.
        """
        number = record["metrics"].get(self.metric)
        error = record["metrics"].get(f"{self.metric}_stderr")
        if number is None or error is None:
            return None if number is None else Value(number)
        if number in (0, 100):
            rows = self.rows(record)
            return Value(number, *wilson(rows if number else 0, rows))
        return Value(number, max(0.0, number - Z * error), min(100.0, number + Z * error))

    def guessed(self, record: Mapping[str, Any]) -> float:
        """The score that guessing has on the rows of a record; 0 where a whole row or a number
        must be right.
        """
        if self.measure == "state":
            return float(100 * GROUPS[self.name]().guess(max(self.beyond(record))).mean())
        lengths = self.beyond(record) if self.measure == "token_accuracy" else []
        return mean(guess_at(self.name, length) for length in lengths) if lengths else 0.0

    def beyond(self, record: Mapping[str, Any]) -> list[int]:
        """The lengths above the trained one at which a record has a score."""
        begin = f"{self.at}/{self.measure}@"
        task = record["config"]["task"]
        ends = [key.removeprefix(begin) for key in record["metrics"] if key.startswith(begin)]
        trained = task.get("train_length") or task.get("train_letters")
        return [int(end) for end in ends if end.isdigit() and int(end) > trained]


STATES = {"parity": "a light that is switched", "s3": "S3, a group that is solvable"}
STATES |= {name: f"{name.upper()}, a group that is not solvable" for name in ("a5", "s5")}
TEXT = ("task=retrieval_training", "task.arch.layers=3")
ENTRIES = {
    entry.name: entry
    for entry in (
        *(Entry(n, ("task=battery", f"task.problem={n}"), p.summary) for n, p in PROBLEMS.items()),
        Entry("addition", ("task=arithmetic",), "add two numbers", "exact_match"),
        *(
            Entry(n, ("task=word_problem", f"task.group={n}"), f"follow {STATES[n]}", "state")
            for n in GROUPS
        ),
        Entry("multi_key", TEXT, "the number that a text hides", "accuracy", "retrieval"),
    )
}
SETS = {
    "all": tuple(ENTRIES),
    "quick": QUICK,
    "retrieval": RECALL,
    "algorithmic": tuple(name for name in ENTRIES if name not in RECALL),
}


def chosen(text: str) -> list[Entry]:
    """The tasks that ``tasks=`` names: sets and single ones, separated by commas, each once.

    Those of one set are in its order, others in that of the list, however they are given: the same
    tasks are the same bench.
    """
    names: list[str] = []
    for word in text.split(","):
        if word not in SETS and word not in ENTRIES:
            known = [*SETS, *ENTRIES]
            raise ConfigError(f"tasks={word}{did_you_mean(word, known)} Known: {', '.join(known)}.")
        names += SETS.get(word, (word,))
    return [ENTRIES[name] for name in (names if text in SETS else ENTRIES) if name in names]
