"""The log of a command on the console, and of a run also in log.txt."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tape_exp.machine.processes import first_process
from tape_exp.settings.redact import RedactingFormatter

log = logging.getLogger("tape_exp")


@contextmanager
def logs_of_run() -> Iterator[None]:
    """Undo at its end what a run sets up."""
    handlers = log.handlers[:]
    level = log.level
    propagate = log.propagate
    try:
        yield
    finally:
        for own in set(log.handlers) - set(handlers):
            own.close()
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate = propagate


def set_up_logging(path: Path | None = None) -> None:
    """Log to the console and to log.txt, which also has the tracebacks; further processes log only
    warnings.
    """
    first = first_process()
    logging.raiseExceptions = False  # a closed terminal or a full disk loses lines, not the run
    console = logging.StreamHandler(sys.stdout)
    console.setLevel(logging.INFO if first else logging.WARNING)
    console.setFormatter(RedactingFormatter("%(message)s"))
    handlers: list[logging.Handler] = [console]
    if path is not None and first:
        file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(RedactingFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handlers.append(file)
    log.handlers[:] = handlers
    log.setLevel(logging.DEBUG)
    log.propagate = False
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
