"""Which runs are of one experiment: those whose configs compute the same, whatever their seeds.

Records live longer than versions of the code. A record may lack a key that came later, or have one
that went: it then counts as a run of the value with which its version computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tape_exp.results.compositions import composed
from tape_exp.results.query import where
from tape_exp.runs.identity import flat
from tape_exp.runs.llama_base import LLAMA_KEYS
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import ConfigError

UNKNOWN = "<unknown>"
WITHOUT_KEY = {  # key that some version lacks -> the value with which that version computes
    # keys that came later; those of a constructor whose default is this value need no line
    "checkpoint": None,
    "model.scaling.original": None,
    "task.fine_tune": True,
    "task.hold_out": False,
    "task.questions": 1,
    "task.skip_to": None,
    "task.tokenizer.bos": "<s>",
    "task.tokenizer.digits": "runs",
    "task.tokenizer.eos": "</s>",
    "task.tokenizer.path": None,
    "task.tokenizer.sample_mb": 32,
    "task.train_tokens": None,
    "task.windows.score": "all",
    "task.windows.stride": None,
    "task.windows.tokens_per_batch": 8192,
    # keys that went, and what the task computes with since
    "task.kind": "multi_key",
    "task.new_tokens": None,
    "task.threshold": 85.6,
}


@dataclass(frozen=True)
class Experiment:
    """What runs compute, whatever their seed and wherever they ran."""

    config: Mapping[str, Any]  # as a record has it
    overrides: Sequence[str]  # that asked for it
    ran_in: str = ""  # the precision of a run, chosen or asked for

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return every key but seed and precision, with six significant digits, as records have.

        What follows from the weights that a run begins from, such as a Llama's angles, counts where
        it was asked for: these weights may be elsewhere now.
        """
        config = dict(self.config)
        config.pop("seed", None)
        config.pop("precision", None)
        settings = flat(rounded(config))
        asked = where(self.overrides)
        if settings.get("checkpoint") or settings.get("task.init_from"):
            of_weights = tuple(f"{section}." for section in LLAMA_KEYS)
            for key in list(settings):
                if f"{key}.".startswith(of_weights) and key not in asked:
                    del settings[key]
        return settings

    @cached_property
    def precision(self) -> str:
        """Return the precision that was asked for by its own key, which counts; one that a trainer
        or ``auto`` chooses says how a run was made. Empty where none was asked for.
        """
        asked = where(self.overrides).get("trainer.precision", "auto")
        return "" if asked == "auto" else asked

    def is_same(self, other: "Experiment") -> bool:
        """Say whether the two compute the same; a key that one lacks has the value with which its
        version computes.

        >>> old = Experiment({"task": {"name": "arithmetic"}}, ["task=arithmetic"])
        >>> new = Experiment({"task": {"name": "arithmetic", "hold_out": False}}, [])
        >>> other = Experiment({"task": {"name": "arithmetic", "hold_out": True}}, [])
        >>> new.is_same(old), other.is_same(old)
        (True, False)
        """
        if not (self.has_precision_of(other) and other.has_precision_of(self)):
            return False
        for key in self.settings.keys() & other.settings.keys():
            if self.settings[key] != other.settings[key]:
                return False  # before a default is looked up, which may import torch
        for key in self.settings.keys() ^ other.settings.keys():
            if self.value_of(key) != other.value_of(key):
                return False
        return True

    def has_precision_of(self, other: "Experiment") -> bool:
        """Say whether it has the precision that another asks for, asked for it or ran in it."""
        return other.precision in ("", self.precision or self.ran_in)

    def value_of(self, key: str) -> Any:
        """Return its value at a key, or the one that a version without the key computes with."""
        return self.settings[key] if key in self.settings else self.value_without(key)

    def value_without(self, key: str) -> Any:
        """Return what a version without a key computes with: the value that is noted here, or the
        default of the constructor that has got the key; where neither is known, a text that no
        setting has.
        """
        if key in WITHOUT_KEY:
            return WITHOUT_KEY[key]
        section, _, name = key.partition(".")
        target = self.settings.get(f"{section}._target_")
        if target is None:
            return UNKNOWN
        try:
            field = arguments_model(locate(target, section)).model_fields.get(name)  # imports torch
        except ConfigError:
            return UNKNOWN
        return UNKNOWN if field is None or field.is_required() else field.default


def experiment_of(overrides: Sequence[str]) -> Experiment | None:
    """Compose overrides into the experiment of their runs; None where they do not compose."""
    try:
        return _composed(tuple(overrides))
    except ConfigError:
        return None


@cache  # of a table many cells are of one experiment; an error is none, and is tried again
def _composed(overrides: tuple[str, ...]) -> Experiment:
    return Experiment(composed(overrides), overrides)


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
