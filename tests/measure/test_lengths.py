"""Cost against length: exponents of what is known, limits, and every figure in the record."""

import json
import weakref

import pytest
import torch

from tape_exp.measure import lengths
from tape_exp.models import timing


def test_a_slope_is_the_exponent():
    assert lengths.slope((256, 512, 1024), [T**1.5 for T in (256, 512, 1024)]) == 1.5
    assert lengths.slope((256, 512), [1.0, 2.0]) is None


def test_products_are_counted_as_the_model_counts_them():
    """Those of a layer and of explicit attention over all pairs, once forward, twice backward."""
    T = 32
    decoder = lengths.layers_of("rope", T)
    matrices = sum(p.numel() for p in decoder.blocks()[0].parameters() if p.ndim == 2)
    assert lengths.counted_flops("rope", T) == 3 * (2 * T * matrices + 4 * T**2 * lengths.WIDTH)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(lengths, "WIDTH", 16)
    monkeypatch.setattr(lengths, "INNER", 16)


def test_every_figure_is_recorded_and_a_step_beyond_a_limit_is_a_line(tiny, monkeypatch):
    """Limits are of what is expected: four times a step of half the length."""
    monkeypatch.setattr(lengths, "kept_bytes", lambda block, forward: 2**20)
    monkeypatch.setattr(lengths, "round_robin", fake_times)
    told, saved = [], []
    say, save = told.append, lambda record: saved.append(len(record["rows"]))
    record = lengths.measure((8, 16, 32, 64, 128), 3.0, 1.0, ("rope", "path"), say=say, save=save)
    assert saved == [2, 4, 6, 8], "a process that is killed leaves the lengths before"
    left_out = [row for row in record["rows"] if "left_out" in row]
    reasons = {T: f"would take {s} s, more than 3 s" for T, s in ((64, 4), (128, 16))}
    assert [row for row in left_out if row["encoding"] == "path"] == [
        {"encoding": "path", "T": T, "left_out": reason} for T, reason in reasons.items()
    ]
    assert f"path at 64 tokens is left out: it {reasons[64]}" in told
    slopes = {row["encoding"]: row for row in record["slopes"]}
    assert slopes["path"]["lengths"] == [8, 16, 32]
    assert slopes["path"]["ms"] == pytest.approx(2)
    assert len(left_out) == 3
    assert slopes["rope"]["lengths"] == [16, 32, 64]
    assert slopes["rope"]["ms"] == pytest.approx(1)
    assert slopes["rope"]["activation_bytes"] == 0
    assert 1 < slopes["rope"]["counted_flops"] < slopes["path"]["counted_flops"] < 2
    lines = lengths.table(record)
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["rope", "path"]
    assert "| 64 " in lines[2]
    assert "| 32 " in lines[3]


def fake_times(cases, device, seconds):
    """RoPE's grow with the length, PaTH's with its square: at 32 tokens half a second and one."""
    times = {}
    for name, case in cases.items():
        case()
        T = case.__self__.x.shape[1]
        times[name] = [1e3 * (T / 32) ** 2 if name == "path" else 500 * T / 32] * 5
    return times


def test_steps_that_would_keep_too_much_are_left_out():
    row = {"T": 8, "ms": 1.0, "activation_bytes": 2e9}
    assert lengths.too_much(row, 16, 1, 7.9) == "would keep 8.0 GB, more than 7.9 GB"
    assert lengths.too_much(row, 16, 1, 8.1) == ""


def test_a_layer_keeps_bytes_and_reaches_its_update(tiny):
    step = lengths.Step(lengths.layers_of("tape", 8), 8)
    assert lengths.kept_bytes(step.block, step.forward) > 8 * 16 * 4
    step.forward().backward()
    assert all(p.grad is not None for p in step.block.parameters())
    assert step.state.grad is not None


def test_what_is_counted_is_freed(tiny):
    """An operation that keeps its own output, such as exp, and the output refer to each other."""
    outputs = []

    def forward():
        y = torch.ones(2, requires_grad=True).exp()
        outputs.append(weakref.ref(y))
        return y

    assert lengths.kept_bytes(torch.nn.Module(), forward) == 2 * 4
    with timing.apart():
        forward()
    assert [output() for output in outputs] == [None, None]


def test_the_command_writes_its_record(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lengths, "LENGTHS", (8, 16, 32))
    whole = lengths.measure
    monkeypatch.setattr(
        lengths, "measure", lambda *given, **to: whole(*given, names=("nope",), rounds_s=0.0)
    )
    assert lengths.main(["--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("lengths-*.json")
    record = json.loads(path.read_text())
    assert [row["T"] for row in record["rows"]] == [8, 16, 32]
    assert all(row["ms"] > 0 for row in record["rows"])
    assert "time ∝ T^" in capsys.readouterr().out
