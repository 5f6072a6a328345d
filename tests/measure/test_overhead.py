"""The benchmark of a run beside a bare loop: the loop does the same work, and every figure is
recorded.
"""

import json

import pytest
import torch

from tape_exp.measure import overhead
from tape_exp.runs.directory import RunDirectory
from tests.conftest import SMALL, on_text

TINY = [
    "trainer=cpu",
    "trainer.log_every=2",
    "logger=none",
    "logger.mode=auto",
    "trainer.progress=none",
]


@pytest.mark.parametrize("model", ["rope", "randpe"])
def test_the_bare_loop_ends_with_the_weights_of_the_run(tmp_path, monkeypatch, model):
    kept = []

    class Kept(overhead.Beside):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(self)

    monkeypatch.setattr(overhead, "Beside", Kept)
    sizes = [*SMALL, "task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
    cfg = overhead.smoke(tmp_path, "arithmetic", 3, *TINY, *sizes, model=model)
    figures = overhead.overhead(cfg)
    assert figures["rounds"] == 3
    assert figures["bare_step_ms"] > 0
    content = torch.load(RunDirectory(cfg).checkpoints / "step00000008.ckpt", weights_only=True)
    for name, value in kept[0].loop.decoder.state_dict().items():
        assert torch.allclose(
            value, content["state_dict"][f"decoder.{name}"], rtol=1e-4, atol=1e-6
        ), name


def test_record_holds_every_figure(tmp_path, text_folder, monkeypatch):
    whole = overhead.smoke

    def small(folder, task, rounds):
        text = (
            [word for word in on_text(text_folder) if not word.startswith("cache=")]
            if task == "c4"
            else SMALL
        )
        rows = (
            ["task.optim.batch=4"]
            if task == "c4"
            else ["task.train_digits=2", "task.test_digits=3"]
        )
        return whole(folder, task, rounds, *TINY, *text, *rows)

    monkeypatch.setattr(overhead, "smoke", small)
    assert overhead.main(["--out", str(tmp_path), "--rounds", "3"]) == 0
    (path,) = tmp_path.glob("overhead-*.json")
    told = json.loads(path.read_text())["step_over_bare_loop"]
    assert set(told) == {"arithmetic", "c4"}
    for figures in told.values():
        for by in ("clock", "processor"):
            assert (
                0
                < figures[by]["lower_quartile"]
                <= figures[by]["median"]
                <= figures[by]["upper_quartile"]
            )
        assert figures["whole"] > 0
