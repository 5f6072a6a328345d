"""Multiple-choice benchmarks by lm-eval: MMLU's four groups and ARC (table bench of the paper)."""

import contextlib
import io
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import patch

import numpy as np
from annotated_types import Ge, MinLen
from lightning.pytorch.utilities.seed import isolate_rng

from tape_exp.data import builtin
from tape_exp.data.hub import hub_errors, reach, reason
from tape_exp.data.text import Source, Text
from tape_exp.data.tokenizers import Tokenization, Tokenizer
from tape_exp.machine.files import short_hash, write_atomically
from tape_exp.runs.checkpoint_info import chat_template
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.schema import Arch, Count, Natural
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import TextTask

OFFLINE = "task.source=builtin needs no network, nor does task.source=local with a task.path."
# The first of them that a benchmark has is the one that is reported. RULER's metrics are named by
# the length in tokens, and all that were asked are reported.
METRICS = ("acc_norm", "acc", "exact_match")
# Of the text itself, as wikitext and lambada have them: named each, and no percentages.
PERPLEXITIES = ("word_perplexity", "byte_perplexity", "bits_per_byte", "perplexity")
RULER = (4096, 8192, 16384, 32768, 65536, 131072)
NOT_ASKED = -1  # RULER's value of a length without questions
FEW_SHOT_SEED = 1234  # lm-eval's own
Measured = dict[str, tuple[float, float | None]]
"""Percent, or a perplexity, and standard error (None of a single document) by metric."""


