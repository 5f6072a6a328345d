"""Where the project's own files are: the configs, and the committed results and records."""

from pathlib import Path

from tape_exp.settings.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
RECORDS = ROOT / "results" / "records"


def path_of(key: str, text: str | Path) -> Path:
    """The path that a key is set to, where ``~`` and ``~name`` are home folders.

    Raises:
        ConfigError: nobody of that name has one.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        home = Path(text).parts[0]
        raise ConfigError(
            f"{key}={text}: this machine knows no home folder {home}; write the path out."
        ) from error


def names_in(group: str) -> list[str]:
    """The names of the YAMLs of a group of conf/, in order."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))
