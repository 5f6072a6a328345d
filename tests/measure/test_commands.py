"""What the benchmarks say before they measure anything, and what they need."""

import subprocess
import sys

import pytest

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
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(
    module, begins, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(module, begins, lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(page_speed.shutil, "which", lambda name: name)
    page = tmp_path / "index.html"
    page.touch()
    words = ["--page", str(page)] if module is page_speed else []
    assert module.main([*words, "--out", str(page / "below")]) == 1
    assert f"{page / 'below'}: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["nope", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch, capsys):
    if device == "cuda" and speed.torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(speed, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(SystemExit, match="2"):
        speed.main(["--device", device])
    assert f"--device: {device} is no device that PyTorch finds" in capsys.readouterr().err


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
