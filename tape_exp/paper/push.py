"""``python -m tape_exp.paper push``: every table and figure, and the claims, as one run on W&B."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tape_exp.paper.tables import Table, plain
from tape_exp.runs import loggers
from tape_exp.runs.record import git_state
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
TIMEOUT = 20  # seconds to wait for the server


def push(
    tables: Mapping[str, Table],
    results: Path,
    folder: Path,
    project: str,
    entity: str | None = None,
    mode: str = "auto",
) -> str:
    """Send tables, and the figures in ``results``; return the run's id, set by the records.

    Args:
        tables: by their names.
        folder: where W&B keeps its files; offline, `wandb sync` sends them from there.
        mode: online, offline, or auto: online where a key is present.

    Raises:
        ConfigError: there is nothing to send.
    """
    figures = sorted((results / "figures").glob("*.svg"))
    if not figures:
        raise ConfigError(f"{results} holds no figures; `tape-exp paper render` draws them.")
    name = f"paper-{of_records(results / 'records')}"
    options: dict[str, Any] = {"project": project, "entity": entity, "name": name}
    options |= {"job_type": "paper", "config": {"git": git_state()}}
    folder.mkdir(parents=True, exist_ok=True)
    run = loggers.start_wandb(name, folder, TIMEOUT, mode, **options)
    import wandb

    logged: dict[str, Any] = {
        f"figures/{path.stem}": wandb.Html(path.read_text()) for path in figures
    }
    for stem, table in tables.items():
        columns, rows = plain(table)
        logged[f"tables/{stem}"] = wandb.Table(columns=[*columns], data=rows)
    run.log(logged)
    run.finish()
    log.info("%d tables and %d figures are in the run %s.", len(tables), len(figures), name)
    return name


def of_records(folder: Path) -> str:
    """Ten hexadecimal digits of the records' names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:10]
