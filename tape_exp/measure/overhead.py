"""``python -m tape_exp.measure.overhead``: what a run adds to its training steps, compared with a
bare PyTorch loop over the same batches.

The run is the one of ``train.py``, with its data, W&B offline, callbacks and checkpoints. After
every few of its steps it waits while the loop makes as many, so that both meet the same machine.
Leaves ``results/speed/overhead-<machine>.json``.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.hardware import machine_name
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.results import add_folder, spread, write_record
from tape_exp.runs.record import environment_info
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.tasks.base import Task
from tape_exp.training import assembly
from tape_exp.training import run as runs
from tape_exp.training.from_config import precision
from tape_exp.training.module import LanguageModule

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TASKS = ("arithmetic", "c4")


@command
def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.overhead",
        description="Measure what a run adds to its training steps, compared with a bare PyTorch "
        "loop over the same batches.",
    )
    add_folder(parser, "overhead")
    parser.add_argument(
        "--rounds",
        type=int,
        default=26,
        help="rounds of ten steps each; 26 hold one checkpoint (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"machine": machine_name(DEVICE), **environment_info()}
    with tempfile.TemporaryDirectory() as folder:
        record["step_over_bare_loop"] = {
            task: overhead(smoke(Path(folder), task, given.rounds)) for task in TASKS
        }
    path = write_record("overhead", record, given.out)
    print(json.dumps(record["step_over_bare_loop"], indent=1))
    print(path)
    return 0


def smoke(folder: Path, task: str, rounds: int, *words: str, model: str = "rope") -> DictConfig:
    """The config at scale smoke, a round longer than ``rounds``, all written below ``folder``."""
    fixed = [
        f"task={task}",
        f"model={model}",
        "logger=wandb",
        "logger.mode=offline",
        "trainer.progress=lines",
    ]
    fixed += [f"runs={folder}/runs", f"cache={folder}/cache"]
    fixed += ["debug=one_batch", "debug.max_steps=null"]
    cfg = compose_config([*fixed, *words])
    cfg.task.optim.max_steps = cfg.trainer.log_every * (rounds + 1)
    return cfg


def overhead(cfg: DictConfig) -> dict[str, Any]:
    """Seconds of a step of the run over those of the bare loop.

    Returns median and quartiles over the rounds by the ``clock`` and by the ``processor`` time of
    this process, the ratio of the ``whole``, which the checkpoint is a part of, and the
    milliseconds of a bare step.
    """
    beside: list[Beside] = []
    make = runs.make_trainer

    def watched(run: assembly.Run, callbacks: list[Callback]) -> Trainer:
        beside.append(Beside(run.cfg, run.task))
        return make(run, [*callbacks, *beside])

    with patch.object(runs, "make_trainer", watched):
        runs.run(cfg)
    rounds = beside[0].rounds[1:]
    ratios = [(run[0] / bare[0], run[1] / bare[1]) for run, bare in rounds]
    loop = sum(bare[0] for _, bare in rounds)
    return {
        "clock": spread([clock for clock, _ in ratios]),
        "processor": spread([processor for _, processor in ratios]),
        "whole": round(sum(run[0] for run, _ in rounds) / loop, 4),
        "bare_step_ms": round(1000 * loop / len(rounds) / cfg.trainer.log_every, 2),
        "rounds": len(rounds),
    }


class Beside(Callback):
    """Every ``trainer.log_every`` steps, let the bare loop make as many, and keep (run, bare), each
    (clock, processor) seconds.

    What follows the callbacks in a step of Lightning's, its report and its checkpoint, counts for
    the next round.
    """

    def __init__(self, cfg: DictConfig, task: Task) -> None:
        self.every, self.task = cfg.trainer.log_every, task
        self.loop = BareLoop(cfg, task)
        self.rounds: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self._since = (0.0, 0.0)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """The clock of the run begins."""
        self._since = now()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Stop the run's clock while the loop has its turn."""
        step, rows = trainer.global_step, self.task.optim.batch
        if step % self.every:
            return
        run = elapsed(self._since)
        batches = [
            self.task.train_batch(number * rows, rows) for number in range(step - self.every, step)
        ]
        began = now()
        for made in batches:
            self.loop.step(made)
        self.rounds.append((run, elapsed(began)))
        self._since = now()


class BareLoop:
    """The model, the optimizer and its schedule, and what a step of them needs."""

    def __init__(self, cfg: DictConfig, task: Task) -> None:
        decoder = assembly.make_decoder(cfg, task).to(DEVICE).train()
        tuned = LanguageModule(decoder, task, cfg).configure_optimizers()
        self.decoder, self.seed, self.clip, self.first = decoder, cfg.seed, task.optim.clip, 0
        self.optimizer, self.schedule = tuned["optimizer"], tuned["lr_scheduler"]["scheduler"]
        mixed = precision(cfg.trainer.precision, cfg.trainer.accelerator) == "bf16-mixed"
        self.context: Callable[[], Any] = lambda: torch.autocast(
            DEVICE.type, torch.bfloat16, enabled=mixed
        )

    def step(self, batch: Batch) -> None:
        """Forward, backward, clip, update."""
        inputs, labels = batch["inputs"].to(DEVICE), batch["labels"].to(DEVICE)
        with self.context():
            logits = self.decoder(
                inputs, sampler=RowSampler(self.seed, "positions", first=self.first)
            )
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE
            )
        self.first += len(inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


def now() -> tuple[float, float]:
    """Clock and processor time, once the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def elapsed(since: tuple[float, float]) -> tuple[float, float]:
    """The seconds since then, by the clock and of the processor."""
    clock, processor = now()
    return clock - since[0], processor - since[1]


if __name__ == "__main__":
    sys.exit(main())
