"""lm-eval's benchmarks: loaded, asked, and what of their results is reported."""

import contextlib
import io
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng

from tape_exp.data.hub import hub_errors, reach, reason
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import write_atomically
from tape_exp.settings.errors import ConfigError, did_you_mean

OFFLINE = "task.source=builtin needs no network, nor does task.source=local with a task.path."
# The first of them that a benchmark has is the one that is reported. RULER's metrics are named by
# the length in tokens, and all that were asked are reported.
METRICS = ("acc_norm", "acc", "exact_match")
# Of the text itself, as wikitext and lambada have them: named each, and no percentages.
PERPLEXITIES = ("word_perplexity", "byte_perplexity", "bits_per_byte", "perplexity")
RULER = (4096, 8192, 16384, 32768, 65536, 131072)
NOT_ASKED = -1  # RULER's value of a length without questions
FEW_SHOT_SEED = 1234  # lm-eval's own


class Score(NamedTuple):
    """What a benchmark measured: percent, or a perplexity."""

    value: float
    error: float | None  # the standard error; None of a single document


def checked_folder(path: str | None, trust: bool) -> Path:
    """Return the folder of a local source. Raises :class:`ConfigError` unless it is trusted."""
    folder = Path(path or "").expanduser().resolve()
    if path is None or not folder.is_dir():
        raise ConfigError(
            f"task.path={path} is not a folder; task.source=local needs one of lm-eval task YAMLs "
            "and their data."
        )
    if not trust:
        raise ConfigError(
            f"task.path={path} can run any code: lm-eval calls what !function, metrics and "
            "templates of its YAMLs name. Read them, then add task.trust=true."
        )
    return folder


def load_benchmarks(
    names: Sequence[str],
    folder: Path | None = None,
    shots: int | None = None,
    needed: dict[str, Any] | None = None,
) -> Any:
    """Load lm-eval's task objects with their documents: ``tasks``, ``groups`` and ``group_map`` by
    name.

    Args:
        folder: of YAMLs, from which their relative paths count; None: lm-eval's own, with data of
            the hub, or of its cache where the hub cannot be reached.
        shots: solved examples before each question; None: the task's own number, else 0. A task
            that fixes 0 keeps it, as in lm-eval.
        needed: what benchmarks take that make their documents: :func:`ruler`.

    Raises:
        ConfigError: there is no such benchmark, it cannot be loaded, or it reports nothing known.
    """
    # Documents that are drawn from global random numbers are the same each time.
    with _quiet(), isolate_rng(), contextlib.redirect_stdout(io.StringIO()):
        random.seed(0)
        np.random.seed(0)
        loaded = _load_documents(names, folder, needed)
    for task in loaded["tasks"].values():
        _require_metric(task)
        examples = task.get_config("num_fewshot") or 0
        if shots is not None and task.get_config("num_fewshot") != 0:
            examples = shots
        task.set_config(key="num_fewshot", value=examples)
        task.set_fewshot_seed(seed=FEW_SHOT_SEED)
    return loaded


def _load_documents(
    names: Sequence[str], folder: Path | None, needed: dict[str, Any] | None
) -> Any:
    """Let lm-eval load what the names name."""
    from lm_eval.tasks import TaskManager

    places = {} if folder is None else {"include_path": folder, "include_defaults": False}
    manager = TaskManager(metadata=needed, **places)
    for name in names:
        if name not in manager.task_index:
            hint = "`lm-eval ls tasks` lists them."
            if folder is not None:
                hint = f"Known: {', '.join(manager.all_tasks)}."
            raise ConfigError(f"task.tasks: {name}{did_you_mean(name, manager.all_tasks)} {hint}")
    offline = True
    if folder is None:
        with contextlib.suppress(*hub_errors()):
            reach()
            offline = False
    with contextlib.chdir(folder or "."), _offline(offline):
        try:
            return manager.load(list(names))
        # lm-eval and datasets raise whatever a wrong YAML or data elsewhere leads to.
        except Exception as error:
            of_hub = folder is None and not isinstance(error, ImportError)
            why = f"{reason(error)} {OFFLINE}" if of_hub else repr(error)
            where = folder or "lm-eval"
            raise ConfigError(
                f"task.tasks={list(names)} cannot be loaded from {where}: {why}"
            ) from error


