"""How every command ends: with one sentence for a mistake, and a status that a script can read."""

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

from tape_exp.settings.errors import ConfigError, missing_package
from tape_exp.settings.origin import describe
from tape_exp.settings.redact import redact

Arguments = ParamSpec("Arguments")
PARSERS = ("hydra", "omegaconf", "yaml")  # whose errors are the user's mistakes


class RunFailedError(Exception):
    """A run in another process has failed, and has said so there.

    Args:
        status: that of the command.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def command(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Turn errors of a command's ``main`` into a sentence on stderr and a status.

    Status 2 is the user's mistake, 1 what the system refuses (a full disk, a missing permission),
    130 Ctrl-C. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(main)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
        open_console()
        try:
            status = main(*args, **kwargs)
            sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
            return 130
        except BrokenPipeError:  # stdout was closed, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except Exception as error:
            if not (is_mistake(error) or isinstance(error, OSError)):
                raise
            return report(error)

    return wrapped


def open_console() -> None:
    """Make sure of a stdout and a stderr, where a launcher has closed them too, and let no letter
    that the terminal's encoding lacks end a command.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:  # else the next file that is opened would be the console
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_mistake(error: Exception) -> bool:
    """Say whether an error is the user's: a ConfigError, Hydra's or OmegaConf's, an extra that is
    not installed.
    """
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, ConfigError) or module in PARSERS or bool(missing_package(error))


def report(error: Exception) -> int:
    """Print an error as one sentence, and return its status: 2 for a mistake, else 1."""
    print(f"error: {redact(sentence_of(error))}", file=sys.stderr)
    return 2 if is_mistake(error) else 1


def sentence_of(error: Exception) -> str:
    """Explain an error in one sentence."""
    if isinstance(error, ConfigError):
        return str(error)
    missing = missing_package(error)
    if missing:
        return missing
    if is_mistake(error):
        from tape_exp.settings.explain import explain  # imports Hydra

        return explain(error, sys.argv[1:])
    if isinstance(error, OSError):
        file = error.filename2 or error.filename
        reason = error.strerror or error
        return f"{file}: {reason}." if file else f"{reason}."
    return describe(error)
