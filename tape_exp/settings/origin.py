"""Where an error that nobody foresaw comes from: the line of an author's own file."""

import re
import sysconfig
import traceback
from pathlib import Path

from tape_exp.settings.folders import PACKAGE
from tape_exp.settings.plugins import packages

LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib")]


def describe(error: BaseException) -> str:
    """``AttributeError: no 'modulus' (my_pe/ripple.py, line 23)``; an error of the package's own
    classes says itself what is to be done.
    """
    sentence = " ".join(str(error).split("\n"))
    name = type(error).__name__
    if type(error).__module__.partition(".")[0] == PACKAGE.name:
        return f"{name}: {sentence}"
    if "Original Traceback" in sentence:  # of a data worker, whose error torch quotes
        named = str(error).strip().splitlines()[-1]
    else:
        named = f"{name}: {sentence}"
    place = place_of(error)
    return f"{named} ({place})" if place else named


def place_of(error: BaseException) -> str:
    """The last line on the way to an error that is in a file of somebody else's, which an encoding
    or a task may be, else the last one in the package; lines of libraries and of what called the
    package do not count.
    """
    told = "".join(traceback.format_exception(error))
    lines = [(Path(f).resolve(), n) for f, n in re.findall(r'File "([^"<]+)", line (\d+)', told)]
    lines = [(file, number) for file, number in lines if not _of_library(file)]
    inside = [file.is_relative_to(PACKAGE) for file, _ in lines]
    if True not in inside:
        return ""
    below = lines[inside.index(True) :]
    theirs = [(file, number) for file, number in below if not file.is_relative_to(PACKAGE)]
    file, number = (theirs or below)[-1]
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}, line {number}"


def _of_library(file: Path) -> bool:
    own = [PACKAGE, *packages().values()]  # which may be installed where libraries are
    if any(file.is_relative_to(folder) for folder in own):
        return False
    return any(file.is_relative_to(folder.resolve()) for folder in LIBRARIES)
