"""Table tune_ppl, and what is common to artifacts of the extended models."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tape_exp.paper import identities
from tape_exp.paper.artifacts import LanguageArtifact, Records, task_of, windows_of
from tape_exp.paper.claims import Contest
from tape_exp.paper.language import scored
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, origin, pairs
from tape_exp.paper.values import NOT_REPORTED, mean_of, reported
from tape_exp.runs import starting_weights
from tape_exp.settings.naming import display_name


@dataclass(kw_only=True)
class Methods(LanguageArtifact):
    """An artifact whose rows are methods, each a list of choices.

    Args:
        methods: label -> overrides of its runs, ``lora: [model=rope, peft=lora,
            checkpoint=extend]``; ``{base}`` is what ``task=extend`` begins from at the scale.
        at: scale -> further overrides of every run, and of the runs that it begins from.
    """

    models: list[str] = field(init=False, default_factory=list)  # the labels: the order of the rows
    methods: dict[str, list[str]] = field(default_factory=dict)
    at: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = list(self.methods)

    def words(self, scale: str) -> list[str]:
        """Overrides of every run at a scale."""
        return [*self.overrides, *self.at.get(scale, [])]

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every method."""
        base = identities.identity(("task=extend", f"scale={scale}"))["checkpoint"]
        for method, words in self.methods.items():
            yield method, [*(word.format(base=base) for word in words), f"task={self.task}"]


@dataclass(kw_only=True)
class TunedPerplexity(Methods):
    """The perplexity of each method on each corpus, in sliding windows, next to the paper's.

    The longest length, to which the methods extend the context, is next to the paper's longest, and
    so on downwards. ``task`` lacks the corpus, whose name goes before it: ``sliding`` for
    ``proof_pile_sliding``.

    Args:
        corpora: the parts of the table.
    """

    corpora: list[str] = field(default_factory=list)

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every method and corpus."""
        for (method, (*words, _)), corpus in product(super().cases(scale), self.corpora):
            yield f"{method}/{corpus}", [*words, f"task={corpus}_{self.task}"]

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """Perplexity on each corpus at the longest length."""
        table, at_paper = self.cells(scale, records), self.paper()["lengths"][-1]
        longest = max(windows_of(records), default=0)
        contests: list[Contest] = []
        for corpus in self.corpora:
            contests += self.versus(
                f"{display_name(corpus)} {longest}",
                table.values(("ours", longest), corpus=corpus),
                table.values(("paper", at_paper), corpus=corpus),
                published_where=f"{display_name(corpus)} {at_paper}",
                higher=False,
                digits=3,
            )
        return contests

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each corpus and method, and one for the unigram baseline."""
        paper = self.paper()
        lengths = windows_of(records)
        rows: list[Row] = []
        for corpus in self.corpora:
            published = paper["perplexity"][corpus]
            baseline: Row = {"corpus": corpus, "method": "unigram"}
            for method in dict.fromkeys([*self.methods, *published]):
                runs = records.get(f"{method}/{corpus}", [])
                row: Row = {"corpus": corpus, "method": method}
                row |= {("paper", n): NOT_REPORTED for n in paper["lengths"]}
                for n, number in zip(paper["lengths"], published.get(method, []), strict=False):
                    row["paper", n] = reported(number, 3)
                for n in lengths:
                    row["ours", n] = mean_of(runs, f"{corpus}/perplexity@{n}", 3)
                rows.append(row | origin(runs, scale))
                if runs:
                    unigram = runs[0]["metrics"][f"{corpus}/unigram_perplexity"]
                    baseline |= {("ours", n): reported(unigram, 3) for n in lengths}
            rows.append(baseline)
        head = [Column("corpus"), Column("method"), *pairs(paper["lengths"], lengths), *ORIGIN]
        return Table(head, rows, label="method", part="corpus", quantity="perplexity")

    def caption(self, scale: str, records: Records) -> str:
        """On which text, and how the methods were trained."""
        paper, task = self.paper(), task_of(records)
        builtin = task["text"]["source"] == "builtin"
        data = " on text that Python carries, not comparable with the paper's" if builtin else ""
        return (
            f"{self.title}. Columns paper: {paper['setting']} ({paper['source']}), one seed. Ours: "
            f"scale {scale}{data}; {_trained(scale)}, with positions interpolated, at a learning "
            "rate that is the same for all and was searched for none; TAPE trains its update "
            "alone, the others LoRA, embeddings and norms, theta scaling with a larger base "
            "besides; windows of each length begin every "
            f"{task['windows']['stride']} tokens, and all tokens of a window are scored; mean over "
            f"seeds with its 95 % interval.{scored(records)} Unigram: the entropy of the set's own "
            "token counts, below which no model that ignores the context can come."
        )


def _trained(scale: str) -> str:
    """The lengths that base and methods were trained at."""
    extend = identities.identity(("task=extend", f"scale={scale}"))
    base, length = extend["checkpoint"], extend["task"]["train_length"]
    if starting_weights.is_task(base):
        task = identities.identity((f"task={base}", f"scale={scale}"))["task"]
        base += f" of {task['train_length']} tokens"
    return f"the base, {base}, is extended by training at {length}"
