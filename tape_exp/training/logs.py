"""What a run logs: to the console and to log.txt."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from tape_exp.machine.processes import first_process
from tape_exp.settings.redact import RedactingFormatter

log = logging.getLogger("tape_exp")


class Console(logging.StreamHandler):
    """Writes to what ``sys.stdout`` is at the moment: a bar replaces it to stay below the lines."""

    stream: Any = property(lambda self: sys.stdout, lambda self, stream: None)


def progress_mode(name: str) -> str:
    """``rich`` on a terminal and ``lines`` elsewhere, unless the config says which."""
    if name != "auto":
        return name
    return "rich" if sys.stdout.isatty() else "lines"


def set_up_logging(path: Path | None, progress: str) -> None:
    """Log to the console and to log.txt; progress lines reach the console only without a bar.

    Further processes log only warnings.
    """
    logging.raiseExceptions = False  # a closed terminal or a full disk loses lines, not the run
    console = Console()
    console.setFormatter(RedactingFormatter("%(message)s"))
    lines = progress_mode(progress) == "lines"
    console.addFilter(lambda r: lines or r.name != "tape_exp.progress")
    handlers: list[logging.Handler] = [console]
    if path is not None and first_process():
        file = logging.FileHandler(path)
        file.setFormatter(RedactingFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handlers.append(file)
    for old in log.handlers:
        old.close()
    log.handlers[:] = handlers
    log.setLevel(logging.INFO if first_process() else logging.WARNING)
    log.propagate = False
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
