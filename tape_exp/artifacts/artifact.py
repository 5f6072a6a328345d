"""A table or figure of the paper: ``conf/paper/<name>.yaml``, and the paper's own numbers of it.

The file says which runs are a row (``rows``: the overrides that make them, which are also the keys
by which their records are found), and what a column measures (``columns``). Its keys are the fields
of :class:`Artifact`, :class:`Claim` and the classes in ``specs.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tape_exp.artifacts.specs import (
    ColumnSpec,
    Figure,
    RowBlock,
    block_of,
    check_keys,
    column_of,
    figure_of,
    part_of,
)
from tape_exp.results.statistics import Value
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError, choose, one_of
from tape_exp.settings.plugins import names_in, yaml_of

DEFAULT = {"smoke": None, "small": "a GPU", "paper": "a GPU"}
LADDER = "ladder"  # the scale of artifacts whose rows name the scales of their runs, no config


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper: one method is better than others at something."""

    text: str
    # which rows are compared: labels of the dimension ``among``, and of the other dimensions
    among: str = ""  # default: the last dimension
    better: list[str] = field(default_factory=lambda: ["tape"])
    than: list[str] | None = None  # default: all others
    pairs: bool = False  # each label against the one before it
    rows: dict[str, Any] = field(default_factory=dict)  # dimension -> labels, or ``last``
    # at what: a column -> what it is called; of those that differ only in a length the last
    at: dict[str, str] = field(default_factory=dict)
    every: bool = False  # every length
    pooled: bool = False  # the mean logarithm over all lengths is one comparison
    # how
    lower: bool = False  # less is better
    floor: float | str | None = None  # reached without solving anything, or the function of it
    margin: float = 0.0  # what it may be behind by and still be as good
    digits: int | None = None
    rule: str = ""  # path of a function that decides, in the place of comparisons
    builtin: str = ""  # a note where the text is built in
    # the paper's numbers
    paper: str = ""  # where they are; default: those of the column
    paper_label: str = ""  # whose they are; default: the favourite's
    paper_at: str = ""  # at what; default: as ours
    published: str = ""  # path of the function that has them


@dataclass(kw_only=True)
class Artifact:
    """One table or figure; :class:`~tape_exp.artifacts.view.View` shows it at a scale."""

    name: str  # of its YAML and of what is rendered
    title: str  # one line, as in the paper's caption
    rows: list[RowBlock] = field(default_factory=list)
    columns: dict[str, ColumnSpec] = field(default_factory=dict)  # heading -> what is in its cells
    overrides: list[str] = field(default_factory=list)  # of every run
    at: dict[str, list[str]] = field(default_factory=dict)  # scale -> further ones, of bases too
    values: dict[str, dict[str, str]] = field(default_factory=dict)  # scale -> {name} in overrides
    claims: list[Claim] = field(default_factory=list)  # of the paper; in the YAML ``claim``
    # scale, the smallest first -> what it needs
    scales: dict[str, str | None] = field(default_factory=lambda: dict(DEFAULT))
    place: dict[str, str] = field(default_factory=dict)  # scale -> what pages call it
    trainer: str = "gpu"  # for the paper's scale
    caption: str = ""  # what was measured and how; {task.train_length} is a key of its records
    figures: list[Figure] = field(default_factory=list)
    source: str = ""  # path of the function that makes the table, in the place of the columns
    finish: str = ""  # path of the one that completes it
    once: bool = False  # whether a row of the same runs as those above is left out
    command: str = ""  # what measures it, where that is not ``paper run``
    provenance: list[str] = field(default_factory=lambda: ["seeds", "scale", "commit"])  # columns

    @property
    def paper(self) -> dict[str, Any]:
        """What the paper reports of it."""
        return reported().get(self.name, {})

    @property
    def results(self) -> Path:
        """Where its tables and figures are: ``results/`` of the clone, or of the package whose
        ``conf/paper/`` it is of.
        """
        path = yaml_of("paper", self.name)
        if path is None or path.is_relative_to(folders.CONF):
            return folders.RESULTS
        return path.parents[2] / "results"

    def run_command(self, scale: str) -> str:
        """Write the command that measures what is missing at a scale."""
        trainer = f" trainer={self.trainer}" if scale == "paper" else ""
        return self.command or f"tape-exp paper run {self.name} scale={scale} seed=0,1,2{trainer}"


