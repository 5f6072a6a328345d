"""An artifact is a table or a figure of the paper, with its runs and their records."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import DictConfig, OmegaConf

from tape_exp.data.sources import BUILTIN
from tape_exp.drawing.diagnostics import diagnostic_panels
from tape_exp.drawing.plots import matrix_name
from tape_exp.paper import identities, tables
from tape_exp.paper.ceilings import ceilings, marked_figure, marked_table
from tape_exp.paper.claims import Contest, Verdict, decide
from tape_exp.paper.figure_kinds import Curves, Figure, Heatmaps, Patterns
from tape_exp.paper.records import Record, matches, warn
from tape_exp.paper.tables import Table
from tape_exp.paper.values import Value
from tape_exp.runs.evaluation import Heatmap
from tape_exp.runs.identity import names_a_folder
from tape_exp.settings import folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.files import read_yaml
from tape_exp.settings.folders import CONF
from tape_exp.settings.naming import display_label, display_name
from tape_exp.settings.patterns import inherited
from tape_exp.settings.plugins import yaml_of

RESULTS = folders.ROOT / "results"
SCALES = ("smoke", "rung5", "rung8", "rung12", "rung20", "ladder", "small", "paper")
UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
# key of a collected record that was chosen from several of one run and seed: how many these are,
# and why it is the one
CHOSEN = "chosen"
TWO = "The mean of two seeds has no interval: in brackets after it are the numbers of both."
Records = dict[str, list[Record]]
"""The records of several runs, by seed, under the label of what they measured."""


@dataclass(kw_only=True)
class Artifact(ABC):
    """One table or figure. ``conf/paper/<name>.yaml`` gives the fields.

    A subclass says where its records come from and what its table and figures hold. One whose
    records come from runs is a :class:`RunArtifact`.

    Args:
        name: file name of its YAML and of what is rendered.
        title: one line, as in the paper's caption.
        claim: what the paper says of it, in one sentence that :meth:`contests` tests whole; empty:
            it says no such thing.
        favourites: the models or methods that the claim calls better.
        rivals: what they are compared with; none: all the others.
        needs: what a scale takes that a CPU does not have; a scale that is not named here, smoke
            apart, is not part of it.
    """

    name: str
    title: str
    claim: str = ""
    favourites: list[str] = field(default_factory=lambda: ["tape"])
    rivals: list[str] = field(default_factory=list)
    needs: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("small", "paper"), "a GPU")
    )

    @abstractmethod
    def collect(self, scale: str, records: Sequence[Record]) -> Records:
        """Its records at a scale, ordered by seed, by the label of what they measured."""

    def at_scales(self, records: Sequence[Record]) -> dict[str, Records]:
        """What :meth:`collect` finds, and can be shown, at each scale that it is of."""
        return {scale: self.sound(scale, self.collect(scale, records)) for scale in self.scales()}

    def sound(self, scale: str, records: Records) -> Records:
        """The records without those that cannot be shown, each of which is named on stderr.

        Raises:
            ConfigError: the paper's numbers cannot be shown.
        """
        if records and self._fault(scale, records):
            if fault := self._fault(scale, {}):
                raise ConfigError(
                    f"{_paper_file()}: the numbers of {self.name} cannot be shown "
                    f"({fault}); restore the file."
                )
            every = [(label, record) for label, runs in records.items() for record in runs]
            records = {}
            for label, record in every:
                if fault := self._fault(scale, {label: [record]}):
                    name = record.get("run", label)
                    warn(f"{self.name} is drawn without the record {name} ({fault}).")
                else:
                    records.setdefault(label, []).append(record)
            if fault := self._fault(scale, records):
                warn(f"{self.name} is left out, its records do not fit together ({fault}).")
                return {}
        return records

    def _fault(self, scale: str, records: Records) -> str:
        """What is wrong with the table or the figures of some records, or nothing."""
        try:
            self.table(scale, records)
            if records:
                self.figures(scale, records)
            self.verdict(scale, records)
        except ConfigError:
            raise
        except UNFIT as error:
            return f"{type(error).__name__}: {error}"
        return ""

    @abstractmethod
    def command(self, scale: str) -> str:
        """The command that measures everything that is missing at a scale."""

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(label, config) of every run; none where its records come from another program."""
        return iter(())

    def wanted(self, scale: str) -> list[str]:
        """What its runs at a scale measure; none where :meth:`configs` has none."""
        return []

    def words(self, scale: str) -> list[str]:
        """Overrides of every run at a scale, and of the runs that it begins from."""
        return []

    def scales(self) -> tuple[str, ...]:
        """The scales that it is of: smoke, and those that ``needs`` names."""
        return ("smoke", *self.needs)

    def kept(self, scale: str) -> set[str]:
        """The keys that it sets to tell its runs apart, which no word of a command may change."""
        return set()

    def place(self, scale: str) -> str:
        """What pages call a scale's tables: ``scale smoke``; empty where there is no scale."""
        return f"scale {scale}"

    def notes(self, records: Records) -> str:
        """What a caption adds about its records: how they differ, which were left out."""
        return ""

    def gaps(self, collected: Mapping[str, Records]) -> list[str]:
        """Why cells are empty: what has not run at each scale, with what it needs.

        Args:
            collected: scale -> what :meth:`collect` returned.
        """
        phrases = []
        for scale in SCALES:
            needs = f"scale {scale} (needs {self.needs.get(scale, 'nothing but time')})"
            if not collected.get(scale):
                phrases += [needs] if scale in self.scales() else []
            elif lacking := [n for n in self.wanted(scale) if n not in collected[scale]]:
                phrases.append(f"{', '.join(map(display_label, lacking))} at {needs}")
        return phrases

    def paper(self) -> dict[str, Any]:
        """What the paper reports, from results/paper.yaml; nothing where it reports nothing."""
        return _numbers(_paper_file()).get(self.name, {})

    def table(self, scale: str, records: Records) -> Table | None:
        """Its table at a scale, or None; without records it has the paper's numbers only."""
        table = self.cells(scale, records)
        if table is None:
            return None
        if not records:
            return replace(table, caption=f"{self.title}: not run.")
        cells = (cell for row in table.rows for cell in row.values())
        two = any(isinstance(cell, Value) and cell.seeds for cell in cells)
        words = [self.caption(scale, records), TWO if two else "", self.notes(records)]
        table = replace(table, caption=" ".join(filter(None, words)))
        return marked_table(table, ceilings(records))

    def cells(self, scale: str, records: Records) -> Table | None:
        """The columns and rows of :meth:`table`."""
        return None

    def caption(self, scale: str, records: Records) -> str:
        """The caption of :meth:`table`, or of figures without one, of records that are there."""
        return self.title

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Its figures at a scale with records: the paper's, or else the curves of its table."""
        table = self.table(scale, records)
        panels = tables.curves(table) if table else []
        return [Curves(self.title, panels, suffix=None)] if panels else []

    def shown(self, scale: str, records: Records) -> list[Figure]:
        """Its figures, with ceilings marked, or none where they would show nothing."""
        figures = [] if self.without_figures(records) else self.figures(scale, records)
        return [marked_figure(figure, ceilings(records)) for figure in figures]

    def without_figures(self, records: Records) -> str:
        """The sentence that stands in the place of figures which would show nothing, if any."""
        return ""

    def verdict(self, scale: str, records: Records) -> Verdict:
        """Whether the claim holds in the records of a scale; no verdict without a claim.

        Models that are told which tokens are digits are no rivals.
        """
        if not self.claim:
            return Verdict()
        contests, told = self.contests(scale, records), ceilings(records)
        contests = [replace(c, rivals=[r for r in c.rivals if r not in told]) for c in contests]
        return decide(contests, self.planned())

    def planned(self) -> int:
        """How many comparisons the claim has once everything has run, if runs come one by one."""
        return 0

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The comparisons that the claim makes; none: its records do not test it."""
        return []

    def versus(
        self, where: str, measured: Mapping[str, Value], published: Mapping[str, Value], **form: Any
    ) -> list[Contest]:
        """The statement that each favourite is better than every rival, for :class:`Contest`."""
        return [
            Contest(where, favourite, self.others(), measured, published, **form)
            for favourite in self.favourites
        ]

    def others(self) -> list[str]:
        """What the favourites are compared with."""
        return self.rivals


@dataclass(kw_only=True)
class RunArtifact(Artifact):
    """An artifact whose records are those of runs.

    Args:
        task: task of the runs.
        models: models of the runs, in the order of the rows or panels.
        overrides: further keys of every run.
        trainer: for the paper's scale.
    """

    task: str
    models: list[str]
    overrides: list[str] = field(default_factory=list)
    trainer: str = "gpu"

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(label, config) of every run; seeds are the outer loop, so that figures fill early."""
        for seed in seeds:
            for label, words in self.lines(scale, [f"seed={seed}"], extra):
                yield label, compose_config(words)

    def lines(
        self, scale: str, seed: Sequence[str], extra: Sequence[str]
    ) -> Iterator[tuple[str, list[str]]]:
        """(label, words of the command line) of every run of a seed."""
        for label, choice in self.cases(scale):
            yield label, [*choice, f"scale={scale}", *seed, *self.words(scale), *extra]

    def wanted(self, scale: str) -> list[str]:
        """What its runs at a scale measure."""
        return [label for label, _ in self.cases(scale)]

    def kept(self, scale: str) -> set[str]:
        """The keys of its cases."""
        words = (word for _, choice in self.cases(scale) for word in choice)
        return {word.partition("=")[0].lstrip("+") for word in words}

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """(label, words of its own) of every run of a seed; the label begins with the model."""
        for model in self.models:
            yield model, [f"model={model}", f"task={self.task}"]

    def words(self, scale: str) -> list[str]:
        """Overrides of every run at a scale, and of the runs that it begins from."""
        return self.overrides

    def collect(self, scale: str, records: Sequence[Record]) -> Records:
        """A committed record of each run and seed.

        Of several it is the newest of those whose data most of the other runs read too, and says
        what it was preferred to.
        """
        found: dict[str, dict[int, list[Record]]] = {}
        at_scale = [r for r in records if self.of_scale(scale, r)]
        if not at_scale:
            return {}
        ran = {record["config"]["model"]["name"] for record in at_scale}
        for label, words in self.lines(scale, [], self._trainer(scale)):
            if (model := _model_of(words)) and model not in ran:
                continue  # nothing of that model: the run need not be composed
            current = identities.identity(tuple(words))
            fitting = [r for r in at_scale if matches(r, current, names_a_folder(words))]
            for record in sorted(fitting, key=lambda r: r["started"]):
                found.setdefault(label, {}).setdefault(record["seed"], []).append(record)
        shared = Counter(
            (seed, data)
            for by_seed in found.values()
            for seed, runs in by_seed.items()
            for data in {_data(run) for run in runs} - {None}
        )
        return {
            label: [
                _chosen(by_seed[seed], [shared[seed, _data(run)] for run in by_seed[seed]])
                for seed in sorted(by_seed)
            ]
            for label, by_seed in found.items()
        }

    def of_scale(self, scale: str, record: Record) -> bool:
        """Whether a record may be one of its runs at a scale."""
        return record["config"].get("scale") == scale

    def notes(self, records: Records) -> str:
        """What the claim leaves out, and how the records differ."""
        rivals = listed([*map(display_name, self.rivals)]) if self.rivals else ""
        left_out = rivals and {*self.models} - {*self.favourites, *self.rivals}
        claim = f"The claim is tested only against {rivals}." if left_out else ""
        return f"{claim} {self.differences(records)}".strip()

    def differences(self, records: Records) -> str:
        """Several records of one run, several commits or threads, other code since."""
        every = [(label, record) for label, runs in records.items() for record in runs]
        sentences = [
            f"Of {display_label(label)}, seed {r['seed']}, there are {r[CHOSEN]}, "
            f"{r.get('run', 'unnamed')} of {r['started'][:10]}, was taken."
            for label, r in every
            if CHOSEN in r
        ]
        if any(plugins.changed(r.get("plugins"), r["config"]) for _, r in every):
            sentences.append("The code of a package has changed since some of these runs.")
        commits = tables.commits(r for _, r in every).split()
        threads = sorted({n for _, r in every if (n := r.get("hardware", {}).get("threads"))})
        mixed = [f"of {len(commits)} commits"] if len(commits) > 1 else []
        if len(threads) > 1:
            mixed.append(f"with {' or '.join(map(str, threads))} threads")
        if mixed:
            sentences.append(f"The runs are {', '.join(mixed)}.")
        if any(commit.endswith("+") for commit in commits):
            sentences.append("A + after a commit: uncommitted changes.")
        return " ".join(sentences)

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Curves of its table, and every grid, matrix and length diagnostic of its records' first
        seeds.
        """
        figures, title = super().figures(scale, records), f"{self.title} — scale {scale}"
        first = {label: runs[0] for label, runs in records.items()}
        heatmaps = {
            display_label(label): Heatmap(
                np.array(r["heatmap"], float), "value", "row", "column", (0, 0)
            )
            for label, r in first.items()
            if "heatmap" in r
        }
        matrices = {
            f"{display_label(label)}, {matrix_name(name)}": np.array(rows, float)
            for label, r in first.items()
            for name, rows in r.get("matrices", {}).items()
        }
        figures += [Heatmaps(title, heatmaps, suffix=None)] if heatmaps else []
        for label, r in first.items():
            for panels in diagnostic_panels(r.get("tables", {})).values():
                # The page shows panels, each with its own title only.
                named = [replace(p, title=f"{display_label(label)}: {p.title}") for p in panels]
                figures.append(Curves(title, named, None, {"shared": False}))
        kinds = {name: "E·Eᵀ" if "E·Eᵀ" in name else "attention" for name in matrices}
        drawn = [Patterns(title, matrices, None, label=kinds)] if matrices else []
        return [*figures, *drawn]

    def others(self) -> list[str]:
        """What the favourites are compared with."""
        return self.rivals or [name for name in self.models if name not in self.favourites]

    def command(self, scale: str) -> str:
        """The command that runs everything that is missing at a scale."""
        words = [f"scale={scale} seeds=0,1,2", *self._trainer(scale)]
        return " ".join(["tape-exp paper run", self.name, *words])

    def _trainer(self, scale: str) -> list[str]:
        """The trainer of a scale, as a word of the command line."""
        return [f"trainer={self.trainer}"] if scale == "paper" else []


def _chosen(records: list[Record], shared: Sequence[int]) -> Record:
    """The newest of the records of one run and seed whose data the most runs share.

    Args:
        records: the oldest first.
        shared: of each record, how many of the artifact's runs of that seed have its data.
    """
    best = max(n for n, count in enumerate(shared) if count == max(shared))
    newest = best == len(records) - 1
    which = "the newest" if newest else "the newest that read the same data as the others"
    several = {CHOSEN: f"{len(records)} records: {which}"} if len(records) > 1 else {}
    return records[best] | several


def _data(record: Record) -> tuple[int | None, str] | None:
    """Which data a run read: their fingerprint and its version; None where it is not recorded."""
    fingerprint = record.get("data_fingerprint")
    return None if fingerprint is None else (record.get("fingerprint_version"), fingerprint)


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _model_of(words: Sequence[str]) -> str | None:
    """The name of the one model that the words choose by its file; None where they do not."""
    chosen = [word.removeprefix("model=") for word in words if word.startswith("model")]
    path = yaml_of("model", chosen[0]) if len(chosen) == 1 else None
    return _name_in(path) if path else None


@cache
def _name_in(path: Path) -> str | None:
    """The ``name`` of a YAML, unless it depends on others."""
    node = inherited(path)
    return None if OmegaConf.is_interpolation(node, "name") else node.get("name")


@dataclass(kw_only=True)
class LanguageArtifact(RunArtifact):
    """An artifact of runs that read text, whose caption says whether all read the same.

    It also names a corpus in whose place built-in text was read. Records say so in the metrics'
    names, ``builtin_github/perplexity@64``; older ones have the name of the corpus or benchmark
    there. Columns are called by the corpus or benchmark.
    """

    def collect(self, scale: str, records: Sequence[Record]) -> Records:
        """The records, with metrics that are called by the corpus or benchmark."""
        return {
            label: [record | {"metrics": _by_corpus(record["metrics"])} for record in runs]
            for label, runs in super().collect(scale, records).items()
        }

    def notes(self, records: Records) -> str:
        """Which text was read in place of a corpus, whether by all, and how records differ."""
        read = sorted({name for runs in records.values() for r in runs for name in _builtin(r)})
        text = (
            f"In place of {' and '.join(read)}: text that Python carries. What is scored of it "
            "comes from few files and is the same for all seeds, so that intervals over seeds "
            "leave out what other text would give."
            if read
            else ""
        )
        same = SAME_DATA[same_data(records)]
        return " ".join(filter(None, (text, same, super().notes(records))))


def _by_corpus(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix(BUILTIN): value for name, value in metrics.items()}


def _builtin(record: Record) -> list[str]:
    """The corpora in whose place a run read built-in text."""
    task = record["config"]["task"]
    texts = {task.get("name"): task.get("text"), **(task.get("tests") or {})}
    texts = {name: text for name, text in texts.items() if isinstance(text, dict)}
    return [
        text.get("name", name) for name, text in texts.items() if text.get("source") == "builtin"
    ]


SAME_DATA = {
    True: "Of each seed, the runs of all models read the same data in the same order.",
    False: "Of one seed, models read other data: their numbers CANNOT BE COMPARED.",
    None: "Whether the runs of a seed read the same data is not recorded: fingerprints of their "
    "data are missing, or were not all made in the same way.",
}


def same_data(records: Records) -> bool | None:
    """Whether all runs of a seed and a task read the same data.

    None where their fingerprints, which are of several versions or of none, do not tell.
    """
    seen: dict[tuple[int, str], set[tuple[int | None, str] | None]] = {}
    for record in (record for runs in records.values() for record in runs):
        key = record["seed"], record["config"]["task"]["name"]
        seen.setdefault(key, set()).add(_data(record))
    for data in seen.values():
        versions = [each[0] for each in data if each is not None and each[0] is not None]
        if len(versions) > len({*versions}):
            return False
    return True if all(len(data) == 1 and None not in data for data in seen.values()) else None


def first_of(records: Records) -> Record:
    """The first record, for what it has in common with all."""
    return next(iter(records.values()))[0]


def task_of(records: Records | list[Record]) -> dict[str, Any]:
    """The task of the first record."""
    first = records[0] if isinstance(records, list) else first_of(records)
    return first["config"]["task"]


def windows_of(records: Records) -> list[int]:
    """The lengths that a text was read in; none without records."""
    return task_of(records)["windows"]["lengths"] if records else []


def _paper_file() -> Path:
    """Where the paper's numbers are; a wheel carries them."""
    folder = folders.PACKAGE / "results" if folders.INSTALLED else RESULTS
    return folder / "paper.yaml"


@lru_cache(maxsize=1)
def _numbers(path: Path) -> dict[str, dict[str, Any]]:
    """Read once: every table and every claim asks for it."""
    try:
        numbers: Any = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}); restore it.") from error
    if not isinstance(numbers, dict) or not all(isinstance(n, dict) for n in numbers.values()):
        raise ConfigError(f"{path} must hold a section for each artifact; restore it.")
    return numbers


def load(name: str) -> Artifact:
    """The artifact of that name. Raises :class:`ConfigError` with the nearest known name."""
    if name not in names():
        raise ConfigError(
            f"artifact {name}{did_you_mean(name, names())} Known: {', '.join(names())}."
        )
    node = read_yaml(CONF / "paper" / f"{name}.yaml", "mend or remove it")
    return build(node, f"conf/paper/{name}.yaml")


def names() -> list[str]:
    """Every artifact that has a YAML."""
    return sorted(path.stem for path in (CONF / "paper").glob("[!.]*.yaml"))
