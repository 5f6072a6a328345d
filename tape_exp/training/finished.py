"""Answer for a run that is done already, without importing torch."""

import logging
from typing import Any

from tape_exp.runs.directory import RunDirectory
from tape_exp.training.logs import set_up_logging

log = logging.getLogger("tape_exp")


def finished(directory: RunDirectory) -> dict[str, Any]:
    """Log that a run is done, and return its record; of any other run an empty one."""
    if not directory.done or directory.begins_anew():
        return {}
    set_up_logging()
    log.info("%s is DONE: %s", directory.name, directory.path)
    record = directory.record()
    directory.refuse_other_weights(record)
    directory.tell_other_sources(record)
    return record
