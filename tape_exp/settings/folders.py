"""Where the project's own files are: the configs, and the committed results and records."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
RECORDS = ROOT / "results" / "records"


def names_in(group: str) -> list[str]:
    """The names of the YAMLs of a group of conf/, in order."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))
