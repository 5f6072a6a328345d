"""Benchmarks of lm-eval: its own from the hub, a folder of task YAMLs, or small generated ones."""

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tape_exp.data import builtin
from tape_exp.data.hub import hub, reach, reason
from tape_exp.data.tokenizers import Tokenizer, writing_cache
from tape_exp.machine.files import write_atomically
from tape_exp.settings.errors import ConfigError, did_you_mean

log = logging.getLogger("tape_exp")
OFFLINE = (
    "Two sources need no network: task.source=local with task.path=<a folder of lm-eval task YAMLs "
    "and their data> and task.trust=true, and task.source=builtin."
)
# The first of them that a benchmark has is the one that is reported. RULER's metrics are named by
# the length in tokens, and all that were asked are reported.
METRICS = ("acc_norm", "acc", "exact_match")
# Of the text itself, as wikitext and lambada have them: named each, and no percentages.
PERPLEXITIES = ("word_perplexity", "byte_perplexity", "bits_per_byte", "perplexity")
RULER = (4096, 8192, 16384, 32768, 65536, 131072)
NOT_ASKED = -1  # RULER's value of a length without questions
DOCUMENT_SEED = 0
FEW_SHOT_SEED = 1234  # lm-eval's own
Measured = dict[str, tuple[float, float | None]]
"""Percent, or a perplexity, and standard error (None of a single document) by metric."""


def check_source(source: str, path: str | None, trust: bool = False) -> None:
    """Refuse at once what cannot be read: lm-eval is missing, no such folder, a folder that is not
    trusted. Raises :class:`ConfigError`.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "task=benchmarks needs the package lm-eval; install it with pip install lm-eval, in a "
            "clone with pip install -c constraints.txt -e '.[eval]'."
        )
    if source == "local" and (path is None or not Path(path).expanduser().is_dir()):
        raise ConfigError(
            f"task.path={path} is not a folder; task.source=local needs one of lm-eval task YAMLs "
            "and their data. task.source=builtin needs none."
        )
    if source == "local" and not trust:
        raise ConfigError(
            f"task.path={path} can run any code: lm-eval calls what !function, metrics and "
            "templates of its YAMLs name. Read them, then add task.trust=true."
        )


def load(
    names: Sequence[str],
    source: str,
    path: str | None,
    cache: Path,
    shots: int | None = None,
    needed: dict[str, Any] | None = None,
) -> Any:
    """lm-eval's task objects with their documents: ``tasks``, ``groups`` and ``group_map`` by name.

    Args:
        names: of tasks, groups or tags.
        source: ``hub``; ``local``, where relative paths in a YAML count from the folder;
            ``builtin``.
        path: local: the folder.
        cache: a folder for generated and prepared data; what is fetched from the hub is in the
            hub's own cache.
        shots: solved examples before each question; null: the benchmark's own number, else 0. A
            benchmark that fixes 0 keeps it, as in lm-eval.
        needed: what benchmarks take that make their documents: :func:`ruler`.

    Raises:
        ConfigError: an unknown name, or what lm-eval says of a YAML or of data it cannot read.
    """
    folder = Path(str(path)).expanduser().resolve() if source == "local" else None
    if source == "builtin":
        folder = builtin.write_benchmarks(cache.resolve() / "benchmarks" / "builtin")
    with _quiet(), _seeded(), contextlib.redirect_stdout(io.StringIO()):
        from lm_eval.tasks import TaskManager

        own = {} if folder is None else {"include_path": folder, "include_defaults": False}
        manager = TaskManager(metadata=needed, **own)
        for name in names:
            if name not in manager.task_index:
                listed = "`lm-eval ls tasks` lists them."
                known = listed if folder is None else f"Known: {', '.join(manager.all_tasks)}."
                raise ConfigError(
                    f"task.tasks: {name}{did_you_mean(name, manager.all_tasks)} {known}"
                )
        loaded = _loaded(manager, list(names), folder, cache)
        for task in loaded["tasks"].values():
            _check_metric(task)
            fixed = task.get_config("num_fewshot")
            solved = fixed or 0 if shots is None or fixed == 0 else shots
            task.set_config(key="num_fewshot", value=solved)
            task.set_fewshot_seed(seed=FEW_SHOT_SEED)
    return loaded


def evaluate(model: Any, loaded: Any, limit: int | None = None) -> dict[str, dict[str, Any]]:
    """lm-eval's results of each task and group for an ``LM``, from ``limit`` documents a task."""
    from lm_eval.evaluator import evaluate as evaluate_

    with _quiet():
        report = evaluate_(model, loaded, limit=limit, bootstrap_iters=1000, log_samples=False)
    assert report is not None
    return {name: dict(row) for name, row in report["results"].items()}


