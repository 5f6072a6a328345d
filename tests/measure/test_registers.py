"""What is compiled without a GPU: a program in full, and the table of all tiles."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from tape_exp.measure import registers
from tape_exp.models.kernels import causal, runtime
from tape_exp.settings.folders import ROOT

triton = pytest.importorskip("triton", reason="triton is not installed: pip install triton")


def test_a_program_is_compiled_for_a_gpu_that_is_not_there(tmp_path):
    """In a process of its own, since triton's interpreter, once imported, compiles nothing."""
    program = (
        "import json; from tape_exp.measure import registers as r; "
        "print(json.dumps(next(r.compiled(80, r.attention, 16, False))))"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    row = json.loads(ended.stdout)
    assert row["program"] == "attention"
    assert (row["pass"], row["bias"]) == ("", "no")
    assert row["tile"] == {"BLOCK_M": 128, "BLOCK_N": 128}
    assert (row["warps"], row["stages"]) == (8, 2)
    assert 32 <= row["registers"] <= 255
    assert row["spilled_bytes"] == 0
    assert row["shared_bytes"] >= 2 * 128 * 16 * 2  # of keys and values, in 16 bits


def test_the_interpreter_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runtime, "interpreted", lambda: True)
    assert registers.main(["--out", str(tmp_path)]) == 2
    assert "TRITON_INTERPRET=1 is set" in capsys.readouterr().err


def test_every_program_that_is_tuned_has_been_compiled():
    """Name a new one in ``registers.CALLS``, and run the command again."""
    folder = ROOT / "tape_exp" / "models" / "kernels"
    modules = [
        importlib.import_module(f"{causal.__package__}.{path.stem}")
        for path in folder.glob("*_triton.py")
    ]
    tuned = {
        name
        for module in modules
        for name, program in vars(module).items()
        if isinstance(program, triton.runtime.Autotuner)
    }
    record = json.loads((ROOT / "results" / "speed" / "registers.json").read_text())
    assert {"attention", "key_gradient"} <= tuned
    assert tuned <= {row["program"] for row in record["rows"]}


def test_the_table_has_the_range_of_all_tiles():
    rows = [
        {
            "gpu": gpu, "D": 64, "heads": 12, "carries": False, "program": "key_gradient",
            "pass": "one pass", "bias": "by distance", "tile": {}, "warps": 4, "stages": 2,
            "registers": registers_, "spilled_bytes": spilled, "shared_bytes": 65536,
        }
        for gpu in registers.CAPABILITIES
        for registers_, spilled in ((255, 16), (127, 0))
    ]  # fmt: skip
    cells = [cell.strip() for cell in registers.table({"rows": rows})[-1].split("|")[1:-1]]
    assert cells[:6] == ["key_gradient, one pass", "by distance", "64", "12", "no", "2"]
    assert cells[6:] == ["127 to 255", "0 to 16", "64"] * 2
