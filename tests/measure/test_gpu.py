"""``make gpu``: stages outlive each other, and the check finds backends that are wrong."""

import json
import os
import signal
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from tape_exp.machine.hardware import file_name, machine_name
from tape_exp.measure import check, gpu
from tape_exp.measure.encodings import DIGITS, ENCODINGS
from tape_exp.models import attention
from tape_exp.models.kernels import update
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, make_position

ARCH = Arch(3, 256, 4, 256, vocab=64, max_length=200, train_length=200, digits=DIGITS)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_stage_that_fails_or_hangs_is_a_line_and_the_next_one_runs(monkeypatch, tmp_path, capsys):
    def stage(*programs, **options):
        return gpu.Stage("", 1, lambda out: [python(program) for program in programs], **options)

    stages = {
        "hangs": stage("print('began', flush=True); import time; time.sleep(600)", "print(1)"),
        "fails": stage("raise SystemExit('out of memory')"),
        "lacks": stage("print(1)", needs=("hydra", "nosuchpackage")),
        "ends": stage("print('measured')"),
    }
    monkeypatch.setattr(gpu, "STAGES", stages)
    words = ["--stages", *stages, "--minutes", "0.4", "--out", str(tmp_path)]
    assert gpu.main(words) == 1
    (path,) = tmp_path.glob("gpu-*.json")
    told = {row["stage"]: row for row in json.loads(path.read_text())["stages"]}
    ended = {name: [line["ended"] for line in row["commands"]] for name, row in told.items()}
    assert ended == {
        "hangs": ["stopped at its limit"],
        "fails": ["failed"],
        "lacks": [],
        "ends": ["done"],
    }
    assert told["fails"]["commands"][0]["last"] == "out of memory"
    assert told["lacks"]["left_out"] == "nosuchpackage not installed"
    assert "measured" in (tmp_path / "ends.log").read_text()
    assert "measured" in capsys.readouterr().out


def test_a_check_that_is_cut_off_tells_what_had_disagreed(monkeypatch, tmp_path, capsys):
    rows = [{"encoding": "rope", "backend": "flex", "verdict": "agrees"}]
    rows += [{"encoding": "tape", "backend": "sdpa", "verdict": "differs", "why": "by much"}]
    name = file_name(machine_name(torch.device("cpu")))
    (tmp_path / f"unfinished-check-{name}.json").write_text(json.dumps({"rows": rows}))
    stage = gpu.Stage("", 1, lambda out: [python("import time; time.sleep(600)")])
    monkeypatch.setattr(gpu, "STAGES", {"check": stage})
    words = ["--stages", "check", "--minutes", "0.05", "--out", str(tmp_path)]
    assert gpu.main(words) == 1
    assert "tape" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_under_way(monkeypatch, tmp_path, number):
    told = f"import os, time; os.write(1, b'%d' % os.getpid()); os.kill(os.getppid(), {number}); "
    stage = gpu.Stage("", 1, lambda out: [python(told + "time.sleep(600)")])
    monkeypatch.setattr(gpu, "STAGES", {"long": stage})
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--stages", "long", "--out", str(tmp_path)])
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "long.log").read_text()), 0)


def test_a_folder_is_taken_as_long_as_a_command_lives(tmp_path):
    """Also one that its `make gpu`, being killed, has left behind."""
    with gpu.alone(tmp_path) as lock:
        left = subprocess.Popen(["sleep", "600"], pass_fds=[lock.fileno()])
    try:
        with pytest.raises(ConfigError, match="fuser"), gpu.alone(tmp_path):
            pass
    finally:
        left.kill()
        left.wait()
    with gpu.alone(tmp_path) as lock:
        assert not lock.closed


