"""The benchmarks at tiny shapes: what they time is what they say, and every figure is recorded."""

import json
import weakref

import pytest
import torch

from benchmarks import common, lengths, overhead
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.folders import ROOT
from tests.conftest import SMALL


def test_what_is_counted_is_freed():
    """An operation that keeps its own output, such as exp, and the output refer to each other."""
    outputs = []

    def forward():
        y = torch.ones(2, requires_grad=True).exp()
        outputs.append(weakref.ref(y))
        return y

    assert lengths.kept_bytes(torch.nn.Module(), forward) == 2 * 4
    assert [output() for output in outputs] == [None]


@pytest.mark.slow
def test_lengths_records_every_figure_and_leaves_out_what_would_take_too_long(
    monkeypatch, tmp_path, capsys
):
    """RoPE's times grow with the length, PaTH's with its square."""

    def times(cases, device, seconds):
        for case in cases.values():
            case()
        T = next(iter(cases.values())).__self__.x.shape[1]
        of = {"rope": 500 * T / 32, "path": 1e3 * (T / 32) ** 2}
        return {name: [of[name]] * 5 for name in cases}

    for name, value in (("WIDTH", 16), ("INNER", 16), ("SECONDS", 3.0)):
        monkeypatch.setattr(lengths, name, value)
    monkeypatch.setattr(lengths, "ENCODINGS", ("rope", "path"))
    monkeypatch.setattr(lengths, "LENGTHS", (8, 16, 32, 64))
    monkeypatch.setattr(lengths, "round_robin", times)
    assert lengths.main(["--out", str(tmp_path / "speed.jsonl")]) == 0
    assert "path at 64 tokens is left out" in capsys.readouterr().out
    path = tmp_path / "speed.jsonl"
    rope, path = json.loads(path.read_text())["slopes"]
    assert (rope["lengths"], path["lengths"]) == ([16, 32, 64], [8, 16, 32])
    assert rope["ms"] == pytest.approx(1)
    assert path["ms"] == pytest.approx(2)


def test_the_table_of_lengths_is_on_its_page():
    records = map(json.loads, common.RECORDS.read_text().splitlines())
    table = lengths.table(next(each for each in records if each["benchmark"] == "lengths"))
    page = (ROOT / "docs" / "speed.md").read_text()
    shown = page[page.index(table.splitlines()[0]) :].partition("\n\n")[0].splitlines()
    assert {"rope", "tape", "fire"} <= {line.split("|")[1].strip() for line in shown}
    assert {*shown} <= {*table.splitlines()}


@pytest.mark.slow
def test_the_bare_loop_ends_with_the_weights_of_the_run(tmp_path, monkeypatch):
    loops, make = [], overhead.BareLoop
    monkeypatch.setattr(overhead, "BareLoop", lambda *x: loops.append(make(*x)) or loops[-1])
    tiny = ["trainer=cpu", "trainer.log_every=2", "logger=none", "logger.mode=auto"]
    sizes = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
    cfg = overhead.smoke(tmp_path, "arithmetic", 3, *tiny, *sizes, model="randpe")
    figures = overhead.overhead(cfg)
    assert figures["rounds"] == 3
    assert figures["bare_step_ms"] > 0
    content = torch.load(RunDirectory(cfg).checkpoints / "step00000008.ckpt", weights_only=True)
    for name, value in loops[0].decoder.state_dict().items():
        trained = content["state_dict"][f"decoder.{name}"]
        assert torch.allclose(value, trained, rtol=1e-4, atol=1e-6), name