class Benchmarks(TextTask):
    """Benchmarks of the model of ``checkpoint=``, or of an untrained one; nothing is trained.

    Metrics, in percent: ``benchmarks/<group>`` of every group that adds up its subjects,
    ``benchmarks/<task>`` of every task outside of such groups, and ``…_stderr``, lm-eval's standard
    error over questions (of a group pooled over its subjects); ``builtin_benchmarks/…`` of the
    generated set. MMLU has one metric, the accuracy of the letter. Of ARC it is ``acc_norm``, the
    choice with the highest log-likelihood per character: the paper names no metric, but its ARC
    numbers are near acc_norm of Llama-2-7B, and its MMLU numbers near those without solved
    examples, lm-eval's default. RULER's tasks are ``benchmarks/<task>@<length>``, in tokens,
    perplexities ``benchmarks/<task>/<metric>``. The table has every subject and metric.

    Args:
        tasks: lm-eval's names of tasks, groups or tags.
        source: ``hub``; ``local``, lm-eval task YAMLs in the folder ``path``, which can run any
            code and are read only with ``trust``; ``builtin``, a small generated set.
        questions: the version of the generated set; records of another asked other questions.
        longest: tokens of an input; what is longer loses its beginning, as in lm-eval; null: what
            a Llama was trained on, else ``train_length``.
        shots: solved examples before each question; null: the task's own number, else 0.
        limit: documents a task, from its beginning; null: all.
        chat: a question is the user's turn in the template of a chat that the Llama has, solved
            examples are turns before it, and the model answers as the assistant; as lm-eval's
            ``--apply_chat_template --fewshot_as_multiturn``.

    Raises:
        ConfigError: ``chat`` for a model that has no template of a chat.
    """

    trains = False

    def __init__(
        self,
        arch: Arch,
        seed: int,
        tasks: Annotated[tuple[str, ...], MinLen(1)],
        tokenizer: Tokenization,
        train_length: Count,
        longest: Annotated[int, Ge(2)] | None = None,
        source: Source = "builtin",
        path: str | None = None,
        trust: bool = False,
        shots: Natural | None = None,
        limit: Count | None = None,
        rows_per_batch: Count = 64,
        chat: bool = False,
        questions: Literal[2] = 2,
    ) -> None:
        super().__init__(arch, seed, Text("builtin"), tokenizer, train_length)
        self.chat = chat
        self.cuts = longest is not None
        self.longest = longest or train_length
        self.set_max_length(self.longest)
        self.names = list(tasks)
        self.source = source
        self.path = path
        self.trust = trust
        self.shots = shots
        self.limit = limit
        self.rows_per_batch = rows_per_batch

    def prepare(self) -> None:
        checkpoint = self.run_context.checkpoint
        cache = self.run_context.cache
        if not self.cuts and checkpoint and checkpoint.is_dir():
            self.longest = self.trained_tokens()
        self.template = self._chat_template() if self.chat else None
        needed = None
        if self.longest >= RULER[0] or any("ruler" in name for name in self.names):
            needed = ruler(self.tokenizer, self.longest, cache)
        folder = checked_folder(self.path, self.trust) if self.source == "local" else None
        if self.source == "builtin":
            folder = builtin.write_benchmarks(cache.resolve() / "benchmarks" / "builtin")
        self.loaded = load(self.names, folder, self.shots, needed)
        self._check_answers()

    def _chat_template(self) -> str:
        """The template in which questions are asked."""
        checkpoint = self.run_context.checkpoint
        template = chat_template(checkpoint) if checkpoint else None
        if template is None:
            raise ConfigError(
                "task.chat=true: the model has no template of a chat (chat_template.jinja, or "
                "chat_template in tokenizer_config.json); name one that has in checkpoint=, or "
                "leave task.chat out."
            )
        return template

    def _check_answers(self) -> None:
        """Refuse what the model would not answer as asked, before it answers anything."""
        from tape_exp.models.harness import answer_options

        for task in self.loaded["tasks"].values():
            if task.OUTPUT_TYPE == "generate_until":
                answer_options(task.get_config("generation_kwargs"), self.longest)

    def fingerprint(self) -> str:
        """A hash of every document, each task's first prompt, and its number of examples."""
        content = []
        for name, task in sorted(self.loaded["tasks"].items()):
            first = str(task.doc_to_text(task.eval_docs[0]))
            content.append(json.dumps([name, task.get_config("num_fewshot"), first]))
            for document in task.eval_docs:
                content.append(json.dumps(document, sort_keys=True, default=str))
        return short_hash(content)

    def metric_names(self) -> list[str]:
        """lm-eval says what is in a group when it is loaded."""
        return [f"{Text('benchmarks', self.source).label}/*"]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question; ``limit`` stops after as many documents of each task."""
        from tape_exp.models.harness import Harness

        documents = min((n for n in (limit, self.limit) if n is not None), default=None)
        rows = self.rows_per_batch
        harness = Harness(model, self.tokenizer, self.longest, rows, progress, self.template)
        results = results_of(harness, self.loaded, documents, self.chat)
        metrics: dict[str, float] = {}
        kind = Text("benchmarks", self.source).label
        for name in self._reported_names():
            for key, (value, error) in reported(name, results[name]).items():
                metrics[f"{kind}/{key}"] = value
                if error is not None:
                    metrics[f"{kind}/{key}_stderr"] = error
        return Evaluation(metrics, tables={"benchmarks": self._table(results)})

    def _reported_names(self) -> list[str]:
        """Groups that add up their subjects, and the tasks outside of such groups."""
        groups = []
        subjects: set[str] = set()
        for name, group in self.loaded["groups"].items():
            if group.has_aggregation:
                groups.append(name)
                subjects.update(task.task_name for task in group.get_all_tasks())
        return groups + [name for name in self.loaded["tasks"] if name not in subjects]

    def _table(self, results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """A row for each task: its group, documents, solved examples, and metrics with errors."""
        group_of: dict[str, str] = {}
        for group, children in self.loaded["group_map"].items():
            group_of.update(dict.fromkeys(children, group))
        rows = []
        for name, task in self.loaded["tasks"].items():
            row = {
                "task": name,
                "group": group_of.get(name, ""),
                "version": str(task.VERSION),
                "documents": results[name]["sample_len"],
                "shots": task.get_config("num_fewshot"),
            }
            for metric, (value, error) in metrics_of(results[name]).items():
                row[metric] = round(value, 4)
                row[f"{metric}_stderr"] = None if error is None else round(error, 4)
            rows.append(row)
        return rows


def checked_folder(path: str | None, trust: bool) -> Path:
    """The folder of a local source, which must be trusted."""
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


def load(
    names: Sequence[str],
    folder: Path | None = None,
    shots: int | None = None,
    needed: dict[str, Any] | None = None,
) -> Any:
    """lm-eval's task objects with their documents: ``tasks``, ``groups`` and ``group_map`` by name.

    Args:
        folder: of YAMLs, from which their relative paths count; None: lm-eval's own, with data of
            the hub, or of its cache where the hub cannot be reached.
        shots: as of :class:`Benchmarks`; one that fixes 0 keeps it, as in lm-eval.
        needed: what benchmarks take that make their documents: :func:`ruler`.
    """
    places = {} if folder is None else {"include_path": folder, "include_defaults": False}
    # Documents that are drawn from global random numbers are the same each time.
    with _quiet(), isolate_rng(), contextlib.redirect_stdout(io.StringIO()):
        from lm_eval.tasks import TaskManager

        random.seed(0)
        np.random.seed(0)
        manager = TaskManager(metadata=needed, **places)
        for name in names:
            if name not in manager.task_index:
                hint = "`lm-eval ls tasks` lists them."
                if folder is not None:
                    hint = f"Known: {', '.join(manager.all_tasks)}."
                raise ConfigError(
                    f"task.tasks: {name}{did_you_mean(name, manager.all_tasks)} {hint}"
                )
        offline = True
        if folder is None:
            with contextlib.suppress(*hub_errors()):
                reach()
                offline = False
        with contextlib.chdir(folder or "."), _offline(offline):
            try:
                loaded = manager.load(list(names))
            # lm-eval and datasets raise whatever a wrong YAML or data elsewhere leads to.
            except Exception as error:
                of_hub = folder is None and not isinstance(error, ImportError)
                why = f"{reason(error)} {OFFLINE}" if of_hub else repr(error)
                where = folder or "lm-eval"
                raise ConfigError(
                    f"task.tasks={list(names)} cannot be loaded from {where}: {why}"
                ) from error
    for task in loaded["tasks"].values():
        if not metrics_of({f"{metric},": 0.0 for metric in task.aggregation()}):
            raise ConfigError(
                f"task.tasks: {task.task_name} reports {', '.join(task.aggregation())}; "
                f"task=benchmarks takes benchmarks that report one of "
                f"{', '.join((*METRICS, *PERPLEXITIES))}, or RULER's scores by length."
            )
        examples = task.get_config("num_fewshot") or 0
        if shots is not None and task.get_config("num_fewshot") != 0:
            examples = shots
        task.set_config(key="num_fewshot", value=examples)
        task.set_fewshot_seed(seed=FEW_SHOT_SEED)
    return loaded


def results_of(
    model: Any, loaded: Any, limit: int | None = None, chat: bool = False
) -> dict[str, dict[str, Any]]:
    """lm-eval's results of each task and group for an ``LM``, from ``limit`` documents a task;
    with ``chat`` by its ``apply_chat_template``.
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


