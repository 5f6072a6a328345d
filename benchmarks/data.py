"""Does data keep up? Tokenising, the second start, waiting in training, and evaluation.

``python -m benchmarks.data`` writes a line of ``results/speed.jsonl``.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import DEVICE, parser, seconds, spread, write_record
from tape_exp.machine.hardware import machine_name
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.manifest import environment_info
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.tasks.perplexity import Windows, score, window_batch, window_batches
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.on_device import OnDevice
from tape_exp.training.run import run


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the record."""
    args = parser("data", "Whether data keeps up.").parse_args(arguments)
    record: dict[str, Any] = {"machine": machine_name(DEVICE), **environment_info()}
    figures: dict[str, Callable[[Path], Any]] = {
        "tokenising_mb_per_second_one_core": tokenising,
        "second_start_seconds": second_start,
        "data_wait_percent_of_a_step": waiting,
        "evaluation_over_bare_forward": evaluation,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in figures.items():
            record[name] = figure(Path(folder))
            print(name, json.dumps(record[name]), flush=True)
            path = write_record("data", record, args.out)
    print(path)
    return 0


def smoke(folder: Path, *words: str) -> Any:
    """The config of pre-training at scale smoke, with everything it writes below ``folder``."""
    fixed = ["task=c4", "model=rope", "logger=none"]
    return compose_config([*fixed, f"runs={folder}/runs", f"cache={folder}/cache", *words])


def tokenising(folder: Path, times: int = 5) -> dict[str, float]:
    """Megabytes of built-in text a second, read, cut by the BPE and packed to disk on one core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rates = []
    for number in range(times):
        task: Any = make_task(smoke(folder / "shared"))
        task.prepare_data()
        task.run_context = replace(task.run_context, cache=folder / str(number))
        began = time.perf_counter()
        tokens = task.tokens(task.text, "train")
        took = time.perf_counter() - began
        rates.append(tokens.bytes(task.tokenizer.decode) / 1e6 / took)
    del os.environ["TOKENIZERS_PARALLELISM"]
    return spread(rates)


def second_start(folder: Path, times: int = 5) -> dict[str, float]:
    """Seconds until a task whose tokens are cached is ready, the corpus's fingerprint included."""
    make_task(smoke(folder)).prepare_data()
    return spread([seconds(make_task(smoke(folder)).prepare_data) for _ in range(times)])


def waiting(folder: Path, steps: int = 60) -> dict[str, float]:
    """Percent of the time of training steps in which the model waits for data, as a run logs it."""
    fewer = [f"task.optim.max_steps={steps}", "task.windows.tokens=256", "trainer.log_every=5"]
    run(cfg := smoke(folder, *fewer))
    rows = read_metrics(RunDirectory(cfg).metrics)
    return spread([row["train/data_wait"] for row in rows if "train/data_wait" in row])


def evaluation(folder: Path, times: int = 9) -> dict[str, Any]:
    """The speed of an evaluation relative to its forward passes, timed in turn, by length."""
    task: Any = make_task(cfg := smoke(folder))
    task.prepare_data()
    model = OnDevice(make_decoder(cfg, task).to(DEVICE).eval(), DEVICE)
    tokens, limits, ratios = task.scored["github"], task.windows, {}
    for length in limits.lengths:
        windows = Windows((length,), tokens=limits.tokens, tokens_per_batch=limits.tokens_per_batch)
        starts = window_batches(tokens, windows, length)
        batches = [window_batch(tokens, windows, length, one)["inputs"] for one in starts]

        whole = partial(score, model, tokens, windows, length, "", lambda items, _: items)
        bare = partial(lambda batches: [model(batch) for batch in batches], batches)
        with torch.inference_mode():
            pairs = [(seconds(bare), seconds(whole)) for _ in range(times + 1)][1:]
        ratios[str(length)] = spread([forward / all_of_it for forward, all_of_it in pairs])
    return ratios


if __name__ == "__main__":
    sys.exit(main())
