"""Shares of the peak, and gains, from times that are known, and every figure in the record."""

import json

import pytest

from tape_exp.measure import utilisation
from tape_exp.models.decoder import Decoder
from tape_exp.settings.schema import Arch

TINY = utilisation.Sizes(Arch(1, 16, 2, 16, vocab=16, max_length=16, train_length=8), 2, 8)
MS = {"fp32": 8.0, "bf16": 4.0, "compiled": 5.0, "one thread": 12.0}


def test_shares_and_gains_are_ratios_of_the_rounds(monkeypatch):
    monkeypatch.setattr(Decoder, "compile", lambda self: None)
    threads = []

    def times(cases, device, seconds):
        for name, case in cases.items():
            case()
            threads.append((name.split("/")[1], utilisation.torch.get_num_threads()))
        return {name: [MS[name.split("/")[1]]] * 5 for name in cases}

    monkeypatch.setattr(utilisation, "round_robin", times)
    before = utilisation.torch.get_num_threads()
    record = utilisation.measure({"tiny": TINY}, 2, 1.0, gemm=8)
    assert utilisation.torch.get_num_threads() == before
    assert {count for name, count in threads if name == "one thread"} == {1}
    assert {count for name, count in threads if name != "one thread"} == {2}
    rate = 2 * 8**3 / 8e-3 / 1e9
    assert record["gemm_gflops"]["fp32"]["median"] == pytest.approx(rate, abs=1e-4)
    (step,) = record["steps"]
    share = TINY.flops / (2 * 8**3)  # both take 8 ms
    for dtype in ("fp32", "bf16"):
        assert step["share_of_peak"][dtype]["median"] == pytest.approx(share, abs=1e-4)
    gains = {name: gain["median"] for name, gain in step["gains"].items()}
    assert gains == pytest.approx({"bf16": 2, "compiled": 1.6, "all threads": 1.5}, abs=1e-3)


def test_what_does_not_compile_is_told_and_the_rest_is_measured(tmp_path, monkeypatch, capsys):
    def fails(self):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(Decoder, "compile", fails)
    whole = utilisation.measure
    monkeypatch.setattr(
        utilisation, "measure", lambda steps, *given: whole({"tiny": TINY}, *given, gemm=8)
    )
    words = ["--out", str(tmp_path), "--seconds", "0.001", "--threads", "1"]
    assert utilisation.main(words) == 0
    (path,) = tmp_path.glob("utilisation-*.json")
    record = json.loads(path.read_text())
    assert record["failed"] == {"tiny/compiled": "RuntimeError: no compiler"}
    assert record["rounds"] == 5
    assert set(record["steps"][0]["gains"]) == {"bf16", "all threads"}
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "trainer.compile=true" in x]
    assert line.split("|")[2].strip() == "–"


def test_the_smoke_step_is_that_of_the_config():
    sizes = utilisation.smoke()
    assert (sizes.arch.width, sizes.batch) == (96, 256)
    assert sizes.length == sizes.arch.train_length