def metrics_of(result: dict[str, Any]) -> Measured:
    """What a benchmark measured, the reported metric first; of answers that several filters read
    each, as ``exact_match,strict-match``.

    ``{"acc,none": 0.25, "acc_stderr,none": 0.1}`` gives ``{"acc": (25.0, 10.0)}``.
    """
    metrics: Measured = {}
    lengths = sorted(filter(str.isdecimal, {key.partition(",")[0] for key in result}), key=int)
    for metric in (*METRICS, *PERPLEXITIES, *lengths):
        scale = 1 if metric in PERPLEXITIES else 100
        keys = [k for k in result if k.startswith(f"{metric},") and result[k] != NOT_ASKED]
        for key in keys:
            error = result.get(key.replace(",", "_stderr,", 1))
            error = scale * float(error) if isinstance(error, int | float) else None
            metrics[metric if len(keys) == 1 else key] = scale * float(result[key]), error
    return metrics


def reported(name: str, result: dict[str, Any]) -> Measured:
    """What the record keeps of a benchmark: one metric by its name, ``<name>/<filter>`` of each
    filter, or ``<name>@<length>`` of each length; and every perplexity, ``<name>/<metric>``.

    Of ``arc_easy`` with acc_norm and acc it is ``arc_easy``, the value of acc_norm; of ``wikitext``
    ``wikitext/word_perplexity``, ``wikitext/byte_perplexity`` and ``wikitext/bits_per_byte``.
    """
    metrics = metrics_of(result)
    by_length = {f"{name}@{key}": value for key, value in metrics.items() if key.isdecimal()}
    if by_length:
        return by_length
    first = next(iter(metrics)).partition(",")[0]
    record: Measured = {}
    for key, value in metrics.items():
        metric, _, filter_ = key.partition(",")
        named = metric if metric in PERPLEXITIES else ""
        if named or metric == first:
            record["/".join(filter(None, (name, named, filter_)))] = value
    return record


def ruler(tokenizer: Tokenizer, longest: int, cache: Path) -> dict[str, Any]:
    """What RULER's tasks take, whose prompts fill their length: a tokenizer and the lengths."""
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
