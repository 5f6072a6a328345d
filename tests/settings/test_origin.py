"""An error that nobody foresaw names the line of its author's own file."""

import sysconfig
from pathlib import Path

import pytest

from tape_exp.settings.commands import report
from tape_exp.settings.folders import PACKAGE
from tape_exp.settings.origin import describe, place_of
from tape_exp.training.not_finite import NotFiniteError

SITE = Path(sysconfig.get_path("purelib"))
TORCH, INSTALLED = SITE / "torch" / "module.py", SITE / "my_pe" / "ripple.py"
RUN, TOY = PACKAGE / "training" / "run.py", PACKAGE / "models" / "positions" / "toy.py"
SCRIPT, MINE = Path("/home/me/script.py"), Path("/home/me/my_pe/ripple.py")


def error_through(*files: Path) -> Exception:
    """An error that went up from the last of the files through the others, line 2 of each."""

    def fail():
        raise AttributeError("no 'modulus'")

    call = fail
    for file in reversed(files):
        scope = {"below": call}
        exec(compile("def call():\n    below()", str(file), "exec"), scope)
        call = scope["call"]
    try:
        call()
    except AttributeError as error:
        return error.with_traceback(without_this_file(error.__traceback__))


def without_this_file(frames):
    """The lines of a traceback but those of this test."""
    kept = []
    while frames is not None:
        if frames.tb_frame.f_code.co_filename != __file__:
            kept.append(frames)
        frames = frames.tb_next
    for one, below in zip(kept, [*kept[1:], None], strict=True):
        one.tb_next = below
    return kept[0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([SCRIPT, RUN, TORCH, MINE], MINE),
        ([SCRIPT, RUN, MINE, TORCH], MINE),
        ([SCRIPT, RUN, MINE, RUN, TORCH], MINE),
        ([RUN, TORCH, TOY, TORCH], TOY),
        ([SCRIPT, RUN, TOY], TOY),
        ([RUN, INSTALLED, TORCH], INSTALLED),
        ([SCRIPT, TORCH], None),
    ],
)
def test_the_last_line_of_its_author_is_named(files, expected, monkeypatch):
    monkeypatch.setattr("tape_exp.settings.origin.packages", lambda: {"my_pe": INSTALLED.parent})
    monkeypatch.chdir("/")
    place = place_of(error_through(*files))
    assert place == (f"{str(expected)[1:]}, line 2" if expected else "")


def test_an_error_of_our_own_says_itself_what_to_do():
    assert describe(NotFiniteError("the loss is nan.")) == "NotFiniteError: the loss is nan."


ENCODING = """
from tape_exp.models.positions.rope import RoPE

class Ripple(RoPE):
    def __init__(self, arch, broken: bool = False):
        super().__init__(arch)
        if broken:
            self.modulus

    def rotate(self, x, *rest):
        x.modulus
"""


@pytest.mark.parametrize(("broken", "line"), [("true", 8), ("false", 11)])
def test_an_encoding_that_fails_names_its_line_and_the_log_has_the_traceback(
    broken, line, tiny_run, tmp_path, monkeypatch, capsys
):
    name = f"ripple_{broken}"  # a module is imported once
    (tmp_path / f"{name}.py").write_text(ENCODING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["model=nope", f"model._target_={name}.Ripple", f"+model.broken={broken}"]
    with pytest.raises(AttributeError) as raised:
        tiny_run(*words)
    assert report(raised.value) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: AttributeError: ")
    assert said.endswith(f"has no attribute 'modulus' ({name}.py, line {line})")
    (failed,) = tmp_path.rglob("FAILED")
    assert failed.read_text().splitlines()[-1] == said.removeprefix("error: ")
    log = failed.with_name("log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert f'{name}.py", line {line}' in log
