"""Where the project's own files are: the configs, and the results and records.

In a clone they are at its top. A wheel carries ``conf/`` and the paper's numbers inside the
package; results, records and runs are then those of the working directory.
"""

from pathlib import Path

from tape_exp.settings.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # from a wheel
ROOT = Path.cwd() if INSTALLED else PACKAGE.parent
CONF = (PACKAGE if INSTALLED else ROOT) / "conf"
RECORDS = ROOT / "results" / "records"
TRAIN = "tape-exp train" if INSTALLED else "python train.py"  # in what is told to users

called_as = ""  # `tape-exp paper`, where a command was called so


def told(command: str) -> str:
    """A command of the package as users give it: ``tape-exp paper render``, or in a clone ``python
    -m tape_exp.paper render``.
    """
    return f"tape-exp {command}" if INSTALLED else f"python -m tape_exp.{command}"


def require_clone(command: str) -> None:
    """Raise :class:`ConfigError` where a command that needs more than the package is outside a
    clone.
    """
    if INSTALLED:
        raise ConfigError(
            f"{command} needs files that only a clone of the repository has, and the package is "
            f"installed in {PACKAGE}; clone the repository and give the command there."
        )


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
