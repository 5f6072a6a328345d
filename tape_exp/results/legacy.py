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
    """Whether a record has the values that overrides ask for (:func:`where`) and has set nothing
    else, and has those of ``keys`` as far as it has these.
    """
    return (
        fits(record.settings, asked)
        and all(record.settings.get(key, value) == value for key, value in keys.items())
        and not has_further_settings(record, {**asked, **keys})
    )


def has_further_settings(record: Record, asked: Mapping[str, Any]) -> bool:
    """Whether the words of a record set a key besides those asked for and those that say where
    and how fast it ran.
    """
    known = {"scale", "seed", *asked}
    return any(
        key not in known and (section_of(key) not in NOT_COMPUTED or key == "trainer.precision")
        for key in where(record.overrides)
    )


def is_same(record: Record, other: Record) -> bool:
    """Whether two records agree in every key that both have, and the newer one of an old and a new
    record has asked for no key that the old one lacks.
    """
    for old, new in ((record, other), (other, record)):
        asked = () if new.is_legacy or not old.is_legacy else where(new.overrides)
        if any(key not in old.settings and section_of(key) not in WHOSE for key in asked):
            return False
    one = flat(record.config)
    two = flat(other.config)
    keys = {key for key in one.keys() & two.keys() if section_of(key) not in WHOSE}
    return all(one[key] == two[key] for key in keys)
