"""Output that the terminal cannot show, and locales whose files are in another encoding."""

import io
import locale
import os
import subprocess
import sys

import pytest

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.streams import prepare_streams


def test_characters_that_a_terminal_lacks_are_written_out(monkeypatch):
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding="ascii"))
    prepare_streams()
    print("· = not evaluated", flush=True)
    assert taken.getvalue() == b"\\xb7 = not evaluated\n"


def test_a_locale_of_another_encoding_is_refused(monkeypatch):
    monkeypatch.setattr(locale, "getpreferredencoding", lambda _: "ISO-8859-1")
    with pytest.raises(ConfigError, match=r"ISO-8859-1, .* set PYTHONUTF8=1"):
        prepare_streams()


def test_a_reader_who_has_seen_enough_is_told_nothing():
    """As ``--help | head -1`` has, whichever ends first."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "train.py", "--help"],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=900,
        )
    assert ended.stderr == ""
    assert ended.returncode == 1


@pytest.mark.parametrize("words", [["train.py", "--help"], ["-m", "tape_exp.bench", "--list"]])
def test_output_on_a_full_disk_ends_without_a_traceback(words):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=900,
        )
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert "No space left on device" in ended.stderr
    assert ended.returncode in (1, 2)


def test_closed_output_is_no_error(monkeypatch):
    """As a daemon's is; Python then has none."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    prepare_streams()
    print("unseen", flush=True)
    assert not sys.stdout.isatty()
    assert sys.stderr is not None
