"""Multiple-choice benchmarks by lm-eval: MMLU's four groups and ARC (table bench of the paper)."""

import json
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from tape_exp.data.builtin.benchmarks import write_benchmarks
from tape_exp.data.text import Source, Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.machine.files import short_hash
from tape_exp.results.evaluation import Evaluation
from tape_exp.runs.checkpoint_info import chat_template
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Natural
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.lm_eval_tasks import (
    RULER,
    checked_folder,
    load_benchmarks,
    metrics_of,
    reported,
    results_of,
    ruler,
)
from tape_exp.tasks.text import TextTask


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
        """Load the benchmarks, and refuse what the model would not answer as asked."""
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
            folder = write_benchmarks(cache.resolve() / "benchmarks" / "builtin")
        self.loaded = load_benchmarks(self.names, folder, self.shots, needed)
        self._check_answers()

    def _chat_template(self) -> str:
        """Read the template in which questions are asked."""
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
        """Hash every document, each task's first prompt, and its number of examples."""
        content = []
        for name, task in sorted(self.loaded["tasks"].items()):
            first = str(task.doc_to_text(task.eval_docs[0]))
            content.append(json.dumps([name, task.get_config("num_fewshot"), first]))
            for document in task.eval_docs:
                content.append(json.dumps(document, sort_keys=True, default=str))
        return short_hash(content)

    def metric_names(self) -> list[str]:
        """Accept every name: lm-eval says what is in a group when it is loaded."""
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
            for key, score in reported(name, results[name]).items():
                metrics[f"{kind}/{key}"] = score.value
                if score.error is not None:
                    metrics[f"{kind}/{key}_stderr"] = score.error
        return Evaluation(metrics, tables={"benchmarks": self._table(results)})

    def _reported_names(self) -> list[str]:
        """List groups that add up their subjects, and the tasks outside of such groups."""
        groups = []
        subjects: set[str] = set()
        for name, group in self.loaded["groups"].items():
            if group.has_aggregation:
                groups.append(name)
                subjects.update(task.task_name for task in group.get_all_tasks())
        return groups + [name for name in self.loaded["tasks"] if name not in subjects]

    def _table(self, results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Make a row for each task: its group, documents, solved examples, and metrics with
        errors.
        """
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
            for metric, score in metrics_of(results[name]).items():
                row[metric] = round(score.value, 4)
                row[f"{metric}_stderr"] = None if score.error is None else round(score.error, 4)
            rows.append(row)
        return rows
