"""A run that is done already, which is answered without torch."""

import logging
from typing import Any

from tape_exp.runs.directory import RunDirectory
from tape_exp.training.logs import set_up_logging

log = logging.getLogger("tape_exp")


def finished(directory: RunDirectory) -> dict[str, Any]:
    """Say that a run is done, and return its record; empty of any other."""
    if not directory.done or directory.begins_anew():
        return {}
    set_up_logging()
    log.info("%s is DONE: %s", directory.name, directory.path)
    directory.refuse_other_weights(record := directory.record())
    directory.tell_other_sources(record)
    return record
