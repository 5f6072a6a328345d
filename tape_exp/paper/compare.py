"""A table of any models on any task: ``python -m tape_exp.paper compare task=arithmetic
model=rope,tape seeds=0,1,2``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record, settings_of
from tape_exp.settings.errors import ConfigError, did_you_mean

PLACES = (
    "runs=",
    "cache=",
    "trainer",
    "logger",
)  # overrides that say where a run is, not what it computes


@dataclass
class Compare(Artifact):
    """A row a model, a column a metric of the task; a table of the user's own, or of a YAML in
    ``conf/paper``.

    Args:
        metrics: the columns, in this order; none: every metric of the records.
    """

    metrics: list[str] = field(default_factory=list)

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``. Raises :class:`ConfigError` where no record has
        one of ``metrics``.
        """
        found = [
            key
            for mine in records.values()
            for key in mine[0]["metrics"]
            if not key.endswith("_stderr")
        ]
        known = list(dict.fromkeys(found))
        for metric in self.metrics:
            if metric not in known:
                raise ConfigError(
                    f"metrics={metric}{did_you_mean(metric, known)} The records of "
                    f"task={self.task} have: {', '.join(known)}."
                )
        columns = self.metrics or known
        digits = {
            key: _digits([r["metrics"].get(key, 0.0) for mine in records.values() for r in mine])
            for key in columns
        }
        rows = []
        for model in self.models:
            mine = records.get(model, [])
            cells = [
                tables.mean_text(
                    [r["metrics"][key] for r in mine if key in r["metrics"]], digits[key]
                )
                for key in columns
            ]
            parameters = f"{mine[0]['parameters']:,}" if mine else ""
            rows.append([model, parameters, *cells, *tables.origin(mine, scale)])
        told = deciding(self.overrides)
        keys = f", with {' '.join(told)}" if told else ""
        caption = (
            f"{self.title}. Task {self.task} at scale {scale}{keys}; mean over seeds with its 95 % "
            "interval. "
            "A + after a commit: uncommitted changes."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}",
            ["model", "parameters", *columns, *tables.ORIGIN],
            rows,
            caption,
        )


def deciding(overrides: Sequence[str]) -> list[str]:
    """Those that say what a run computes, not where it is."""
    return [word for word in overrides if not word.lstrip("+~").startswith(PLACES)]


def requested(words: Sequence[str]) -> tuple[Compare, str, list[int]]:
    """The comparison, scale and seeds of ``task=<task> model=<model,…> [scale=] [seeds=]
    [metrics=a,b] [key=value …]``.

    Raises:
        ConfigError: task or models are missing, or a word is wrong.
    """
    scale, seeds, further = settings_of(words)
    given = dict(
        word.split("=", 1) for word in further if word.startswith(("task=", "model=", "metrics="))
    )
    extra = [word for word in further if not word.startswith(("task=", "model=", "metrics="))]
    for key, example in (("task", "task=arithmetic"), ("model", "model=rope,tape")):
        if not given.get(key):
            raise ConfigError(f"a comparison needs {key}=, as in {example}.")
    if wrong := [word for word in extra if "=" not in word or word.startswith("seed=")]:
        raise ConfigError(
            f"{wrong[0]} is no word of a comparison; seeds are given as seeds=0,1,2, other keys as "
            "key=value."
        )
    chosen = given["model"].split(",")
    metrics = given["metrics"].split(",") if "metrics" in given else []
    task = given["task"]
    title = f"{', '.join(chosen)} side by side"
    return Compare(f"compare_{task}", title, task, chosen, extra, metrics=metrics), scale, seeds


def _digits(values: Sequence[float]) -> int:
    """Decimals of a column: two of percent and perplexities, more of small numbers."""
    return 2 if max(map(abs, values), default=0.0) >= 1 else 4
