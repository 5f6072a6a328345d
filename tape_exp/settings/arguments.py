"""What the commands share: types of options, and how a command ends.

Hydra is imported where it is used, so that the benchmark of the models works without it.
"""

import argparse
import functools
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

from tape_exp.settings import folders, plugins
from tape_exp.settings.errors import ConfigError, refused
from tape_exp.settings.redaction import RedactingFormatter, shown
from tape_exp.settings.streams import flush_or_drop, prepare_streams

Given = ParamSpec("Given")
MOST = 1e8  # of minutes, processes, …: no one means more, and timers overflow


class Parser(argparse.ArgumentParser):
    """Of a command's options; what it objects to is told without secrets, on one line.

    Its ``prog``, and the example in its ``epilog``, are how the command was called, where that was
    by ``tape-exp``.
    """

    def __init__(self, prog: str, epilog: str = "", **options: Any) -> None:
        called = folders.called_as if prog.startswith("python -m ") else ""
        if folders.called_as:
            epilog = epilog.replace("python -m tape_exp.", "tape-exp ")
        super().__init__(called or prog, epilog=epilog, **options)

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        told = shown(" ".join(message.splitlines()))
        for action in self._actions:  # their key=value is no secret
            if isinstance(action.metavar, str):
                told = told.replace(shown(action.metavar), action.metavar)
        super().error(told)


PLUGINS = "A package that is not installed is named as plugins=[<package>]."  # of a command's help


def without_plugins(arguments: Sequence[str] | None) -> list[str]:
    """The words of a command, those of the process by default, without ``plugins=[…]``: what it
    names is known from here on.

    Raises:
        ConfigError: what it names is no package with configs.
    """
    words = sys.argv[1:] if arguments is None else arguments
    plugins.use(words)
    return [word for word in words if not plugins.names_packages(word)]


def positive(kind: type) -> Callable[[str], Any]:
    """The argparse type of an option that must be above 0 and no more than :data:`MOST`; ``kind``
    is int or float.
    """

    def number(text: str) -> Any:
        try:
            if 0 < (value := kind(text)) <= MOST:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f"{text} must be a {'whole number' if kind is int else 'number'} above 0, at most "
            f"{MOST:.0f}."
        )

    return number


def require_writable(option: str, folder: Path) -> None:
    """Make the folder that an option names, before the work whose result it is to hold.

    Raises:
        ConfigError: nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{option} {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from error


def log_plainly() -> None:
    """Log to the terminal as plain lines, without what libraries of pictures say of their fonts."""
    console = logging.StreamHandler(sys.stdout)
    console.setFormatter(RedactingFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[console])
    for noisy in ("matplotlib", "PIL", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def command(main: Callable[Given, int]) -> Callable[Given, int]:
    """A command's main, which tells in one sentence what is wrong.

    Mistakes end with status 2, what the system refuses with 1, Ctrl-C with 130.
    """

    @functools.wraps(main)
    def wrapped(*arguments: Given.args, **options: Given.kwargs) -> int:
        try:
            prepare_streams()
            plugins.use(sys.argv[1:])
            status = main(*arguments, **options)
            sys.stdout.flush()
            return status
        except ConfigError as error:
            print(f"error: {shown(str(error))}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # whoever reads has seen enough, as head has
            return 1
        except OSError as error:
            print(f"error: {shown(refused(error))}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
            return 130
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("hydra", "omegaconf"):
                raise
            from tape_exp.settings.compose import explain

            print(f"error: {shown(explain(error, sys.argv[1:]))}", file=sys.stderr)
            return 2
        finally:
            flush_or_drop()

    return wrapped
