"""The output of a command: what it may print, and what becomes of text that nobody can take."""

import codecs
import io
import locale
import os
import sys

from tape_exp.settings.errors import ConfigError


def prepare_streams() -> None:
    """Let characters that the terminal's encoding lacks be written out, as ``\\xb7``.

    Raises:
        ConfigError: files would be read and written in another encoding than UTF-8.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as a daemon's is
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so by itself
        sys.stdout.reconfigure(errors="backslashreplace")
    encoding = locale.getpreferredencoding(False)
    if codecs.lookup(encoding).name != "utf-8":
        raise ConfigError(
            f"the encoding of this locale is {encoding}, and all files of the project are in "
            "UTF-8; set PYTHONUTF8=1."
        )


def flush_or_drop() -> None:
    """Write what is still to be printed; drop it where the disk is full or the reader has gone.

    Python would else change the status of the command at its exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
