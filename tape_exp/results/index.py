"""Records, found by the overrides that made them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from tape_exp.results.experiment import experiment_of, rounded
from tape_exp.results.query import fits, where
from tape_exp.results.record import GROUPS, Record
from tape_exp.settings.compose import rewrite_for_hydra
from tape_exp.settings.errors import ConfigError, warn
from tape_exp.settings.layers import UNNAMED, complete_entry

NAMES = (*GROUPS, *(f"{group}.name" for group in GROUPS), "scale")  # keys


class RecordIndex:
    """Records by time, and those of each experiment that was asked for."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_task: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._by_task[record.settings["task"]].append(record)
        self._by_overrides: dict[tuple[str, ...], list[Record]] = {}

    def of_experiment(self, overrides: Sequence[str]) -> list[Record]:
        """Find the newest record of each seed of the experiment that overrides name, the scale
        among them; none where they do not compose.
        """
        asked = tuple(overrides)
        if asked not in self._by_overrides:
            self._by_overrides[asked] = self._search(asked)
        return self._by_overrides[asked]

    def of_seed(self, overrides: Sequence[str], seed: int) -> Record | None:
        """Find the newest record of an experiment and a seed; None without one."""
        for run in self.of_experiment(overrides):
            if run.seed == seed:
                return run
        return None

    def _search(self, overrides: tuple[str, ...]) -> list[Record]:
        chosen = choices_of(overrides)
        candidates = [run for run in self.of_task(overrides) if fits(run.settings, chosen)]
        experiment = experiment_of(overrides) if candidates else None
        if experiment is None:
            return []
        newest: dict[int, Record] = {}
        for run in candidates:  # by time
            if experiment.is_same(run.experiment):
                warn_of_other_data(newest.get(run.seed), run)
                newest[run.seed] = run
        return [newest[seed] for seed in sorted(newest)]

    def of_task(self, overrides: Sequence[str]) -> list[Record]:
        """List the records of the task that overrides name; without one all records."""
        asked = asked_of(overrides)
        if "task" in asked:
            return self._by_task.get(asked["task"], [])
        return [*chain.from_iterable(self._by_task.values())]

    def fitting(self, overrides: Sequence[str]) -> list[Record]:
        """List the records whose config has the values of overrides: of ``["task=arithmetic"]``
        those of every model.
        """
        asked = asked_of(overrides)
        return [run for run in self.of_task(overrides) if fits(run.settings, asked)]


def asked_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what overrides ask of the settings of a record, whose groups have their names: a name
    that the overrides set replaces the word of its group, and a pattern of layers, which is named
    after its entries, is told by these.

    >>> asked_of(["model=rope", "model.name=mine", "task=arithmetic"])
    {'model.name': 'mine', 'task': 'arithmetic'}
    """
    asked = where(rewrite_for_hydra(overrides))
    for group in GROUPS:
        if f"{group}.name" in asked:
            asked.pop(group, None)
    if asked.get("model") == UNNAMED:
        del asked["model"]
    layers = asked.get("model.layers")
    if isinstance(layers, list):
        asked["model.layers"] = completed(layers)
    return asked


def completed(layers: list[Any]) -> list[Any]:
    """Return the entries of a pattern of layers with all their keys, as records have them; as they
    were written where one is wrong, which no record has.
    """
    try:
        return rounded([complete_entry(entry, "model.layers") for entry in layers])
    except ConfigError:
        return layers


def choices_of(overrides: Sequence[str]) -> dict[str, str]:
    """Pick the names that overrides ask for: who has others need not be compared key by key.

    >>> choices_of(["model=rope", "scale=smoke", "task.optim.lr=0.1"])
    {'model': 'rope', 'scale': 'smoke'}
    """
    asked = asked_of(overrides)
    names = {}
    for key in NAMES:
        if isinstance(asked.get(key), str):
            names[key] = asked[key]
    return names


def warn_of_other_data(older: Record | None, newer: Record) -> None:
    """Say so where two runs of an experiment and a seed read different data: records call a folder
    by its last name, so that two of one name look the same.
    """
    if older is None or older.get("fingerprint_version") is None:
        return
    _, version, data = newer.data
    if older.data[1] == version and older.data[2] != data:
        warn(
            f"{newer.name} read other data than {older.name}, which has the same settings; the "
            "newer one is shown. Give folders of different texts different names."
        )
