"""``python -m tape_exp.paper push``: every table and figure, and the claims, as one run on W&B."""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tape_exp.paper.tables import Table, plain
from tape_exp.runs import sinks
from tape_exp.settings.arguments import require_writable
from tape_exp.settings.commit import git_state
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import told
from tape_exp.settings.redaction import redact

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
        ConfigError: there is nothing to send, a name holds a secret, or W&B refuses the run.
    """
    figures = sorted((results / "figures").glob("*.png"))
    if not figures:
        raise ConfigError(f"{results} holds no figures; `{told('paper render')}` draws them.")
    for key, value in (("project", project), ("entity", entity or "")):
        if redact(value) != value:
            raise ConfigError(
                f"--{key} holds a secret; W&B reads its key from WANDB_API_KEY or ~/.netrc: name a "
                f"{key}."
            )
    os.environ.setdefault("WANDB_SILENT", "true")  # read when wandb is imported
    sinks.keep_tables_in(folder.resolve() / "wandb")
    import wandb

    if mode == "auto":
        mode = "online" if sinks.has_key() else "offline"
    if mode == "online" and not sinks.reachable(TIMEOUT):
        log.warning("W&B cannot be reached: going on offline.")
        mode = "offline"
    name = f"paper-{of_records(results / 'records')}"
    options: dict[str, Any] = {
        "project": project,
        "entity": entity,
        "mode": mode,
        "id": name,
        "name": name,
        "dir": str(folder),
    }
    settings = wandb.Settings(
        init_timeout=TIMEOUT, silent=True, disable_git=True, disable_code=True
    )
    require_writable("--folder", folder)
    try:
        with sinks.secrets_hidden():
            run = wandb.init(
                job_type="paper",
                resume="allow",
                config={"git": git_state()},
                settings=settings,
                **options,
            )
    except wandb.Error as error:
        reason = redact((str(error) or type(error).__name__).splitlines()[0])
        raise ConfigError(
            f"W&B does not open the run ({reason}); --mode offline keeps it for `wandb sync`."
        ) from error
    logged: dict[str, Any] = {f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}
    for stem, table in tables.items():
        columns, rows = plain(table)
        logged[f"tables/{stem}"] = wandb.Table(columns=[*columns], data=rows)
    run.log(logged)
    folder = Path(run.settings.sync_dir)
    run.finish()
    log.info("%d tables and %d figures: run %s, %s.", len(tables), len(figures), name, mode)
    if mode == "offline":
        log.info("Its files are in %s; to upload it: wandb sync %s", folder, folder)
    return name


def of_records(folder: Path) -> str:
    """Ten hexadecimal digits of the records' names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:10]
