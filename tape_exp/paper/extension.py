"""What the tables and figures of the extended models share, runs that differ in more than their
encoding; table tune_ppl.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from omegaconf import DictConfig

from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.paper.claims import Contest, over_seeds
from tape_exp.runs import weights
from tape_exp.settings.compose import compose_config


@dataclass
class Methods(Artifact):
    """An artifact whose rows are methods, each a list of choices; a subclass draws it.

    Args:
        methods: label -> overrides of its runs, ``lora: [model=rope, peft=lora,
            checkpoint=extend]``; ``{base}`` stands for what ``task=extend`` begins from at the
            scale.
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

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(method, config) of every run, seeds in the outer loop."""
        for seed in seeds:
            for method in self.methods:
                yield method, self.config(method, self.task, scale, seed, extra)

    def config(
        self, method: str, task: str, scale: str, seed: int, extra: Sequence[str]
    ) -> DictConfig:
        """The config of one run."""
        base = compose_config(["task=extend", f"scale={scale}"]).task.init_from
        choice = [word.format(base=base) for word in self.methods[method]]
        return compose_config(
            [*choice, f"task={task}", f"scale={scale}", f"seed={seed}", *self.words(scale), *extra]
        )


@dataclass
class TunedPerplexity(Methods):
    """Perplexity of each method on each corpus, in sliding windows of several lengths, the paper's
    beside ours.

    The longest length, to which the methods extend the context, stands beside the paper's longest,
    and so on downwards. ``task`` lacks the corpus, whose name goes before it: ``sliding`` for
    ``proof_pile_sliding``.

    Args:
        corpora: the parts of the table.
    """

    corpora: list[str] = field(default_factory=list)

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(method/corpus, config) of every run."""
        for seed in seeds:
            for method in self.methods:
                for corpus in self.corpora:
                    yield (
                        f"{method}/{corpus}",
                        self.config(method, f"{corpus}_{self.task}", scale, seed, extra),
                    )

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """Perplexity of each corpus at the longest length."""
        paper = self.paper()
        found: list[Contest] = []
        for corpus in self.corpora:
            mine = {
                method: records[f"{method}/{corpus}"]
                for method in self.methods
                if f"{method}/{corpus}" in records
            }
            longest = max(
                (
                    n
                    for runs in mine.values()
                    for n in runs[0]["config"]["task"]["windows"]["lengths"]
                ),
                default=0,
            )
            found += self.versus(
                f"{corpus} {longest}",
                over_seeds(mine, f"{corpus}/perplexity@{longest}"),
                published={method: row[-1] for method, row in paper["perplexity"][corpus].items()},
                published_where=f"{corpus} {paper['lengths'][-1]}",
                higher=False,
                digits=3,
            )
        return found

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``: a row a corpus and method, and one of the unigram
        baseline.
        """
        paper = self.paper()
        some = next(iter(records.values()))[0]["config"]["task"]
        lengths, windows = some["windows"]["lengths"], some["windows"]
        columns = side_by_side(paper["lengths"], lengths)
        rows = []
        for corpus in self.corpora:
            reported = {
                name: dict(zip(paper["lengths"], row, strict=True))
                for name, row in paper["perplexity"][corpus].items()
            }
            unigram = ""
            for method in dict.fromkeys([*self.methods, *reported]):
                mine = records.get(f"{method}/{corpus}", [])
                cells = [corpus, method]
                for whose, length in columns:
                    if whose == "paper":
                        value = reported.get(method, {}).get(length)
                        cells.append("" if value is None else f"{value:.3f}")
                    else:
                        cells.append(
                            tables.mean_text(
                                [r["metrics"][f"{corpus}/perplexity@{length}"] for r in mine], 3
                            )
                        )
                rows.append([*cells, *tables.origin(mine, scale)])
                if mine:
                    unigram = f"{mine[0]['metrics'][f'{corpus}/unigram_perplexity']:.3f}"
            rows.append(
                [
                    corpus,
                    "unigram",
                    *(unigram if whose == "ours" else "" for whose, _ in columns),
                    "",
                    "",
                    "",
                ]
            )
        data = (
            " on text that Python carries, not comparable with the paper's"
            if some["text"]["source"] == "builtin"
            else ""
        )
        caption = (
            f"{self.title}. Columns paper: {paper['setting']} ({paper['source']}), one seed. Ours: "
            f"scale {scale}{data}; "
            f"{_trained(scale)}; windows of each length begin every {windows['stride']} tokens, "
            "and all tokens of a window "
            "are scored; mean over seeds with its 95 % interval. Unigram: the entropy of the set's "
            "own token counts, below "
            "which no model that ignores the context can come."
        )
        head = [
            "corpus",
            "method",
            *(f"{whose} {length}" for whose, length in columns),
            *tables.ORIGIN,
        ]
        return tables.write(into / "tables" / f"{self.name}-{scale}", head, rows, caption)


def side_by_side(published: Sequence[int], measured: Sequence[int]) -> list[tuple[str, int]]:
    """The columns ``("paper", length)`` and ``("ours", length)``: the longest beside the longest,
    and so on downwards.
    """
    columns: list[tuple[str, int]] = []
    for theirs, ours in zip_longest(reversed(published), reversed(measured)):
        pair = [("paper", theirs), ("ours", ours)]
        columns = [(whose, length) for whose, length in pair if length is not None] + columns
    return columns


def _trained(scale: str) -> str:
    """The lengths that base and methods were trained at."""
    extend = compose_config(["task=extend", f"scale={scale}"]).task
    base = extend.init_from
    if weights.is_task(base):
        base += f" of {compose_config([f'task={base}', f'scale={scale}']).task.train_length} tokens"
    return f"the base, {base}, is extended by training at {extend.train_length}"
