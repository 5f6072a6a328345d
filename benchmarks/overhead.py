"""What a run adds to its training steps, compared with a bare PyTorch loop over the same batches.

``python -m benchmarks.overhead`` trains as ``train.py`` does, with data, W&B offline, callbacks and
checkpoints. After every few steps the run waits while the loop makes as many, so that both meet the
same machine.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from benchmarks.common import DEVICE, now, parser, spread, write_record
from tape_exp.data.batch import IGNORE, Batch
from tape_exp.machine.hardware import machine_name
from tape_exp.machine.seeding import RowSampler
from tape_exp.runs.manifest import environment_info
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.training import from_config
from tape_exp.training.module import LanguageModule
from tape_exp.training.run import run
from tape_exp.training.trainer import precision


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the record."""
    made = parser("overhead", "What a run adds to its steps, beside a bare loop.")
    made.add_argument("--rounds", type=int, default=26, help="of ten steps each (%(default)s)")
    args = made.parse_args(arguments)
    record: dict[str, Any] = {"machine": machine_name(DEVICE), **environment_info()}
    with tempfile.TemporaryDirectory() as folder:
        record["step_over_bare_loop"] = {
            task: overhead(smoke(Path(folder), task, args.rounds)) for task in ("arithmetic", "c4")
        }
    print(json.dumps(record["step_over_bare_loop"], indent=1))
    print(write_record("overhead", record, args.out))
    return 0


def smoke(folder: Path, task: str, rounds: int, *words: str, model: str = "rope") -> DictConfig:
    """The config at scale smoke, a round longer than ``rounds``, all written below ``folder``."""
    fixed = [f"task={task}", f"model={model}", "logger.mode=offline"]
    fixed += [f"runs={folder}/runs", f"cache={folder}/cache"]
    cfg = compose_config([*fixed, "debug=one_batch", "debug.max_steps=null", *words])
    cfg.task.optim.max_steps = cfg.trainer.log_every * (rounds + 1)
    return cfg


def overhead(cfg: DictConfig) -> dict[str, Any]:
    """Seconds of a step of the run over those of the bare loop.

    Returns median and quartiles over the rounds, the ratio of the ``whole``, which the checkpoint
    is a part of, and the milliseconds of a bare step.
    """
    beside = Beside(cfg)
    run(cfg, [beside])
    rounds = beside.rounds[1:]
    loop = sum(bare for _, bare in rounds)
    return {
        "clock": spread([run / bare for run, bare in rounds]),
        "whole": round(sum(run for run, _ in rounds) / loop, 4),
        "bare_step_ms": round(1000 * loop / len(rounds) / cfg.trainer.log_every, 2),
        "rounds": len(rounds),
    }


class Beside(Callback):
    """Every ``trainer.log_every`` steps, lets the bare loop make as many, and keeps their
    seconds, (run, bare).

    What follows the callbacks in a step of Lightning's, its report and its checkpoint, counts for
    the next round.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg, self.every = cfg, cfg.trainer.log_every
        self.rounds: list[tuple[float, float]] = []

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """The clock of the run begins."""
        self.loop = BareLoop(self.cfg, module.task)
        self.since = now()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Stop the run's clock while the loop has its turn."""
        step, task = trainer.global_step, self.loop.task
        if step % self.every:
            return
        run, rows = now() - self.since, task.optim.batch
        numbers = range(step - self.every, step)
        batches = [task.train_batch(number * rows, rows) for number in numbers]
        began = now()
        for made in batches:
            self.loop.step(made)
        self.rounds.append((run, now() - began))
        self.since = now()


class BareLoop:
    """The model, the optimizer and its schedule, and what a step of them needs."""

    def __init__(self, cfg: DictConfig, task: Any) -> None:
        self.task, self.seed, self.first = task, cfg.seed, 0
        self.decoder = from_config.make_decoder(cfg, task).to(DEVICE).train()
        tuned = LanguageModule(self.decoder, task, cfg).configure_optimizers()
        self.optimizer, self.schedule = tuned["optimizer"], tuned["lr_scheduler"]["scheduler"]
        self.mixed = precision(cfg.trainer.precision, cfg.trainer.accelerator) == "bf16-mixed"

    def step(self, batch: Batch) -> None:
        """Forward, backward, clip, update."""
        inputs, labels = batch["inputs"].to(DEVICE), batch["labels"].to(DEVICE)
        sampler = RowSampler(self.seed, "positions", first=self.first)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.mixed):
            logits = self.decoder(inputs, sampler=sampler).flatten(0, 1).float()
            loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE)
        self.first += len(inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.task.optim.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


if __name__ == "__main__":
    sys.exit(main())