@pytest.mark.parametrize(("gpu_here", "trainer"), [(True, "trainer=gpu"), (False, "trainer=cpu")])
def test_only_a_gpus_figures_are_among_the_results(
    gpu_here, trainer, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    monkeypatch.setattr(gpu, "machine_name", lambda device: device.type)
    monkeypatch.setattr(gpu, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(gpu, "TRIAL", tmp_path / "trial")
    monkeypatch.setattr(gpu, "run_stage", lambda name, *_: {"stage": name, "commands": []})
    assert gpu.main([]) == 0
    (path,) = tmp_path.rglob("gpu-*.json")
    assert path.parent.name == ("results" if gpu_here else "trial")
    assert ("No GPU is here" in capsys.readouterr().out) == (not gpu_here)
    assert all(trainer in words for words in gpu.trains(tmp_path))


def test_a_python_without_torch_is_told():
    words = ["make", "gpu", "GPU_PYTHON=false"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("error: false has no torch; make setup installs it")


def test_an_unknown_stage_is_named(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--stages", "chek"])
    assert "chek" in capsys.readouterr().err


@pytest.mark.parametrize("name", gpu.USUAL)
def test_the_commands_of_a_stage_exist(name, tmp_path):
    for words in gpu.STAGES[name].commands(tmp_path):
        program = ROOT / words[1]
        if words[1] == "-m":
            program = ROOT / f"{words[2].replace('.', '/')}.py"
        assert program.is_file(), words


def test_the_tests_of_kernels_find_what_they_are_given(monkeypatch, capsys):
    """Every fixture: nothing is run."""
    monkeypatch.chdir(ROOT)
    ((_, _, _, *words),) = gpu.STAGES["kernels"].commands(ROOT)
    assert pytest.main([*words, "--setup-plan", "-q"]) == 0
    assert "SETUP    F arch" in capsys.readouterr().out


def test_the_check_needs_only_torch():
    program = (
        "import sys; sys.modules |= dict.fromkeys(['hydra', 'omegaconf', 'lightning', 'rich']); "
        "from tape_exp.measure import check, gpu; check.main(['--help'])"
    )
    ended = subprocess.run(python(program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_every_kind_of_encoding_is_checked_and_is_the_yamls_own():
    ours = {name: make(ARCH) for name, make in ENCODINGS.items()}
    theirs = {name: make_position(name, ARCH) for name in MODELS}
    assert {type(x) for x in theirs.values()} <= {type(x) for x in ours.values()}
    for name, position in ours.items():
        assert type(position) is type(theirs[name])
        assert [p.shape for p in position.parameters()] == [
            p.shape for p in theirs[name].parameters()
        ]


def test_the_check_tells_what_agrees_differs_fails_and_refuses(monkeypatch):
    """TAPE, whose attention serves values and state, on backends that are wrong in one of them."""

    def without_state(inputs):
        out, attended = attention.BACKENDS["reference"].compute(inputs)
        return out, attended if attended is None else 0.7 * attended

    def fails(inputs):
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    def detached(inputs):
        out, attended = attention.BACKENDS["reference"].compute(inputs)
        return out, attended if attended is None else attended.detach()

    able = {"sdpa": attention.BACKENDS["sdpa"], "reference": attention.BACKENDS["reference"]}
    others = {
        "without state": attention.Backend(without_state, lambda _: None),
        "detached": attention.Backend(detached, lambda _: None),
        "fails": attention.Backend(fails, lambda _: None),
        "refuses": attention.Backend(fails, lambda _: "it is no GPU"),
    }
    monkeypatch.setattr(check, "SHAPE", (1, 17))
    with patch.dict(attention.BACKENDS, able | others, clear=True):
        rows = {row["backend"]: row for row in check.compared("tape", torch.device("cpu"))}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "reference": "agrees",
        "sdpa": "agrees",
        "without state": "differs",
        "detached": "differs",
        "fails": "fails",
        "refuses": "refuses",
    }
    assert rows["fails"]["why"] == "RuntimeError: CUDA error: an illegal memory access"
    assert "logits" not in rows["detached"]["wrong"], "only gradients are wrong"


def test_a_check_writes_a_row_for_every_backend_and_fails_where_one_differs(
    monkeypatch, tmp_path, capsys
):
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    monkeypatch.setattr(check, "SHAPE", (1, 24))
    monkeypatch.setattr(check, "ENCODINGS", {"rope": ENCODINGS["rope"]})
    assert check.main(["--out", str(tmp_path), "--device", "cpu"]) == 0
    (path,) = tmp_path.glob("check-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["backend"] for row in rows] == ["products", *attention.BACKENDS]
    monkeypatch.setattr(check, "LOST", 0)
    monkeypatch.setattr(check, "LEAST", {"logits": 0})
    assert check.main(["--out", str(tmp_path), "--device", "cpu"]) == 1
    assert "rope                  sdpa       differs" in capsys.readouterr().out


def test_an_encoding_whose_reference_fails_is_a_row(monkeypatch, tmp_path):
    def fails(arch):
        raise RuntimeError("CUDA error: no room")

    monkeypatch.setattr(check, "SHAPE", (1, 24))
    monkeypatch.setattr(check, "ENCODINGS", {"tape": fails, "nope": ENCODINGS["nope"]})
    assert check.main(["--out", str(tmp_path), "--device", "cpu"]) == 1
    (path,) = tmp_path.glob("check-*.json")
    rows = json.loads(path.read_text())["rows"]
    first, *others = [row for row in rows if row["backend"] != "products"]
    assert first["why"] == "RuntimeError: CUDA error: no room"
    assert {row["encoding"] for row in others} == {"nope"}


def test_the_check_compares_fused_positions(monkeypatch):
    """In triton's interpreter; none are asked for on a CPU."""
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    monkeypatch.setattr(check, "SHAPE", (1, 5))
    cpu = torch.device("cpu")
    exact = check.results("tape", "reference", cpu, torch.float32)
    assert check.fused_positions("tape", cpu, exact) == []

    def chosen(self, what, supports, *tensors):
        attention.say(f"{what} (cuda): {'fused' if self.fused else 'torch, unfused. No.'}")
        return self.fused

    monkeypatch.setattr(RoPE, "fuses", chosen)
    (row,) = check.fused_positions("tape", cpu, exact)
    assert row["verdict"] == "agrees"
    assert row["gradient"] < 1e-4
    updated = update.updated

    def wrong(*given):
        q, *others = updated(*given)
        return 1.1 * q, *others

    monkeypatch.setattr(update, "updated", wrong)
    (row,) = check.fused_positions("tape", cpu, exact)
    assert row["verdict"] == "differs"
    monkeypatch.setattr(RoPE, "fuses", lambda self, *_: attention.say("torch, unfused. No."))
    (row,) = check.fused_positions("tape", cpu, exact)
    assert (row["verdict"], row["why"]) == ("refuses", "torch, unfused. No.")


def test_a_measurement_that_fails_leaves_the_others(monkeypatch):
    """A backend at one length, and a whole part."""
    from tape_exp.measure import speed

    arch = Arch(2, 32, 2, 32, vocab=20, max_length=64, train_length=64)
    shapes = speed.Shapes(arch, 1, (16,), (32,), 0.01, torch.float32)
    compute = attention.BACKENDS["sdpa"].compute

    def scarce(inputs):
        if inputs.biased and inputs.q.shape[2] == 16:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return compute(inputs)

    def unable(device):
        raise ConfigError("no")
        yield

    monkeypatch.setitem(
        attention.BACKENDS, "sdpa", attention.Backend(scarce, attention.BACKENDS["sdpa"].refuses)
    )
    step_case = speed.step_case

    def large(arch, make, *sizes, **options):
        if make is ENCODINGS["fire"]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step_case(arch, make, *sizes, **options)

    monkeypatch.setattr(speed, "decoding", unable)
    monkeypatch.setattr(speed, "step_case", large)
    kept = []
    record = speed.measure(
        torch.device("cpu"), shapes, lambda line: None, lambda r: kept.append(len(r["rows"]))
    )
    failed = {row["what"]: row["why"] for row in record["failed"]}
    assert failed["core T 16 forward fire/sdpa"] == "OutOfMemoryError: CUDA out of memory."
    assert failed["decoding"] == "ConfigError: no"
    cases = {(r["what"], r["encoding"], r["backend"]) for r in record["rows"]}
    assert ("core", "fire", "reference") in cases
    assert ("core", "fire", "sdpa") not in cases
    assert failed["step T 32 fire"] == "OutOfMemoryError: CUDA out of memory."
    steps = [r["encoding"] for r in record["rows"] if r["what"] == "step"]
    assert steps == [*(name for name in speed.TIMED if name != "fire"), "tape_separate"]
    assert len(kept) == 4
    assert kept[0] > 0, "after each part the record is kept"
    assert record["rows"][0]["what"] == "step", "what matters most comes first"


def test_weights_begin_before_they_move(monkeypatch):
    """The generator is a CPU's, and refuses a GPU's tensors."""
    from tape_exp.measure import speed

    began = []

    def begin(position, generator):
        began.extend(p.device.type for p in position.parameters())

    monkeypatch.setattr(RoPE, "init_weights", begin)
    monkeypatch.setattr(TAPE, "init_weights", begin)
    arch = Arch(2, 32, 2, 32, vocab=20, max_length=16, train_length=16)
    shapes = speed.Shapes(arch, 1, (16,), (), 0.01, torch.float32)
    speed.core_cases(shapes, 16, False, torch.device("meta"), lambda *_: None)
    assert set(began) == {"cpu"}


def test_attention_alone_is_timed():
    """No loss, and no gradients that are added up."""
    from tape_exp.measure import speed

    arch = Arch(2, 32, 2, 32, vocab=20, max_length=16, train_length=16)
    shapes = speed.Shapes(arch, 1, (16,), (), 0.01, torch.float32)
    cases = speed.core_cases(shapes, 16, True, torch.device("cpu"), lambda *_: None)
    for name in ("tape/sdpa", "fire/sdpa", "t5/reference"):
        once = cases[name].func.__defaults__
        (learns,) = (x for x in once if isinstance(x, list))
        assert len(learns) > 3
        assert all(x.grad is None for x in learns)


def test_products_beside_16_bits_are_held_to_more_than_16_bits(monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    cpu = torch.device("cpu")
    monkeypatch.setattr(check, "SHAPE", (1, 17))
    (row,) = check.products(cpu)
    assert row["verdict"] == "agrees"
    assert {"E", "P", "W_x", "V"} >= {row["of"]}
    made = check.maps.maps
    monkeypatch.setattr(check.maps, "maps", lambda *x: made(*x).bfloat16().float())
    (row,) = check.products(cpu)
    assert row["verdict"] == "differs", "one product of bf16 would"
    monkeypatch.setattr(check.maps, "supports", lambda *_: "no GPU")
    assert check.products(cpu) == []
