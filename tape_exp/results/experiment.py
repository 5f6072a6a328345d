"""Which runs are of one experiment: those that differ in nothing but their seeds.

This is decided here, by what the configs compute; :mod:`tape_exp.results.legacy` decides it for
records that are older than their overrides.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tape_exp.machine.files import short_hash
from tape_exp.results.query import where
from tape_exp.runs.identity import flat, recorded_config
from tape_exp.runs.llama_base import LLAMA_KEYS
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError


@dataclass(frozen=True)
class Experiment:
    """What runs compute, whatever their seed and wherever they ran."""

    config: Mapping[str, Any]  # as a record has it
    overrides: Sequence[str]  # that asked for it

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return every key but the seed, with six significant digits, which records keep.

        A precision counts where it was asked for by its own key: one that a trainer or ``auto``
        chooses says how a run was made. What follows from the weights that a run begins from, such
        as a Llama's angles, counts where it was asked for too: these weights may be elsewhere now.
        """
        config = dict(self.config)
        config.pop("seed", None)
        config.pop("precision", None)
        settings = flat(rounded(config))
        asked = where(self.overrides)
        if asked.get("trainer.precision", "auto") != "auto":
            settings["trainer.precision"] = asked["trainer.precision"]
        if settings.get("checkpoint") or settings.get("task.init_from"):
            of_weights = tuple(f"{section}." for section in LLAMA_KEYS)
            for key in list(settings):
                if f"{key}.".startswith(of_weights) and key not in asked:
                    del settings[key]
        return settings

    @cached_property
    def hash(self) -> str:
        """Hash the settings to ten digits, which experiments with the same settings share."""
        return short_hash([json.dumps(self.settings, sort_keys=True)])[:10]

    def is_same(self, other: "Experiment") -> bool:
        """Say whether the two have one hash, or one is older than keys that the other has.

        >>> old = Experiment({"model": {"name": "rope"}}, ["model=rope"])
        >>> new = Experiment({"model": {"name": "rope", "theta": 1e4}}, ["model=rope"])
        >>> asked = Experiment(new.config, ["model=rope", "model.theta=1e4"])
        >>> new.is_same(old), asked.is_same(old)
        (True, False)
        """
        if self.hash == other.hash:
            return True
        return self.is_older_than(other) or other.is_older_than(self)

    def is_older_than(self, other: "Experiment") -> bool:
        """Say whether the other has the same settings and further keys, none of which its overrides
        ask for: the code had not these keys yet when this one ran.
        """
        if not self.settings.items() <= other.settings.items():
            return False
        further = other.settings.keys() - self.settings.keys()
        return not further & where(other.overrides).keys()


def experiment_of(overrides: Sequence[str]) -> Experiment | None:
    """Compose overrides into the experiment of their runs; None where they do not compose."""
    try:
        config = compose_config(overrides)
    except ConfigError:
        return None
    return Experiment(recorded_config(config), overrides)


def rounded(part: Any, digits: int = 6) -> Any:
    """Round the numbers in a part of a record to so many significant digits, whole ones without a
    point; metrics keep 9, so that differences of them have the digits that tables show.

    >>> rounded({"lr": 0.00123456789, "width": 64.0, "metrics": {"loss": 1.23456789123}})
    {'lr': 0.00123457, 'width': 64, 'metrics': {'loss': 1.23456789}}
    """
    if isinstance(part, Mapping):
        return {
            key: rounded(value, 9 if key == "metrics" else digits) for key, value in part.items()
        }
    if isinstance(part, list | tuple):
        return [rounded(inner, digits) for inner in part]
    if not isinstance(part, float):
        return part
    number = float(f"{part:.{digits}g}")
    return int(number) if number.is_integer() else number
