"""What the benchmarks refuse before they measure anything, and what they need."""

import subprocess
import sys

import pytest
from hydra.errors import OverrideParseException

from tape_exp.measure import (
    data_speed,
    fusion,
    lengths,
    overhead,
    page_speed,
    registers,
    soak,
    speed,
    utilisation,
)
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.folders import ROOT
from tape_exp.theory import __main__ as theory

BEGINNINGS = [
    (data_speed, "tokenising"),
    (fusion, "measure"),
    (lengths, "measure"),
    (overhead, "overhead"),
    (page_speed, "opened"),
    (registers, "measure"),
    (soak, "soak"),
    (speed, "measure"),
    (utilisation, "measure"),
    (theory, "theorem"),
]


@pytest.mark.parametrize(("module", "begins"), BEGINNINGS, ids=lambda part: str(part)[:40])
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    module, begins, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(module, begins, lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(page_speed.shutil, "which", lambda name: name)
    page = tmp_path / "index.html"
    page.touch()
    words = ["--page", str(page)] if module is page_speed else []
    assert module.main([*words, "--out", str(page / "below")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --out {page / 'below'} cannot be written (Not a directory)")
    assert told.count("\n") == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"runs": [{}]}'])
def test_a_damaged_record_of_the_soak_is_named(content, tmp_path, capsys):
    (tmp_path / "reliability.json").write_text(content)
    assert soak.main(["--render", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path / 'reliability.json'} ")
    assert told.count("\n") == 1
    assert not (tmp_path / "reliability.md").exists()


@pytest.mark.parametrize("device", ["nope", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch, capsys):
    if device == "cuda" and speed.torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(speed, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(SystemExit, match="2"):
        speed.main(["--device", device])
    assert f"--device: {device} is no device that PyTorch finds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the following arguments are required: artifact | key=value\n"),
        (["tape", "--key=hunter2"], "unrecognized arguments: --key=[hidden]\n"),
    ],
)
def test_a_usage_names_its_words_and_hides_what_was_given(words, told, capsys):
    parser = Parser(prog="it")
    parser.add_argument("words", nargs="+", metavar="artifact | key=value")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words)
    assert capsys.readouterr().err.endswith(f"error: {told}")


def test_the_speed_of_encodings_is_measured_without_hydra():
    """As `make gpu` does on a machine that has only torch and matplotlib."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(['hydra', 'omegaconf', 'lightning', 'rich']); "
        "from tape_exp.measure import speed; speed.main(['--help'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "--device" in ended.stdout


def test_what_hydra_refuses_is_still_one_sentence(capsys):
    """Though the wrapper of the commands imports Hydra only when it has refused something."""

    @command
    def main() -> int:
        raise OverrideParseException("model=[", "no viable alternative")

    assert main() == 2
    told = capsys.readouterr().err
    assert told.startswith("error: model=[ cannot be read; close its brackets")
    assert told.count("\n") == 1


def test_a_fault_of_the_code_keeps_its_traceback():
    @command
    def main() -> int:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        main()
