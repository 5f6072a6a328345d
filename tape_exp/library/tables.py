"""Records as a table: ``te.records()``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_exp.results.record import Record
from tape_exp.results.store import known_records, merged, read_records, records_of_runs
from tape_exp.settings.errors import ConfigError

if TYPE_CHECKING:
    import pandas


def records(folder: str | Path | None = None) -> "pandas.DataFrame":
    """Read records into a table.

    Example::

        table = te.records()
        table[table.task == "arithmetic"].groupby("model")["test/exact_match"].mean()

    Args:
        folder: of records, or of runs; None: ``results/records`` of the clone (outside one, of the
            working directory) and every finished run in ``runs/``.

    Returns:
        A row for each run, by time: what was run, and its metrics, a column each, named as in
        tables.

    Raises:
        ConfigError: there is no record.
    """
    if folder is None:
        found = known_records()
    else:
        place = Path(folder).expanduser()
        found = merged(records_of_runs(place), read_records(place))
    if not found:
        where = folder or "results/records and runs/"
        raise ConfigError(f"there is no record in {where}: a finished run leaves one.")
    return frame_of([facts_of(record) | record.measured for record in found])


def frame_of(rows: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """Make a data frame, for which pandas is imported here alone."""
    import pandas

    return pandas.DataFrame(rows)


def facts_of(record: Record) -> dict[str, Any]:
    """Return what a row says of a run besides its metrics.

    >>> config = {"model": {"name": "rope"}, "task": {"name": "c4"}, "scale": "smoke"}
    >>> facts = facts_of(Record(run="c4-0", config=config, seed=0, started="2026-01-01"))
    >>> facts["model"], facts["task"], facts["seed"], facts["commit"]
    ('rope', 'c4', 0, None)
    """
    config = record.config
    return {
        "run": record.get("run"),
        "model": config["model"]["name"],
        "task": config["task"]["name"],
        "scale": config["scale"],
        "peft": config.get("peft", {}).get("name"),
        "seed": record.seed,
        "steps": record.get("steps"),
        "parameters": record.get("parameters"),
        "commit": record.get("git", {}).get("commit"),
        "started": record["started"],
    }
