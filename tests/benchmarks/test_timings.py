"""The benchmarks at tiny shapes: what they time is what they say, and every figure is recorded."""

import json
import weakref

import pytest
import torch

from benchmarks import common, data, lengths, overhead, speed
from tape_exp.models import attention
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.settings.schema import Arch
from tests.conftest import SMALL, on_text

CPU = torch.device("cpu")
SHAPES = speed.Shapes(
    Arch(2, 32, 2, 32, vocab=20, max_length=64, train_length=64),
    1,
    (16,),
    (32,),
    0.01,
    torch.float32,
)


def test_spread_is_median_and_quartiles():
    expected = {"lower_quartile": 1.0, "median": 2.0, "upper_quartile": 3.0}
    assert common.spread([1.0, 2.0, 3.0]) == expected


@pytest.mark.slow
def test_a_measurement_that_fails_leaves_the_others(monkeypatch):
    def scarce(scores, v):
        if scores.biases and scores.q.shape[2] == 16:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return attention.sdpa(scores, v)

    def unable(device):
        raise RuntimeError("no")
        yield

    monkeypatch.setitem(attention.BACKENDS, "sdpa", scarce)
    monkeypatch.setattr(speed, "decoding", unable)
    kept = []
    record = speed.measure(CPU, SHAPES, lambda record: kept.append(len(record["rows"])))
    failed = {row["what"]: row["why"] for row in record["failed"]}
    assert failed["core T 16 fire/sdpa"] == "OutOfMemoryError: CUDA out of memory."
    assert failed["decoding"] == "RuntimeError: no"
    cases = {(r["what"], r["encoding"], r["backend"]) for r in record["rows"]}
    assert ("core", "fire", "explicit") in cases
    assert ("core", "fire", "sdpa") not in cases
    steps = {r["encoding"] for r in record["rows"] if r["what"] == "step"}
    assert steps == {*speed.TIMED, "tape_separate"}
    assert kept[0] > 0, "what is cut off leaves the parts before it"


def test_a_slope_is_the_exponent():
    assert lengths.slope((256, 512, 1024), [T**1.5 for T in (256, 512, 1024)]) == 1.5
    assert lengths.slope((256, 512), [1.0, 2.0]) is None


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
    assert table in (ROOT / "docs" / "speed.md").read_text()


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


@pytest.mark.slow
def test_data_records_every_figure(tmp_path, text_folder, monkeypatch):
    def small(folder, *words):
        text = [word for word in on_text(text_folder) if not word.startswith("cache=")]
        fixed = ["task=c4", "model=rope", "logger=none", "trainer=cpu"]
        places = [f"runs={folder}/runs", f"cache={folder}/cache"]
        steps = ["task.optim.max_steps=20", "task.optim.batch=4", "trainer.log_every=5"]
        return compose_config([*fixed, *text, *steps, *places])

    monkeypatch.setattr(data, "smoke", small)
    assert data.main(["--out", str(tmp_path / "speed.jsonl")]) == 0
    path = tmp_path / "speed.jsonl"
    record = json.loads(path.read_text())
    assert record["tokenising_mb_per_second_one_core"]["median"] > 0
    assert record["second_start_seconds"]["median"] > 0
    assert 0 <= record["data_wait_percent_of_a_step"]["median"] < 100
    assert set(record["evaluation_over_bare_forward"]) == {"16", "32"}