def _require_metric(task: Any) -> None:
    """Raise :class:`ConfigError` where a benchmark reports no metric that is known here."""
    if not metrics_of({f"{metric},": 0.0 for metric in task.aggregation()}):
        raise ConfigError(
            f"task.tasks: {task.task_name} reports {', '.join(task.aggregation())}; "
            f"task=benchmarks takes benchmarks that report one of "
            f"{', '.join((*METRICS, *PERPLEXITIES))}, or RULER's scores by length."
        )


def results_of(
    model: Any, loaded: Any, limit: int | None = None, chat: bool = False
) -> dict[str, dict[str, Any]]:
    """Return lm-eval's results of each task and group for an ``LM``, from ``limit`` documents a
    task; with ``chat`` by its ``apply_chat_template``.
    """
    from lm_eval.evaluator import evaluate

    with _quiet():
        report = evaluate(
            model,
            loaded,
            limit=limit,
            bootstrap_iters=1000,
            log_samples=False,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
        )
    assert report is not None
    return {name: dict(row) for name, row in report["results"].items()}


def metrics_of(result: dict[str, Any]) -> dict[str, Score]:
    """Read what a benchmark measured, the reported metric first; of answers that several filters
    read each, as ``exact_match,strict-match``.

    >>> metrics_of({"acc,none": 0.25, "acc_stderr,none": 0.125})
    {'acc': Score(value=25.0, error=12.5)}
    """
    metrics = {}
    measures = {key.partition(",")[0] for key in result}
    lengths = sorted(filter(str.isdecimal, measures), key=int)
    for metric in (*METRICS, *PERPLEXITIES, *lengths):
        scale = 1 if metric in PERPLEXITIES else 100
        keys = [k for k in result if k.startswith(f"{metric},") and result[k] != NOT_ASKED]
        for key in keys:
            error = result.get(key.replace(",", "_stderr,", 1))
            error = scale * float(error) if isinstance(error, int | float) else None
            name = metric if len(keys) == 1 else key
            metrics[name] = Score(scale * float(result[key]), error)
    return metrics


def reported(name: str, result: dict[str, Any]) -> dict[str, Score]:
    """Choose what the record keeps of a benchmark: one metric by its name, ``<name>/<filter>`` of
    each filter, or ``<name>@<length>`` of each length; and every perplexity, ``<name>/<metric>``.

    >>> list(reported("arc_easy", {"acc,none": 0.25, "acc_norm,none": 0.5}).values())
    [Score(value=50.0, error=None)]
    >>> list(reported("wikitext", {"word_perplexity,none": 9.0, "bits_per_byte,none": 1.0}))
    ['wikitext/word_perplexity', 'wikitext/bits_per_byte']
    """
    metrics = metrics_of(result)
    by_length = {f"{name}@{key}": value for key, value in metrics.items() if key.isdecimal()}
    if by_length:
        return by_length
    first = next(iter(metrics)).partition(",")[0]
    record = {}
    for key, value in metrics.items():
        metric, _, filter_ = key.partition(",")
        named = metric if metric in PERPLEXITIES else ""
        if named or metric == first:
            record["/".join(filter(None, (name, named, filter_)))] = value
    return record


def ruler(tokenizer: Tokenizer, longest: int, cache: Path) -> dict[str, Any]:
    """Return what RULER's tasks take, whose prompts fill their length: a tokenizer and the
    lengths.
    """
    if longest < RULER[0]:
        raise ConfigError(
            f"task.tasks: RULER asks at {RULER[0]} tokens and more, and the model takes {longest}; "
            f"set task.longest={RULER[0]}, or use task=passkey, which asks at any length."
        )
    folder = cache.resolve() / "benchmarks" / "tokenizers" / tokenizer.fingerprint
    write_atomically(folder / "tokenizer.json", tokenizer.save())
    kind = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    write_atomically(folder / "tokenizer_config.json", kind)
    lengths = [length for length in RULER if length <= longest]
    return {"tokenizer": str(folder), "max_seq_lengths": lengths}


def _offline(offline: bool) -> contextlib.AbstractContextManager[Any]:
    """Read what is there, without trying the hub for half a minute for each data set."""
    import datasets
    from huggingface_hub import constants

    stack = contextlib.ExitStack()
    for module in (datasets.config, constants):
        stack.enter_context(patch.object(module, "HF_HUB_OFFLINE", offline))
    return stack


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Silence lm-eval's remarks and bars, of which there would be several a benchmark."""
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return contextlib.redirect_stderr(io.StringIO())
