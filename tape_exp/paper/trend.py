"""The ladder of addition: how far beyond its trained digits each method solves sums, by size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import numpy as np

from tape_exp.drawing.plots import Line, Panel
from tape_exp.drawing.style import LineStyle, styles_of
from tape_exp.paper.artifacts import Record, Records, RunArtifact, load, task_of
from tape_exp.paper.claims import Contest
from tape_exp.paper.figure_kinds import Curves, Figure
from tape_exp.paper.statistics import ends, lead, resampled
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, columns, line_of, origin
from tape_exp.paper.values import NOTHING, Cell, Value, integer, known, mean_of, over_seeds
from tape_exp.runs.evaluation import wilson
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import display_label, display_name

LADDER = "ladder"
ENOUGH = 99.0  # percent of the sums of trained lengths: with fewer, a run says nothing beyond them
UNIT = "extra length (fraction of the trained)"
FEWEST = 3  # rungs that a line may join


@dataclass
class Rung:
    """A scale of the ladder.

    Args:
        seeds: their number: 0, 1, …
        precision: of its runs, as ``trainer.precision``.
        further: models beside those of every rung, with the number of their seeds.
    """

    seeds: int
    precision: str = "auto"
    further: dict[str, int] = field(default_factory=dict)

    def seeds_of(self, model: str) -> int:
        """The number of a model's seeds."""
        return self.further.get(model, self.seeds)


@dataclass
class Variant:
    """Further runs of some models at a rung, with overrides.

    Args:
        seeds: their number: 0, 1, …
        overrides: what they have instead of what the runs of the rung have.
        models: which; those that all variants have, where none is said.
    """

    seeds: int
    overrides: list[str]
    models: list[str] = field(default_factory=list)

    def seeds_of(self, model: str) -> int:
        """The number of a model's seeds."""
        return self.seeds


