"""Models: built as a run would begin them, trained as a run, evaluated on a task."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch

from tape_exp.models.decoder import Decoder
from tape_exp.results.record import Record
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.llama_base import apply_llama_config
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal
from tape_exp.tasks.base import Task
from tape_exp.training.callbacks import track
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.loaded_run import LoadedRun, load
from tape_exp.training.on_device import OnDevice
from tape_exp.training.run import run


def build(
    model: str = "tape", *overrides: str, task: str = "arithmetic", scale: str = "smoke"
) -> tuple[Decoder, Task]:
    """Build a model as a run would begin to train it, and its task, whose data are ready.

    Example::

        decoder, task = te.build("rope", "task.arch.layers=2", task="arithmetic")
        batch = task.train_batch(first=0, count=4)  # inputs and labels (B, T) of the stream
        logits = decoder(batch["inputs"])  # (B, T, V)

    Args:
        model, task, scale: what the command line names in ``model=``, ``task=`` and ``scale=``.
        overrides: any others of the command line, as ``"seed=1"`` or ``"task.arch.layers=2"``.

    Returns:
        The decoder, with its first weights or those of ``checkpoint=``, and the task.

    Raises:
        ConfigError: there is no such config, or it cannot be built.
    """
    cfg = compose_config([f"model={model}", f"task={task}", f"scale={scale}", *overrides])
    start = starting_checkpoint(cfg)
    if start:
        cfg = apply_llama_config(cfg, start)
    built_task = make_task(cfg, start)
    built_task.prepare_data()
    return make_decoder(cfg, built_task), built_task


def train(*overrides: str, quiet: bool = False, **choices: Any) -> LoadedRun:
    """Train and evaluate what ``tape-exp train <overrides>`` would.

    A run that is finished already is not repeated; one that was interrupted is resumed.

    Example::

        run = te.train("task.optim.max_steps=100", model="tape", task="arithmetic", quiet=True)
        run.generate("21+9=")

    Args:
        quiet: print nothing; the run's log.txt has all lines.
        choices: ``model="tape"`` is the override ``"model=tape"``.

    Returns:
        The run, as ``te.load`` gives it.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
    """
    words = [*overrides]
    for key, value in choices.items():
        words.append(f"{key}={value if isinstance(value, str) else literal(value)}")
    cfg = compose_config(words)
    out = io.StringIO() if quiet else sys.stdout
    err = io.StringIO() if quiet else sys.stderr
    with redirect_stdout(out), redirect_stderr(err):
        run(cfg)
        return load(RunDirectory(cfg).path)


def evaluate(model: LoadedRun | Decoder, *overrides: str, task: Task | None = None) -> Record:
    """Evaluate a model in fp32 on the device it is on.

    Example::

        te.evaluate(run, "task.test_digits=14")["metrics"]  # a run on longer sums
        te.evaluate(decoder, task=task)["metrics"]  # a decoder that any loop has trained

    Args:
        model: a run, which stays as it was trained; or a decoder of any loop, with its ``task``.
        overrides: for a run, what differs from its own config, as ``"task.test_digits=8"``, or
            another task, as ``"task=passkey"``.
        task: of a decoder, as :func:`build` gives it.

    Returns:
        A record with ``metrics``, and of a run its config.

    Raises:
        ConfigError: there is no such task, its tokens are not the model's, an override does not
            concern the evaluation or says what was trained, or a decoder comes without its task.
    """
    if isinstance(model, LoadedRun):
        if task is not None:
            raise ConfigError("evaluate takes task= of a decoder; of a run it takes overrides.")
        return _evaluate_run(model, overrides)
    if task is None:
        raise ConfigError("evaluate takes a run, or a decoder and task=, as te.build gives them.")
    return _evaluate_decoder(model, task)


def _evaluate_run(run: LoadedRun, overrides: tuple[str, ...]) -> Record:
    """Evaluate a run's model; the record has the run's name, seed, time and commit."""
    task, config = run.on(*overrides)
    if task.vocabulary != run.task.vocabulary:
        raise ConfigError(
            f"the task's symbols are not the {run.model.arch.vocab} that the model was trained "
            "on, so that its tokens would stand for others."
        )
    task.prepare_data()
    facts = {name: run.record[name] for name in ("run", "seed", "started", "git")}
    return Record({**facts, "config": config, **_evaluate_decoder(run.model, task)})


def _evaluate_decoder(decoder: Decoder, task: Task) -> Record:
    """Evaluate a decoder, which goes on training afterwards if it did before."""
    if task.arch.vocab > decoder.arch.vocab:
        raise ConfigError(f"the task has {task.arch.vocab} tokens, the model {decoder.arch.vocab}.")
    training = decoder.training
    on_device = OnDevice(decoder.eval(), decoder.head.weight.device)
    try:
        with torch.no_grad():
            evaluation = task.evaluate(on_device, track)
    finally:
        decoder.train(training)
    facts = {"knows_digits": True} if decoder.knows_digits() else {}
    return Record({**facts, "metrics": evaluation.metrics, **evaluation.for_record()})
