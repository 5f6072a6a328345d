"""Multiple-choice benchmarks by lm-eval: MMLU's four groups and ARC (table bench of the paper)."""

from typing import Annotated, Any

from annotated_types import Ge

from tape_exp.data import benchmarks
from tape_exp.data.text import Source, Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count, Natural
from tape_exp.tasks.base import Model, NothingTrained, Progress
from tape_exp.tasks.text import TextTask


class Benchmarks(NothingTrained, TextTask):
    """Benchmarks of the model of ``checkpoint=``, or of an untrained one; nothing is trained.

    Metrics, in percent: ``benchmarks/<group>`` of every group that adds up its subjects,
    ``benchmarks/<task>`` of every task outside of such groups, and ``…_stderr``, lm-eval's standard
    error over questions (of a group pooled over its subjects). MMLU has one metric, the accuracy of
    the letter. Of ARC it is ``acc_norm``, the choice with the highest log-likelihood per character:
    the paper names no metric, but its ARC numbers are near acc_norm of Llama-2-7B, and its MMLU
    numbers near those without solved examples, lm-eval's default. The table has ``acc`` as well,
    and every subject. RULER's tasks are reported as ``benchmarks/<task>@<length>``, at its lengths
    up to ``longest``, in tokens of the tokenizer. Perplexities, as wikitext and lambada have them,
    are ``benchmarks/<task>/<metric>``. Metrics of the generated set begin with
    ``builtin_benchmarks/``.

    Args:
        tasks: lm-eval's names of tasks, groups or tags.
        source: ``hub``; ``local``, a folder of lm-eval task YAMLs; ``builtin``, a small generated
            set in their format.
        path: local: the folder. Relative paths in its YAMLs count from it.
        trust: local: whether the folder may be read at all, since its YAMLs can run any code.
        tokenizer: that of the run it begins from; without one, how text is cut (a BPE is trained on
            built-in text).
        train_length: the tokens that the model was trained on at once.
        longest: tokens of an input; what is longer loses its beginning, as in lm-eval; null: what
            a Llama was trained on, else ``train_length``.
        shots: solved examples before each question; null: the task's own number, else 0.
        limit: documents a task, from its beginning; null: all.
        rows_per_batch: of one forward pass.
    """

    def __init__(
        self,
        arch: Arch,
        seed: int,
        tasks: tuple[str, ...],
        tokenizer: Tokenization,
        train_length: Count,
        longest: Annotated[int, Ge(2)] | None = None,
        source: Source = "builtin",
        path: str | None = None,
        trust: bool = False,
        shots: Natural | None = None,
        limit: Count | None = None,
        rows_per_batch: Count = 64,
    ) -> None:
        if not tasks:
            raise ConfigError(
                "task.tasks must be a list of benchmarks, as in task.tasks=[mmlu,arc_easy]."
            )
        super().__init__(arch, seed, Text("builtin"), tokenizer, train_length)
        self.cuts, self.longest = longest is not None, longest or train_length
        self.reaches(self.longest)
        self.names, self.source, self.path, self.trust = list(tasks), source, path, trust
        self.shots, self.limit, self.rows_per_batch = shots, limit, rows_per_batch

    def prepare_data(self) -> None:
        """Refuse what cannot be read before a tokenizer is made."""
        if not self._prepared:
            benchmarks.check_source(self.source, self.path, self.trust)
        super().prepare_data()

    def prepare(self) -> None:
        """Read the documents."""
        checkpoint, cache = self.surroundings.checkpoint, self.surroundings.cache
        if not self.cuts and checkpoint and checkpoint.is_dir():
            self.longest = self.trained_tokens()
        needed = None
        if self.longest >= benchmarks.RULER[0] or any("ruler" in name for name in self.names):
            needed = benchmarks.ruler(self.tokenizer, self.longest, cache)
        read = (self.names, self.source, self.path, cache, self.shots, needed)
        self.loaded = benchmarks.load(*read)

    def fingerprint(self) -> str:
        """A hash of the questions."""
        return benchmarks.fingerprint(self.loaded)

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Ask every question; ``limit`` stops after as many documents of each task."""
        from tape_exp.models.harness import Harness

        documents = min((n for n in (limit, self.limit) if n is not None), default=None)
        harness = Harness(model, self.tokenizer, self.longest, self.rows_per_batch, progress)
        results = benchmarks.evaluate(harness, self.loaded, documents)
        metrics: dict[str, float] = {}
        kind = Text("benchmarks", self.source).label
        # Groups that add up their subjects, and the tasks outside of such groups.
        groups = {name: g for name, g in self.loaded["groups"].items() if g.has_aggregation}
        inside = {task.task_name for group in groups.values() for task in group.get_all_tasks()}
        for name in (*groups, *(name for name in self.loaded["tasks"] if name not in inside)):
            for key, (value, error) in benchmarks.reported(name, results[name]).items():
                metrics[f"{kind}/{key}"] = value
                if error is not None:
                    metrics[f"{kind}/{key}_stderr"] = error
        return Evaluation(metrics, tables={"benchmarks": self._table(results)})

    def _table(self, results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """A row for each task: its group, documents, solved examples, and metrics with errors."""
        groups = self.loaded["group_map"].items()
        group_of = {child: group for group, children in groups for child in children}
        rows = []
        for name, task in self.loaded["tasks"].items():
            row = {
                "task": name,
                "group": group_of.get(name, ""),
                "version": str(task.VERSION),
                "documents": results[name]["sample_len"],
                "shots": task.get_config("num_fewshot"),
            }
            for metric, (value, error) in benchmarks.metrics_of(results[name]).items():
                row[metric] = round(value, 4)
                row[f"{metric}_stderr"] = None if error is None else round(error, 4)
            rows.append(row)
        return rows