@dataclass(kw_only=True)
class Trend(RunArtifact):
    """Extra length by trained digits n, and the paired lead of the favourite.

    Where a model solves all sums of up to L digits and no longer ones, the share of the grid of
    n → 2n digits that it solves is (L / 2n)². The extra length is what that L would be for the
    measured share m, beyond n and as a part of it::

        extra = L / n - 1 = 2 √m - 1

    It is 0 for a model that solves what it was trained on and nothing else, and 1 for the whole
    grid.

    Args:
        rungs: scale -> what runs at it.
        rates: of every model, those that fig_rates chose.
        variants: a rung and a name -> runs that differ from those of the rung: in parameters,
            steps, the rate or the precision.
        varied: the models of the variants that name none.
        published: trained digits -> the artifact of that size in the paper.
    """

    rungs: dict[str, Rung]
    rates: dict[str, float] = field(default_factory=dict)
    variants: dict[str, Variant] = field(default_factory=dict)
    varied: list[str] = field(default_factory=list)
    published: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise :class:`ConfigError` where a key has no effect."""
        where = f"conf/paper/{self.name}.yaml: "
        known = {model for rung in self.rungs for model in self.models_of(rung)}
        if len(self.favourites) != 1:
            raise ConfigError(f"{where}favourites must have one model, not {self.favourites}.")
        for key in ("rates", "rivals", "varied", "favourites"):
            if wrong := [model for model in getattr(self, key) if model not in known]:
                raise ConfigError(f"{where}{key} has {wrong[0]}, which no rung runs.")
        for name, variant in self.variants.items():
            rung, *words = name.split() or [""]
            if rung not in self.rungs or not words:
                raise ConfigError(
                    f"{where}variants.{name} must be called by a rung and a word for what it "
                    f"changes, as in '{next(iter(self.rungs))} wide'."
                )
            if not variant.overrides or not (variant.models or self.varied):
                raise ConfigError(f"{where}variants.{name} needs overrides and models.")
        for name, runs in (self.rungs | self.variants).items():
            if runs.seeds < 1:
                raise ConfigError(f"{where}seeds={runs.seeds} of {name} must be at least 1.")
        for model, rate in self.rates.items():
            if isinstance(rate, str) or not rate > 0:
                raise ConfigError(f"{where}rates.{model}={rate} must be a number above 0.")
        every = {name: self.models_of(name) for name in self.rungs}
        every |= {name: variant.models or self.varied for name, variant in self.variants.items()}
        for name, models in every.items():
            if twice := [model for model in models if models.count(model) > 1]:
                raise ConfigError(f"{where}{name} runs {twice[0]} twice; name it once.")
        for name, at in self.rungs.items():
            for model, seeds in at.further.items():
                if not 1 <= seeds <= at.seeds:  # a command that names the rung's begins them all
                    raise ConfigError(
                        f"{where}{model}: {seeds} of {name} must be at least 1 and at most "
                        f"seeds={at.seeds}."
                    )

    def scales(self) -> tuple[str, ...]:
        """All rungs together."""
        return (LADDER,)

    def command(self, scale: str) -> str:
        """What runs everything that is missing."""
        seeds = ",".join(map(str, range(max(rung.seeds for rung in self.rungs.values()))))
        return f"tape-exp paper run {self.name} scale={LADDER} seeds={seeds}"

    def models_of(self, rung: str) -> list[str]:
        """The models that run at a rung."""
        return [*self.models, *self.rungs[rung].further]

    def cases(self, scale: str) -> Iterator[tuple[str, list[str]]]:
        """Every model at every rung, then the variants; none at another scale."""
        if scale != LADDER:
            return
        for rung in self.rungs:
            for model in self.models_of(rung):
                yield f"{model} {rung}", self.words_at(model, rung)
        for name, variant in self.variants.items():
            for model in variant.models or self.varied:
                rung = name.split()[0]
                yield f"{model} {name}", [*self.words_at(model, rung), *variant.overrides]

    def words_at(self, model: str, rung: str) -> list[str]:
        """Words of the command line of a model at a rung, with its rate and precision."""
        words = [f"model={model}", f"task={self.task}", f"scale={rung}"]
        words += [f"task.optim.lr={self.rates[model]}"] if model in self.rates else []
        precision = self.rungs[rung].precision
        return words if precision == "auto" else [*words, f"trainer.precision={precision}"]

    def lines(
        self, scale: str, seed: Sequence[str], extra: Sequence[str]
    ) -> Iterator[tuple[str, list[str]]]:
        """As every artifact has them, with the rung as scale, and no more seeds than it has."""
        numbers = [int(word.removeprefix("seed=")) for word in seed]
        for label, choice in self.cases(scale):
            model, name = label.split(maxsplit=1)
            runs = (self.variants | self.rungs)[name]
            if all(number < runs.seeds_of(model) for number in numbers):
                yield label, [*choice, *seed, *self.words(scale), *extra]

    def of_scale(self, scale: str, record: Record) -> bool:
        """Whether a record may be of a rung."""
        return record["config"].get("scale") in self.rungs

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """Extra length at every rung that has run."""
        papers, contests = self.papers(), []
        largest = max((n for _, n in papers), default=0)
        published = {model: Value(value) for (model, n), value in papers.items() if n == largest}
        for rung in self.rungs:
            runs = {model: records.get(f"{model} {rung}", []) for model in self.models}
            measured = {m: over_seeds(extras(found)) for m, found in runs.items()}
            if digits := {task_of(found)["train_digits"] for found in runs.values() if found}:
                contests += self.versus(
                    f"{digits.pop()} digits",
                    known(measured),
                    published,
                    published_where=f"{largest} digits",
                    floor=0.0,
                )
        return contests or self.versus("", {}, published, published_where=f"{largest} digits")

    def planned(self) -> int:
        """One with each rival at every rung: seeds come in one by one."""
        return len(self.rungs) * len(self.rivals)

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each rung, variant and model."""
        rows: list[Row] = []
        for label in self.wanted(LADDER):
            model, rung = label.split(maxsplit=1)
            runs = records.get(label, [])
            row: Row = {"rung": rung, "model": model}
            if runs:
                task = task_of(runs)
                row["digits"] = f"{task['train_digits']} → {task['test_digits']}"
                row["steps"] = integer(task["optim"]["max_steps"])
                row["rate"] = Value(task["optim"]["lr"], form="{number:g}")
                row["parameters"] = integer(runs[0]["parameters"])
                row["precision"] = ", ".join(sorted({run["precision"] for run in runs}))
            row["in distribution"] = mean_of(runs, "id/exact_match")
            row["grid"] = mean_of(runs, "test/exact_match")
            row["extra"] = over_seeds(extras(runs), 3)
            for rival in self.rivals:
                row["lead", rival] = self._lead(records, label, rival)
            rows.append(row | origin(runs, scale))
        head = columns(["rung", "model", "digits", "steps", "rate", "parameters", "precision"])
        head += [Column(key, unit="%") for key in ("in distribution", "grid")]
        head += [Column("extra", "extra length")]
        head += [_lead_over(rival) for rival in self.rivals]
        return Table([*head, *ORIGIN], rows, label="model", part="rung")

    def _lead(self, records: Records, label: str, rival: str) -> Cell:
        """The paired difference of extra lengths, favourite minus rival, in the favourite's row.

        It says of how many pairs it is where these are fewer than the seeds of the row.
        """
        model, where = label.split(maxsplit=1)
        if model not in self.favourites:
            return NOTHING
        ran, other = (records.get(f"{name} {where}", []) for name in (model, rival))
        found = lead(over_seeds(extras(ran)), over_seeds(extras(other)), 3)
        if not isinstance(found, Value) or found.n == len(ran):
            return found
        pairs = "1 pair" if found.n == 1 else f"{found.n} pairs"
        return replace(found, form=f"{found.form} ({pairs})")

    def caption(self, scale: str, records: Records) -> str:
        """What extra length is, and which runs count."""
        few = [
            f"{display_label(label)} seed {run['seed']} ({run['metrics']['id/exact_match']:.1f} %, "
            f"extra length {extra_of(run).number:.3f})"
            for label, runs in records.items()
            for run in runs
            if not learned(run)
        ]
        left_out = f" Left out for that: {', '.join(few)}." if few else ""
        half = self._rungs_in("bf16-mixed", records)
        in_half = f" The figure's points of {', '.join(half)} are of bf16-mixed." if half else ""
        return (
            f"{self.title}. Exact match in percent. Extra length: 2 √(grid mean) - 1, with the "
            "trained part of the grid taken as solved: the fraction of the trained digits by "
            "which the square of solved sums reaches beyond them. Mean over seeds with its 95 % "
            "interval; leads are paired by seed. In the figure dots are seeds, bars on the left "
            "a bootstrap over three seeds or more and their samples, which of so few seeds is "
            "narrower than the table's intervals, and bars on the right these; points of one "
            "rung stand beside each other. The paper's points are of its printed means of the "
            "grid, which do not say how much of the trained sums was solved: below 25 % (NoPE), "
            f"not all.{in_half} A run counts for extra length if it solves {ENOUGH:.0f} % of the "
            f"sums of trained lengths.{left_out} Rates are those that fig_rates chose at the "
            "first rung; there, rates that solve the trained sums alike differ in extra length "
            "as much as RoPE and TAPE do, so that their lead is to be read at an equal rate too. "
            "The same holds for runs that stop at different steps after the trained sums are "
            "solved: rungs differ in digits and width, and in their steps too."
        )

    def _rungs_in(self, precision: str, records: Records) -> list[str]:
        """The rungs that have runs in a precision, variants apart."""
        found = {
            label.split(maxsplit=1)[1]
            for label, runs in records.items()
            if any(run["precision"] == precision for run in runs)
        }
        return [rung for rung in self.rungs if rung in found]

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Extra length by trained digits, and the paired leads, with the paper's points."""
        papers = self.papers()
        left, right = [], []
        looks = styles_of(model for rung in self.rungs for model in self.models_of(rung))
        for model, look in looks.items():
            line = _line(display_name(model), self._by_digits(records, model), look)
            left += [line] if line.x else []
            own = {n: e for (name, n), e in papers.items() if name == model}
            left += _open(display_name(model), own, look)
        (favourite,) = self.favourites
        for rival in self.rivals:
            name, look = display_name(rival), looks[rival]
            leads = self._leads(records, favourite, rival)
            right += [_joined(line_of(name, [*leads.items()], style=look))] if leads else []
            both = [n for who, n in papers if who == favourite and (rival, n) in papers]
            apart = {n: papers[favourite, n] - papers[rival, n] for n in both}
            right += _open(name, apart, look)
        if not any(line.dots for line in left):
            return []
        ticks = sorted({int(x) for line in (*left, *right) for x in line.x})
        words: Any = {"xlabel": "trained digits", "ticks": ticks, "log_x": True, "dodge": True}
        panels = [
            Panel(
                "beyond the trained digits",
                ylabel=UNIT,
                lines=left,
                **words,
            ),
            Panel(
                f"{display_name(favourite)}'s lead over others, paired by seed (95 %)",
                ylabel="difference of extra lengths",
                lines=right,
                **words,
            ),
        ]
        title = f"{self.title} (open: the paper, one seed)"
        return [Curves(title, panels, options={"columns": 1, "shared": False})]

    def _by_digits(self, records: Records, model: str) -> dict[int, list[Record]]:
        """Trained digits -> the runs of a model at the rung of so many."""
        labels = (f"{model} {rung}" for rung in self.rungs)
        runs = [records[label] for label in labels if label in records]
        return {task_of(found)["train_digits"]: found for found in runs}

    def _leads(self, records: Records, favourite: str, rival: str) -> dict[float, Value]:
        """Trained digits -> the favourite's lead."""
        ours, theirs = (
            {n: over_seeds(extras(runs)) for n, runs in self._by_digits(records, model).items()}
            for model in (favourite, rival)
        )
        leads = {n: lead(ours[n], theirs[n], 3) for n in ours if n in theirs}
        return {n: each for n, each in leads.items() if isinstance(each, Value)}

    def papers(self) -> dict[tuple[str, int], float]:
        """(model, trained digits) -> the paper's extra length, of one seed."""
        return {
            (model, n): extra(value / 100)
            for n, name in self.published.items()
            for model, value in load(name).paper()["values"].items()
        }


