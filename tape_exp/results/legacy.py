"""Which runs are of one experiment, where a record is older than its overrides.

Such a record has ``words`` that its config was turned into, one for each key that differed from its
default then; a key that it lacks is newer than it.
"""

from collections.abc import Mapping
from typing import Any

from tape_exp.results.query import fits, where
from tape_exp.results.record import Record
from tape_exp.runs.identity import NOT_COMPUTED, flat, section_of

WHOSE = ("seed", *NOT_COMPUTED)  # keys in which runs of one experiment may differ


def is_of(record: Record, asked: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    """Say whether a record has the values that overrides ask for (:func:`where`) and has set
    nothing else, and has those of ``keys`` as far as it has these.
    """
    if not fits(record.settings, asked):
        return False
    for key, value in keys.items():
        if record.settings.get(key, value) != value:
            return False
    return not has_further_settings(record, {**asked, **keys})


def has_further_settings(record: Record, asked: Mapping[str, Any]) -> bool:
    """Say whether the words of a record set a key besides those asked for and those that say where
    and how fast it ran.

    >>> record = Record(words=["model=rope", "model.theta=500", "trainer.devices=2", "seed=1"])
    >>> has_further_settings(record, {"model": "rope"})
    True
    >>> has_further_settings(record, {"model": "rope", "model.theta": 500})
    False
    """
    for key in where(record.overrides):
        if key in ("scale", "seed") or key in asked:
            continue
        if section_of(key) not in NOT_COMPUTED or key == "trainer.precision":
            return True
    return False


def is_same(record: Record, other: Record) -> bool:
    """Say whether two records agree in every key that both have, and the newer one of an old and a
    new record has asked for no key that the old one lacks.
    """
    if asks_for_newer_keys(record, other) or asks_for_newer_keys(other, record):
        return False
    config = flat(record.config)
    other_config = flat(other.config)
    for key in config.keys() & other_config.keys():
        if section_of(key) not in WHOSE and config[key] != other_config[key]:
            return False
    return True


def asks_for_newer_keys(record: Record, old: Record) -> bool:
    """Say whether a record with overrides asked for a key that one without them lacks."""
    if record.is_legacy or not old.is_legacy:
        return False
    for key in where(record.overrides):
        if key not in old.settings and section_of(key) not in WHOSE:
            return True
    return False
