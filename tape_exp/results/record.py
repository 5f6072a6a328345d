"""The record of a finished run, as tables and figures read it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tape_exp.results.derived import SIZES, derived
from tape_exp.results.experiment import Experiment
from tape_exp.results.metric_names import as_shown
from tape_exp.runs.identity import flat

GROUPS = ("model", "task", "peft")  # of configs, whose choice has a name


class Record(dict[str, Any]):
    """What a run left, by the keys of its record.json, which nobody changes.

    A record of results/ has 6 significant digits, and its matrices are arrays.

    >>> record = Record(config={"model": {"name": "rope", "theta": 500}, "task": {"name": "c4"}})
    >>> record.settings["model"], record.settings["model.theta"], record.settings["task"]
    ('rope', 500, 'c4')
    """

    def __or__(self, other: Mapping[str, Any]) -> "Record":  # type: ignore[override]
        """Return a copy with other values of some keys."""
        return Record({**self, **other})

    @property
    def name(self) -> str:
        """Name the run: ``arithmetic-smoke-tape-seed0-0123456789``."""
        return self["run"]

    @property
    def seed(self) -> int:
        """Return the seed of data and weights."""
        return self["seed"]

    @property
    def config(self) -> dict[str, Any]:
        """Return what it computed: model, task, peft, scale, precision, checkpoint, seed."""
        return self["config"]

    @property
    def overrides(self) -> list[str]:
        """Return what was typed: ``tape-exp train <overrides>`` is the run. An older record has
        words that its config was turned into.
        """
        return self["overrides"] if "overrides" in self else self.get("words", [])

    @cached_property
    def experiment(self) -> Experiment:
        """Return what it computed, whatever its seed."""
        return Experiment(self.config, self.overrides, self.get("precision", ""))

    @property
    def task(self) -> str:
        """Name the task as a command does: ``scrolls`` for ``scrolls_qasper``."""
        task = self.config["task"]
        dataset = task.get("dataset")
        return task["name"].removesuffix(f"_{dataset}") if dataset else task["name"]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the config by its keys, ``task.optim.lr``; a group by its choice, ``model``; the
        precision that ``auto`` chose.
        """
        settings = flat(self.config)
        for name in GROUPS:
            if name in self.config:
                settings[name] = self.config[name]["name"]
        settings["task"] = self.task
        settings["trainer.precision"] = self.get("precision")
        return settings

    @cached_property
    def measured(self) -> dict[str, float]:
        """Return what the task measured, as tables name it: on built-in text by the corpus that
        this stands for.

        >>> Record(metrics={"builtin_github/perplexity@256": 7.0}).measured
        {'github/perplexity@256': 7.0}
        """
        return {as_shown(name): number for name, number in self["metrics"].items()}

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Return what the task measured, sizes such as the number of parameters, and what is
        derived from them: beside the task's own, those that ``DERIVED`` announces.
        """
        sizes = {key: self[key] for key in SIZES if key in self}
        return sizes | self.measured | derived({**self, "metrics": self.measured})

    @property
    def data(self) -> tuple[Any, ...]:
        """Return what the data that it read are told by: seed, fingerprint and its version."""
        return self.seed, self.get("fingerprint_version"), self.get("data_fingerprint")