def _line(name: str, runs: Mapping[int, list[Record]], look: LineStyle) -> Line:
    """The mean over seeds by trained digits, with intervals that a bootstrap gives where there are
    three seeds or more: of two it is the range of both, and samples alone would make the point of
    one seed look the surest.
    """
    values = {n: [*found.values()] for n in sorted(runs) if (found := extras(runs[n]))}
    bands = [
        ends(resampled([each])[0]) if len(each) > 2 else (None, None) for each in values.values()
    ]
    return Line(
        name,
        [*values],
        [mean(value.number for value in each) for each in values.values()],
        [low for low, _ in bands],
        [high for _, high in bands],
        look,
        joined=len(values) >= FEWEST,
        dots=[(n, value.number) for n, each in values.items() for value in each],
    )


def _lead_over(rival: str) -> Column:
    return Column(("lead", rival), f"lead over {rival}", shown=f"lead over {display_name(rival)}")


def _joined(line: Line) -> Line:
    return replace(line, joined=len(line.x) >= FEWEST)


def _open(name: str, points: Mapping[int, float], look: LineStyle) -> list[Line]:
    """The paper's points, as open markers, if there are any."""
    x, y = [float(n) for n in points], [*points.values()]
    return [Line(f"{name} (paper)", x, y, style=look, joined=False, hollow=True)] if x else []


def extra(share: Any) -> Any:
    """The extra length 2 √m - 1 of a share m of the grid, a number or an array."""
    return 2 * np.sqrt(share) - 1


def extras(runs: Sequence[Record]) -> dict[int, Value]:
    """Seed -> extra length, of the runs that learned the trained lengths."""
    return {run["seed"]: extra_of(run) for run in runs if learned(run)}


def extra_of(run: Record) -> Value:
    """The extra length of a run, with Wilson's interval over the sums beyond the trained lengths.

    The trained part of the grid is taken as solved, so that the few sums which a run misses there
    are not counted as length.
    """
    task, percent = run["config"]["task"], run["metrics"]["ood/exact_match"]
    trained = (task["train_digits"] / task["test_digits"]) ** 2
    tested = task["samples_per_cell"] * (task["test_digits"] ** 2 - task["train_digits"] ** 2)
    low, high = wilson(round(percent / 100 * tested), tested)
    number, low, high = (
        float(extra(trained + (1 - trained) * each / 100)) for each in (percent, low, high)
    )
    return Value(number, low, high)


def learned(run: Record) -> bool:
    """Whether a run solves :data:`ENOUGH` of the sums of trained lengths."""
    return run["metrics"]["id/exact_match"] >= ENOUGH
