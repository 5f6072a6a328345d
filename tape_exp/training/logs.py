"""What a run logs: to the console and to log.txt."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from tape_exp.machine.processes import first_process
from tape_exp.settings.redaction import RedactingFormatter

log = logging.getLogger("tape_exp")


class Console(logging.StreamHandler):
    """Writes to what ``sys.stdout`` is at the moment: a bar puts itself there as long as it is
    shown, so that lines appear above it. Lines that cannot be written are in log.txt.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """Where lines go."""
        return sys.stdout

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do without the line."""


def progress_mode(name: str) -> str:
    """``rich`` on a terminal and ``lines`` elsewhere, unless the config says which."""
    if name != "auto":
        return name
    return "rich" if sys.stdout.isatty() else "lines"


def set_up_logging(path: Path | None, progress: str) -> None:
    """Log to the console and to log.txt; progress lines reach the console only without a bar.

    Further processes log only warnings.
    """
    console = Console()
    handlers: list[logging.Handler] = [console]
    console.setFormatter(RedactingFormatter("%(message)s"))
    console.addFilter(lambda r: progress == "lines" or r.name != "tape_exp.progress")
    if path is not None and first_process():
        file = logging.FileHandler(path)
        file.handleError = lambda record: None  # type: ignore[method-assign] # a full disk: the console says it
        file.setFormatter(RedactingFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handlers.append(file)
    for old in list(log.handlers):
        log.removeHandler(old)
        old.close()
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.INFO if first_process() else logging.WARNING)
    log.propagate = False
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
