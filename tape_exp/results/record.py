"""The record of a finished run, as tables and figures read it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tape_exp.results.derived import as_shown, derived
from tape_exp.results.experiment import Experiment
from tape_exp.runs.identity import flat

GROUPS = ("model", "task", "peft")


class Record(dict[str, Any]):
    """What a run left, by the keys of its record.json, which nobody changes.

    A record of results/ has 6 significant digits, and its matrices are arrays.
    """

    def __or__(self, other: Mapping[str, Any]) -> "Record":  # type: ignore[override]
        """With other values of some keys, as a record of its own."""
        return Record({**self, **other})

    @property
    def name(self) -> str:
        """The run: ``arithmetic-smoke-tape-seed0-0123456789``."""
        return self["run"]

    @property
    def seed(self) -> int:
        """The seed of data and weights."""
        return self["seed"]

    @property
    def config(self) -> dict[str, Any]:
        """What it computed: model, task, peft, scale, precision, checkpoint, seed."""
        return self["config"]

    @property
    def overrides(self) -> list[str]:
        """``tape-exp train <overrides>`` is the run."""
        return self.get("words", []) if self.is_legacy else self["overrides"]

    @property
    def is_legacy(self) -> bool:
        """Whether it is older than its overrides: it has words that its config was turned into."""
        return "overrides" not in self

    @cached_property
    def experiment(self) -> Experiment:
        """What it computed, whatever its seed."""
        return Experiment(self.config, self.overrides)

    @property
    def task(self) -> str:
        """The task as a command names it: ``scrolls`` for ``scrolls_qasper``."""
        task = self.config["task"]
        dataset = task.get("dataset")
        return task["name"].removesuffix(f"_{dataset}") if dataset else task["name"]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config by its keys, ``task.optim.lr``; a group by its choice, ``model``; the
        precision that ``auto`` chose.
        """
        choices = {name: self.config[name]["name"] for name in GROUPS if name in self.config}
        choices |= {"task": self.task, "trainer.precision": self.get("precision")}
        return flat(self.config) | choices

    @cached_property
    def metrics(self) -> dict[str, float]:
        """What the task measured, its numbers of parameters and steps, and what is derived from
        them; measures of built-in text by the name of the corpus that it stands for.
        """
        numbers = {key: part for key, part in self.items() if isinstance(part, int | float)}
        measured = {as_shown(name): number for name, number in self["metrics"].items()}
        return numbers | measured | derived({**self, "metrics": measured})

    @property
    def data(self) -> tuple[Any, ...]:
        """The data that it read: their seed, and their fingerprint with its version."""
        return self.seed, self.get("fingerprint_version"), self.get("data_fingerprint")
