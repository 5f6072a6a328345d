"""From the folders of finished runs to the records of results/. Nothing is trained here."""

from collections.abc import Sequence
from pathlib import Path

from tape_exp.experiments.run_spec import RunSpec
from tape_exp.results.store import add_records
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError


def collect(specs: Sequence[RunSpec], into: Path | None = None) -> list[RunSpec]:
    """Copy the records of finished runs, and return the runs that still have none.

    Args:
        into: a folder of records; None: ``records/`` in the results of each spec.
    """
    missing = []
    for spec in specs:
        if spec.recorded:
            continue
        directory = finished_folder(spec)
        if directory is None:
            missing.append(spec)
            continue
        record = directory.record()
        directory.tell_other_sources(record)
        if spec.config.debug.name == "none":  # a shortened run has no place in a table
            results = spec.results or folders.RESULTS
            add_records(into or results / "records", [record])
    return missing


def finished_folder(spec: RunSpec) -> RunDirectory | None:
    """Find the folder of a run that is done; None of one that is not, or that cannot begin yet."""
    try:
        directory = RunDirectory(spec.config)
    except ConfigError:
        return None
    return directory if directory.done else None
