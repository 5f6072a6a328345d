"""Where an error that nobody foresaw comes from: the line of an author's own file."""

import re
import sysconfig
import traceback
from pathlib import Path

from tape_exp.settings.folders import PACKAGE
from tape_exp.settings.plugins import packages

LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib")]


def describe(error: BaseException) -> str:
    """Describe an error and its place: ``AttributeError: no 'modulus' (my_pe/ripple.py, line 23)``.
    An error of the package's own classes says itself what is to be done.
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
    """Find the last line on the way to an error that is in a file of somebody else's, which an
    encoding or a task may be, else the last one in the package; lines of libraries and of what
    called the package do not count. Of ``train.py`` → ``training/run.py`` → ``my_pe/ripple.py`` →
    torch it is that of ``my_pe/ripple.py``.
    """
    text = "".join(traceback.format_exception(error))
    ours: tuple[Path, str] | None = None
    theirs: tuple[Path, str] | None = None
    for name, number in re.findall(r'File "([^"<]+)", line (\d+)', text):
        file = Path(name).resolve()
        if _of_library(file):
            continue
        if file.is_relative_to(PACKAGE):
            ours = (file, number)
        elif ours:  # below the package, not above it
            theirs = (file, number)
    place = theirs or ours
    if place is None:
        return ""
    file, number = place
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}, line {number}"


def _of_library(file: Path) -> bool:
    own = [PACKAGE, *packages().values()]  # which may be installed where libraries are
    if any(file.is_relative_to(folder) for folder in own):
        return False
    return any(file.is_relative_to(folder.resolve()) for folder in LIBRARIES)