def load(name: str) -> Artifact:
    """Read the artifact of that name; raise :class:`ConfigError` with the nearest known name."""
    if name not in names():
        raise ConfigError(choose(f"artifact {name}", name, names(), "tape-exp paper list"))
    path = yaml_of("paper", name)
    assert path is not None  # it is a name
    try:
        return artifact_of(name, yaml_keys(path))
    except (TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).replace("Artifact.__init__()", "").split())
        raise ConfigError(f"{path} is no artifact ({reason}).") from error


def artifact_of(name: str, keys: Mapping[str, Any]) -> Artifact:
    """Make an artifact of the keys of its YAML.

    >>> keys = {"title": "Sums", "rows": {"model": ["tape"]}, "columns": {"grid": {"metric": "a"}}}
    >>> artifact = artifact_of("mine", keys)
    >>> artifact.rows[0].dimensions, artifact.columns["grid"].metric
    ({'model': {'tape': ['model=tape']}}, 'a')

    Raises:
        ConfigError: nobody reads one of the keys.
    """
    file = f"conf/paper/{name}.yaml"
    known = {one.name for one in fields(Artifact)} - {"name", "claims"} | {"claim"}
    check_keys(keys, known, file, "an artifact")
    given = dict(keys)
    claims = one_or_several(given.pop("claim", None))
    rows = one_or_several(given.pop("rows", None))
    columns = given.pop("columns", {})
    figures = given.pop("figures", [])
    return Artifact(
        name=name,
        rows=[block_of(block) for block in rows],
        columns={heading: column_of(of, file, heading) for heading, of in columns.items()},
        claims=[claim_of(claim, file) for claim in claims],
        figures=[figure_of(figure, file) for figure in figures],
        **given,
    )


def one_or_several(part: Any) -> list[Any]:
    """List the parts of a key that has one of them, a list of them, or nothing.

    >>> one_or_several({"model": ["tape"]}), one_or_several({}), one_or_several([{"a": 1}])
    ([{'model': ['tape']}], [], [{'a': 1}])
    """
    if not part:
        return []
    return part if isinstance(part, list) else [part]


def claim_of(keys: Mapping[str, Any], file: str) -> Claim:
    """Make a claim of its keys."""
    if "text" not in keys or not {"at", "rule"} & keys.keys():
        raise ConfigError(f"{file}: the claim needs text:, and at: or rule:.")
    return part_of(Claim, keys, file, "the claim")


def yaml_keys(path: Path) -> dict[str, Any]:
    """Read the keys of a YAML; those that it lacks are of the one that it is ``like``.

    Raises:
        ConfigError: it has none, as an empty file, or there is no YAML of that name beside it.
    """
    own = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(own, dict):
        raise ConfigError(f"{path} has no keys; an artifact needs title: at least.")
    like = own.pop("like", None)
    if like is None:
        return own
    others = sorted(file.stem for file in path.parent.glob("[!.]*.yaml") if file != path)
    one_of(f"{path}: like", like, others, "tape-exp paper list")
    return yaml_keys(path.with_name(f"{like}.yaml")) | own


@cache
def reported() -> dict[str, dict[str, Any]]:
    """Read the paper's numbers, a section for each artifact; a wheel carries them."""
    return yaml.safe_load((folders.ROOT / "results" / "paper.yaml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """List every artifact that has a YAML."""
    return names_in("paper")


def paper_value(paper: Mapping[str, Any], path: str) -> Value | None:
    """Read the paper's number at ``perplexity.tape.1024``; a pair has a standard error."""
    number = select(paper, path)
    if isinstance(number, list):
        mean, error = number
        return Value(mean, mean - error, mean + error, error=True)
    return None if number is None else Value(number)


def select(node: Any, path: str) -> Any:
    """Read what a nested mapping has at a dotted key; None where it has nothing.

    The numbers of a list are by the ``lengths`` or ``layers`` of the section.

    >>> paper = {"lengths": [512, 1024], "perplexity": {"tape": [9.1, 8.7]}}
    >>> select(paper, "perplexity.tape.1024")
    8.7
    """
    places = node.get("lengths") or node.get("layers") if isinstance(node, Mapping) else None
    for key in path.split("."):
        if isinstance(node, list) and places:
            node = dict(zip(places, node, strict=True))
        if not isinstance(node, Mapping):
            return None
        node = {str(name): inner for name, inner in node.items()}.get(key)
    return node
