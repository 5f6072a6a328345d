"""Losses and gradient norms of every encoding, and of each kind of task, as they were.

``tests/golden.json`` holds them. ``python -m tests.test_golden`` writes it anew: only where the
numbers are meant to change, in the commit that says why.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning import Callback
from omegaconf import DictConfig

from tape_exp.models.conformance import randomise
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import CONF
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.module import LanguageModule
from tape_exp.training.run import run
from tests.conftest import on_text, write_text

STORE = Path(__file__).with_name("golden.json")
STEPS, ROWS = 3, 8
ADDITION = ["task=arithmetic", "task.train_digits=3", "task.test_digits=4"]
ALL_MODELS = sorted({path.stem for path in (CONF / "model").glob("*.yaml")} - {"layers"})

CASES = {f"addition {model}": [f"model={model}", *ADDITION] for model in ALL_MODELS}
CASES["pattern"] = ["model=[rope,nope]", *ADDITION]
CASES["grouped queries"] = ["model=tape", *ADDITION, "+task.arch.kv_heads=2"]
for _model in ("rope", "tape"):
    for _task in ("word_problem", "c4", "retrieval_training"):
        CASES[f"{_task} {_model}"] = [f"model={_model}", f"task={_task}"]
    for _problem in ("copy", "mqar"):
        _words = [f"model={_model}", "task=battery", f"task.problem={_problem}"]
        CASES[f"{_problem} {_model}"] = _words


def config(case: str, text: Path, *overrides: str) -> DictConfig:
    """The config of a case, made small; language tasks read ``text``."""
    words = CASES[case]
    task = words[1].removeprefix("task=")
    if task in ("c4", "retrieval_training"):
        words = [*words, *on_text(text, task)]
    sizes = ["task.arch.layers=2", "task.arch.width=32", "task.arch.heads=4", "task.arch.ffn=32"]
    sizes += [f"task.optim.batch={ROWS}", f"task.optim.max_steps={STEPS}", "task.optim.lr=0.01"]
    return compose_config([*words, *sizes, "seed=1", "trainer=cpu", *overrides])


def perturb(module: LanguageModule) -> None:
    """Noise on positional parameters, so that those that are initialised to zero take part."""
    randomise(module.decoder, std=0.1)


def trained(cfg: DictConfig) -> list[list[float]]:
    """Loss and gradient norm of each step, without Lightning."""
    task = make_task(cfg)
    task.prepare_data()
    module = LanguageModule(make_decoder(cfg, task), task, cfg).train()
    perturb(module)
    made = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    module._trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
    steps = []
    for step in range(STEPS):
        batch = task.train_batch(step * ROWS, ROWS)
        weights = batch.get("weights", batch["labels"] >= 0)
        counted = {"first": step * ROWS, "loss_tokens": weights.sum()}
        loss = module.training_step(batch | counted, step)
        loss.backward()
        module.configure_gradient_clipping()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        module._trainer.global_step += 1
        steps.append([float(f"{float(x):.7g}") for x in (loss.detach(), module._grad_norm)])
    return steps


def assert_as_before(case: str, steps: list[list[float]]) -> None:
    """The first step, a forward and backward pass, to 1e-4; then rounding errors grow."""
    for number, (found, before) in enumerate(
        zip(steps, json.loads(STORE.read_text())[case], strict=True)
    ):
        assert found == pytest.approx(before, rel=1e-2 if number else 1e-4), number


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradient_norms_are_as_before(case, text_folder):
    assert_as_before(case, trained(config(case, text_folder)))


@pytest.mark.parametrize("case", ["addition tape_randpe", "c4 tape"])
def test_a_run_in_micro_batches_has_the_same_losses(case, text_folder, tmp_path, sketched):
    class Perturbed(Callback):
        def on_fit_start(self, trainer, module):
            perturb(module)

    words = ["trainer.micro_batch=4", "trainer.log_every=1"]
    cfg = config(case, text_folder, *words, "logger=none", f"runs={tmp_path}")
    run(cfg, [Perturbed()])
    rows = [row for row in read_metrics(RunDirectory(cfg).metrics) if "train/loss" in row]
    assert_as_before(case, [[row["train/loss"], row["train/grad_norm"]] for row in rows])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder:
        write_text(Path(_folder))
        _lines = (f"{json.dumps(case)}: {trained(config(case, Path(_folder)))}" for case in CASES)
        STORE.write_text("{\n" + ",\n".join(_lines) + "\n}\n")