def metrics_of(result: dict[str, Any]) -> Measured:
    """What a benchmark measured, the reported metric first; of answers that several filters read
    each, as ``exact_match,strict-match``.
    """
    metrics: Measured = {}
    lengths = sorted({name for key in result if is_length(name := key.partition(",")[0])}, key=int)
    for metric in (*METRICS, *PERPLEXITIES, *lengths):
        scale = 1 if metric in PERPLEXITIES else 100
        keys = [key for key in result if key.startswith(f"{metric},")]
        for key in keys:
            if metric in lengths and result[key] == NOT_ASKED:
                continue
            error = result.get(key.replace(",", "_stderr,", 1))
            error = scale * float(error) if isinstance(error, int | float) else None
            metrics[metric if len(keys) == 1 else key] = scale * float(result[key]), error
    return metrics


def reported(name: str, result: dict[str, Any]) -> Measured:
    """What the record keeps of a benchmark: one metric by its name, ``<name>/<filter>`` of each
    filter, or ``<name>@<length>`` of each length; and every perplexity, ``<name>/<metric>``.
    """
    metrics = metrics_of(result)
    if lengths := {f"{name}@{key}": value for key, value in metrics.items() if is_length(key)}:
        return lengths
    first = next(iter(metrics)).partition(",")[0]
    kept: Measured = {}
    for key, value in metrics.items():
        metric, _, filter_ = key.partition(",")
        named = metric if metric in PERPLEXITIES else ""
        if named or metric == first:
            kept["/".join(filter(None, (name, named, filter_)))] = value
    return kept


def is_length(metric: str) -> bool:
    """Whether a metric is the score at a length, as RULER's ``4096`` is."""
    return metric.isdecimal()


def fingerprint(loaded: Any) -> str:
    """A hash of every document, each task's first prompt, and its number of solved examples."""
    digest = hashlib.sha256()
    for name, task in sorted(loaded["tasks"].items()):
        first = str(task.doc_to_text(task.eval_docs[0]))
        digest.update(json.dumps([name, task.get_config("num_fewshot"), first]).encode())
        for document in task.eval_docs:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def ruler(tokenizer: Tokenizer, longest: int, cache: Path) -> dict[str, Any]:
    """What RULER's tasks take, whose prompts fill their length: a tokenizer and the lengths."""
    if longest < RULER[0]:
        raise ConfigError(
            f"task.tasks: RULER asks at {RULER[0]} tokens and more, and the model takes {longest}; "
            f"set task.longest={RULER[0]}, or use task=passkey, which asks at any length."
        )
    folder = cache.resolve() / "benchmarks" / "tokenizers" / tokenizer.fingerprint
    with writing_cache(cache):
        write_atomically(folder / "tokenizer.json", tokenizer.save())
        kind = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
        write_atomically(folder / "tokenizer_config.json", kind)
    lengths = [length for length in RULER if length <= longest]
    return {"tokenizer": str(folder), "max_seq_lengths": lengths}


def _loaded(manager: Any, names: list[str], folder: Path | None, cache: Path) -> Any:
    """The benchmarks, without a network where they are there, else from the hub."""
    try:
        with _reading(cache, folder, offline=True):
            return manager.load(names)
    # lm-eval and datasets raise whatever a wrong YAML, or one whose data is elsewhere, leads to.
    except Exception as error:
        if folder is not None or isinstance(error, ImportError):
            why = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"task.tasks={names} cannot be loaded from {folder or 'lm-eval'} ({why}). "
                "Correct it or its data, or install the package that is missing."
            ) from error
    with hub("task.source=hub", OFFLINE):
        reach()
    log.info("Fetching %s from the hub.", ", ".join(names))
    try:
        with _reading(cache, None, offline=False):
            return manager.load(names)
    except Exception as error:
        raise ConfigError(f"task.tasks={names}: {reason(error)} {OFFLINE}") from error


def _check_metric(task: Any) -> None:
    known = list(task.aggregation())
    if not {*METRICS, *PERPLEXITIES} & set(known) and not any(map(is_length, known)):
        raise ConfigError(
            f"task.tasks: {task.task_name} reports {', '.join(known)}; task=benchmarks takes "
            f"benchmarks that report one of {', '.join((*METRICS, *PERPLEXITIES))}, or RULER's "
            "scores by length."
        )


@contextlib.contextmanager
def _reading(cache: Path, folder: Path | None, offline: bool) -> Iterator[None]:
    """Read documents with prepared data in the cache, paths from a folder, perhaps no network."""
    prepared = cache.resolve() / "benchmarks" / "datasets"
    import datasets
    from huggingface_hub import constants

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(datasets.config, "HF_DATASETS_CACHE", prepared))
        if offline:
            stack.enter_context(patch.object(datasets.config, "HF_HUB_OFFLINE", True))
            stack.enter_context(patch.object(constants, "HF_HUB_OFFLINE", True))
        if folder is not None:
            stack.enter_context(contextlib.chdir(folder))
        yield


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Documents that are drawn from global random numbers are the same each time."""
    before, arrays = random.getstate(), np.random.get_state()
    random.seed(DOCUMENT_SEED)
    np.random.seed(DOCUMENT_SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(arrays)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval's remarks and bars, of which there would be several a benchmark."""
    loggers = [logging.getLogger("lm_eval"), logging.getLogger("datasets")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
