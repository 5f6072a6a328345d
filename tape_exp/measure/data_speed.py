"""``python -m tape_exp.measure.data_speed``: does data keep up? Tokenising, the second start,
waiting in training, evaluation.

Leaves ``results/speed/data-<machine>.json``. ``--gigabyte`` also tokenises 1 GB of local text (some
minutes) and states the memory that it takes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tape_exp.data.sources import Text
from tape_exp.machine.hardware import machine_name
from tape_exp.measure.results import add_folder, spread, write_record
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.runs.record import environment_info
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.tasks.perplexity import Windows, score, window_batch, window_batches
from tape_exp.training.assembly import make_decoder, make_task
from tape_exp.training.logs import set_up_logging
from tape_exp.training.module import OnDevice
from tape_exp.training.run import run

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@command
def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.data_speed",
        description="Measure whether data keeps up: tokenising, the second start, waiting in "
        "training, and evaluation.",
    )
    add_folder(parser, "data")
    parser.add_argument(
        "--gigabyte",
        action="store_true",
        help="also tokenise 1 GB of local text, which takes some minutes",
    )
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    set_up_logging(None, "none")
    record: dict[str, Any] = {"machine": machine_name(DEVICE), **environment_info()}
    figures: dict[str, Callable[[Path], Any]] = {
        "tokenising_mb_per_second_one_core": tokenising,
        "second_start_seconds": second_start,
        "data_wait_percent_of_a_step": waiting,
        "evaluation_over_bare_forward": evaluation,
    }
    if given.gigabyte:
        figures["one_gigabyte"] = gigabyte
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in figures.items():
            record[name] = figure(Path(folder))
            write_record("data", record, given.out, finished=False)
    path = write_record("data", record, given.out)
    print(
        json.dumps(
            {k: v for k, v in record.items() if k not in ("packages", "hardware", "git")}, indent=1
        )
    )
    print(path)
    return 0


def smoke(folder: Path, *words: str) -> Any:
    """The config of pre-training at scale smoke, with everything it writes below ``folder``."""
    fixed = [
        "task=c4",
        "model=rope",
        "logger=none",
        "trainer.progress=none",
        f"runs={folder}/runs",
        f"cache={folder}/cache",
    ]
    return compose_config([*fixed, *words])


def tokenising(folder: Path, times: int = 5) -> dict[str, float]:
    """Megabytes of built-in text a second, read, cut by the BPE and packed to disk on one core."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rates = []
    for number in range(times):
        task: Any = make_task(smoke(folder / "shared"))
        task.prepare_data()
        task.placed_in(replace(task.surroundings, cache=folder / str(number)))
        began = time.perf_counter()
        tokens = task.tokens(task.text, "train")
        rates.append(tokens.facts["bytes"] / 1e6 / (time.perf_counter() - began))
    os.environ.pop("TOKENIZERS_PARALLELISM")
    if before is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = before
    return spread(rates)


def second_start(folder: Path, times: int = 5) -> dict[str, float]:
    """Seconds until a task whose tokens are cached is ready, the corpus's fingerprint included."""
    make_task(smoke(folder)).prepare_data()
    seconds = []
    for _ in range(times):
        task = make_task(smoke(folder))
        began = time.perf_counter()
        task.prepare_data()
        seconds.append(time.perf_counter() - began)
    return spread(seconds)


def waiting(folder: Path, steps: int = 60) -> dict[str, float]:
    """Percent of the time of training steps in which the model waits for data, as a run logs it."""
    cfg = smoke(
        folder, f"task.optim.max_steps={steps}", "task.windows.tokens=256", "trainer.log_every=5"
    )
    run(cfg)
    rows = read_metrics(RunDirectory(cfg).path / "metrics.jsonl")
    return spread([row["train/data_wait"] for row in rows if "train/data_wait" in row])


def evaluation(folder: Path, times: int = 9) -> dict[str, Any]:
    """The speed of an evaluation relative to its forward passes, timed in turn, by length."""
    cfg = smoke(folder)
    task: Any = make_task(cfg)
    task.prepare_data()
    decoder = make_decoder(cfg, task).to(DEVICE).eval()
    model = OnDevice(decoder, DEVICE)
    tokens = task.scored["github"]
    ratios: dict[str, Any] = {}
    for length in task.windows.lengths:
        windows = Windows(
            (length,), tokens=task.windows.tokens, tokens_per_batch=task.windows.tokens_per_batch
        )
        batches = [
            window_batch(tokens, windows, length, starts)["inputs"]
            for starts in window_batches(tokens, windows, length)
        ]

        def whole(windows: Windows = windows, length: int = length) -> None:
            score(model, tokens, windows, length, "", lambda items, _: items)

        def bare(batches: list[torch.Tensor] = batches) -> None:
            for batch in batches:
                model(batch)

        with torch.inference_mode():
            pairs = [(seconds(bare), seconds(whole)) for _ in range(times + 1)][1:]
        ratios[str(length)] = spread([forward / all_of_it for forward, all_of_it in pairs])
    return ratios


def seconds(work: Callable[[], None]) -> float:
    """The seconds that the work takes, the device's queue included."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def gigabyte(folder: Path) -> dict[str, float]:
    """Peak memory and rate of two processes, which tokenise 1 GB and 100 MB of .jsonl."""
    measured: dict[str, float] = {}
    source = [text for _, text in Text("builtin").documents("train")]
    for megabytes in (100, 1000):
        place = folder / f"{megabytes}mb"
        place.mkdir()
        with (place / "train.jsonl").open("w") as file:
            size = 0
            while size < megabytes * 1e6:
                for text in source:
                    size += file.write(json.dumps({"text": text}) + "\n")
        program = (
            "import sys; from tape_exp.measure.data_speed import tokenise_once; "
            "tokenise_once(*sys.argv[1:])"
        )
        command = [sys.executable, "-c", program, str(place), str(folder / "cache")]
        printed = json.loads(
            subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        measured[f"peak_mb_of_{megabytes}_mb"] = printed["peak_mb"]
        measured[f"mb_per_second_of_{megabytes}_mb"] = printed["mb_per_second"]
    return measured


def tokenise_once(path: str, cache: str) -> None:
    """Tokenise a folder and print peak memory and rate."""
    task: Any = make_task(smoke(Path(cache).parent))
    task.prepare_data()
    began = time.perf_counter()
    tokens = task.tokens(Text("large", source="local", path=path), "train")
    rate = tokens.facts["bytes"] / 1e6 / (time.perf_counter() - began)
    print(json.dumps({"peak_mb": round(peak_memory(), 1), "mb_per_second": round(rate, 2)}))


def peak_memory() -> float:
    """The peak memory of this process, in MB; on Linux, without that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        held = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(held.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
