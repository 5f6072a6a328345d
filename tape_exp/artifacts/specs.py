"""What the YAML of an artifact says of its rows, columns and figures, key by key.

A class for each part, a field for each key. What a YAML may have besides is in
:class:`~tape_exp.artifacts.artifact.Artifact` and :class:`~tape_exp.artifacts.artifact.Claim`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from tape_exp.settings.errors import ConfigError, choose, did_you_mean

Part = TypeVar("Part")


def part_of(cls: type[Part], keys: Mapping[str, Any], file: str, name: str) -> Part:
    """Make a part of an artifact of its keys; ``file`` and ``name`` say in an error where it is.

    Raises:
        ConfigError: nobody reads one of the keys.
    """
    check_keys(keys, [one.name for one in fields(cls)], file, name)  # type: ignore[arg-type]
    return cls(**keys)


def check_keys(keys: Iterable[str], known: Collection[str], file: str, part: str) -> None:
    """Raise :class:`ConfigError` where a part of a YAML has a key that nobody reads."""
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"{file}: {key} in {part}{did_you_mean(key, known)} "
                f"Known: {', '.join(sorted(known))}."
            )


# ---- rows ----


@dataclass(frozen=True)
class RowBlock:
    """Rows that are the product of dimensions; an artifact has one block of rows, or several."""

    # dimension -> its labels, each with the overrides of its runs; or the key of the records whose
    # value lists the labels: ``layer: task.layers``
    dimensions: Mapping[str, Mapping[str, Sequence[str]] | str]
    seeds: int | None = None  # how many its runs have; None: as many as are asked for
    scales: Sequence[str] = ()  # those at which the rows are shown; default: all


def block_of(keys: Mapping[str, Any]) -> RowBlock:
    """Make a block of rows of its keys: those that are no field of it are its dimensions. A list
    of labels names configs.

    >>> block_of({"seeds": 2, "model": ["rope", "tape"]}).dimensions
    {'model': {'rope': ['model=rope'], 'tape': ['model=tape']}}
    >>> block_of({"rate": {0.001: ["task.optim.lr=0.001"]}, "layer": "task.layers"}).dimensions
    {'rate': {'0.001': ['task.optim.lr=0.001']}, 'layer': 'task.layers'}
    """
    dimensions: dict[str, Mapping[str, Sequence[str]] | str] = {}
    for name, labels in keys.items():
        if name in ("seeds", "scales"):
            continue
        if isinstance(labels, str):
            dimensions[name] = labels
        elif isinstance(labels, list):
            dimensions[name] = {str(label): [f"{name}={label}"] for label in labels}
        else:
            dimensions[name] = {str(label): list(words or ()) for label, words in labels.items()}
    return RowBlock(dimensions, keys.get("seeds"), keys.get("scales", ()))


# ---- columns ----


@dataclass(frozen=True)
class Lead:
    """The row whose value is taken off that of each row, seed by seed."""

    over: str  # its label of the last dimension
    of: Sequence[str] = ()  # the labels that have the difference; default: all others


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """What is in the cells of a column, or of several: ``each`` makes one for each of its values.

    Braces hold the values of ``each`` and the labels of the row: ``perplexity@{n}``.
    """

    # what is in a cell: the paper's number, and of ours a metric, a lead, or a text
    paper: str = ""  # where results/paper.yaml has the paper's number: ``values.{model}``
    metric: str = ""  # of our runs, their mean
    lead: Lead | None = None  # shows the paired difference of the metric from another row
    show: str = ""  # a text, with keys of the records in its braces
    text: Mapping[str, str] = field(default_factory=dict)  # label of the last dimension -> text

    # which columns there are
    # placeholder of the heading -> its values, or value -> what headings call it, or the key of the
    # records that has the values
    each: Mapping[str, Any] = field(default_factory=dict)
    scales: Sequence[str] = ()  # those at which it is shown; default: all

    # of which runs
    where: Sequence[str] = ()  # further overrides
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)  # dimension -> labels with it
    seeds_of: Sequence[str] | None = None  # labels that run more than seed 0; default: all

    # how a number is written
    interval: str = "seeds"  # one of INTERVALS in averages.py
    times: float = 1  # a factor that changes the unit
    digits: int = 2  # decimals

    @property
    def is_ours(self) -> bool:
        """Say whether it shows something of our runs, besides numbers of the paper."""
        return bool(self.metric or self.show or self.text)


def column_of(keys: Mapping[str, Any], file: str, heading: str) -> ColumnSpec:
    """Make a column of its keys."""
    part = f"column {heading}"
    given = dict(keys)
    if "lead" in given:
        given["lead"] = part_of(Lead, given["lead"], file, f"lead of {part}")
    return part_of(ColumnSpec, given, file, part)


# ---- figures ----


@dataclass(frozen=True)
class GridsFigure:
    """A heatmap for each row, the mean over seeds."""

    kind: ClassVar[str] = "grids"


@dataclass(frozen=True)
class LengthsFigure:
    """Metrics by the length that their names end in, ``test/state@64``: a line for each row, and a
    panel for each metric and each label of the outer dimensions.
    """

    kind: ClassVar[str] = "lengths"

    # metric -> the title of its panel; default: every result with enough lengths
    of: Mapping[str, str] = field(default_factory=dict)
    across: str = ""  # what the lengths are, below the axis; default: what the task calls them
    quantity: str = ""  # beside the axis; default: the metric's name
    guess: str = ""  # the metric that a word problem's best guess is drawn beside


@dataclass(frozen=True)
class LossesFigure:
    """Validation loss by step: a line for each row, and a panel for each label of a dimension."""

    kind: ClassVar[str] = "losses"

    panels: str = ""  # the dimension that has a panel for each label; default: the outer ones


@dataclass(frozen=True)
class FunctionFigure:
    """What a function of its own draws, which takes the
    :class:`~tape_exp.artifacts.cells.Cells` and returns what draws it into a file, or None."""

    path: str  # ``my_package.figures.mine``

    @property
    def kind(self) -> str:
        """Return the function's own name."""
        return self.path.rpartition(".")[2]


Figure = GridsFigure | LengthsFigure | LossesFigure | FunctionFigure
FIGURES = {"grids": GridsFigure, "lengths": LengthsFigure, "losses": LossesFigure}


def figure_of(keys: Mapping[str, Any], file: str) -> Figure:
    """Make a figure of its keys; ``kind`` is one of :data:`FIGURES`, or the path of a function.

    >>> figure_of({"kind": "losses", "panels": "model"}, "a.yaml")
    LossesFigure(panels='model')
    >>> figure_of({"kind": "my_package.figures.mine"}, "a.yaml")
    FunctionFigure(path='my_package.figures.mine')
    """
    given = dict(keys)
    kind = given.pop("kind", "")
    part = f"figure {kind}"
    if "." in kind:
        check_keys(given, (), file, part)
        return FunctionFigure(kind)
    if kind not in FIGURES:
        raise ConfigError(choose(f"{file}: figure of kind {kind}", kind, [*FIGURES]))
    return part_of(FIGURES[kind], given, file, part)
