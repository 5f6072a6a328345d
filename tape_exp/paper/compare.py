"""A table of any models on any task: ``python -m tape_exp.paper compare task=… model=…,…``."""

import csv
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.paper import rerun
from tape_exp.paper.artifacts import (
    SAME_DATA,
    Records,
    RunArtifact,
    names,
    same_data,
)
from tape_exp.paper.records import Record
from tape_exp.paper.tables import ORIGIN, Row, Table, columns, origin
from tape_exp.paper.values import NOT_RUN, integer, mean_of
from tape_exp.paper.words import refuse_debug, settings_of, split_words
from tape_exp.runs.evaluation import is_result
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.naming import MARKS, display_name, literal
from tape_exp.settings.schema import GROUPS

# overrides that say where a run is, not what it computes
PLACES = ("runs=", "cache=", "plugins=", "trainer", "logger")


@dataclass(kw_only=True)
class Compare(RunArtifact):
    """A table of the user's own, or of a YAML in ``conf/paper``: a row a model, a column a metric.

    Args:
        metrics: the columns, in this order; none: every metric of the records but
            diagnostics.
    """

    metrics: list[str] = field(default_factory=list)
    seeds: Sequence[int] = field(default=(0,), init=False)  # of its runs, for its command

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model."""
        metrics = [metric for runs in records.values() for metric in runs[0]["metrics"]]
        known = list(dict.fromkeys(m for m in metrics if not m.endswith("_stderr")))
        for metric in self.metrics if records else []:
            if metric not in known:
                raise ConfigError(
                    f"metrics={metric}{did_you_mean(metric, known)} The records of "
                    f"task={self.task} have: {', '.join(known)}."
                )
        chosen = self.metrics or list(filter(is_result, known))
        every = [r["metrics"] for runs in records.values() for r in runs]
        digits = {key: _digits(key, [metrics.get(key, 0.0) for metrics in every]) for key in chosen}
        rows: list[Row] = []
        for model in self.models:
            runs = records.get(model, [])
            row: Row = {"model": model}
            row["parameters"] = integer(runs[0]["parameters"]) if runs else NOT_RUN
            row |= {key: mean_of(runs, key, digits[key]) for key in chosen}
            rows.append(row | origin(runs, scale))
        return Table([*columns(["model", "parameters", *chosen]), *ORIGIN], rows)

    def caption(self, scale: str, records: Records) -> str:
        """What was run."""
        return f"{self.subject(scale)} mean over seeds: ± is half of its 95 % interval."

    def notes(self, records: Records) -> str:
        """Whether all models read the same data, and how records differ."""
        return f"{SAME_DATA[same_data(records)]} {super().notes(records)}".strip()

    def command(self, scale: str) -> str:
        """What runs it; nothing where keys of the models differ, which no single command does."""
        if self.name in names():
            return super().command(scale)
        if any(" " in model for model in self.models):
            return ""
        words = [f"task={self.task}", f"model={','.join(self.models)}", f"scale={scale}"]
        words += [f"seeds={','.join(map(str, self.seeds))}", *self.overrides]
        words += [] if self.name == default_name(self.task) else [f"--name={self.name}"]
        return f"tape-exp paper compare {shlex.join(words)}"

    def subject(self, scale: str) -> str:
        """What is compared: the beginning of the caption."""
        return f"{self.title}. {self.setting(scale)}"

    def setting(self, scale: str) -> str:
        """What all runs have in common: the part of the caption that tells comparisons apart."""
        words = deciding(self.overrides)
        keys = f", with {' '.join(words)}" if words else ""
        return f"Task {self.task} at scale {scale}{keys};"

    def check_replaced(self, scale: str, folder: Path) -> None:
        """Raise :class:`ConfigError` where the table that this one would replace is of another
        setting, or has a model that this one lacks.
        """
        table = folder / f"{self.name}-{scale}.md"
        advice = "keep this one beside it with --name=<a name>, or remove the file."
        if not table.exists():
            return
        if self.setting(scale) not in table.read_text():
            raise ConfigError(f"{table} holds another comparison; {advice}")
        if lost := [m for m in _models_in(table.with_suffix(".csv")) if m not in self.models]:
            raise ConfigError(
                f"{table} has {', '.join(lost)} too; add it to model={','.join(self.models)}, "
                f"{advice}"
            )


def comparisons(records: Sequence[Record]) -> list[tuple[Compare, str, Records]]:
    """A table for each setting in which the records have two models or more; with its scale, and
    with the runs of each model.
    """
    groups: dict[tuple[str, ...], dict[str, list[Record]]] = {}
    scales: dict[tuple[str, ...], str] = {}
    for record in records:
        if "debug" in record["config"]:
            continue
        words = rerun.words(record["config"])
        model = [word.removeprefix("model=") for word in words if word.startswith("model")]
        setting = tuple(word for word in words if not word.startswith(("model", "seed=")))
        groups.setdefault(setting, {}).setdefault(" ".join(model), []).append(record)
        scales[setting] = record["config"]["scale"]
    found: list[tuple[Compare, str, Records]] = []
    of_task = Counter[str]()
    several = [setting for setting, runs in groups.items() if len(runs) > 1]
    for setting in sorted(several, key=len):  # that without keys has the name of its command
        runs = groups[setting]
        given, rest = split_words(setting, ("task", "scale"))
        task = given["task"]
        of_task[task] += 1
        name = default_name(task) + (f"_{of_task[task]}" if of_task[task] > 1 else "")
        title = f"{', '.join(map(display_name, runs))} side by side"
        every = [record for of_model in runs.values() for record in of_model]
        what: Any = {"models": [*runs], "overrides": rest}
        one = Compare(name=name, title=title, task=task, **what)
        one.seeds = sorted({record["seed"] for record in every})
        found.append((one, scales[setting], runs))
    return found


def default_name(task: str) -> str:
    """Of the file of a comparison to which its command gives no name."""
    return f"compare_{task}"


def _models_in(path: Path) -> list[str]:
    """The models of a table that have runs; none where there is no such file."""
    if not path.exists():
        return []
    with path.open() as file:
        return [row["model"].rstrip(MARKS) for row in csv.DictReader(file) if row["seeds"]]


def of_seeds(records: Records, seeds: Sequence[int]) -> tuple[Records, list[int]]:
    """The records of some seeds, and the other seeds that there are records of."""
    chosen = {
        label: [run for run in runs if run["seed"] in seeds] for label, runs in records.items()
    }
    others = {run["seed"] for runs in records.values() for run in runs} - {*seeds}
    return {label: runs for label, runs in chosen.items() if runs}, sorted(others)


def deciding(overrides: Sequence[str]) -> list[str]:
    """Those that say what a run computes, not where it is, in one order: any is one experiment."""
    return sorted(word for word in overrides if not word.lstrip("+~").startswith(PLACES))


def requested(words: Sequence[str]) -> tuple[Compare, str, list[int]]:
    """The comparison, scale and seeds that the words of ``compare`` ask for.

    They are ``task=<task> model=<model,…> [scale=] [seeds=] [metrics=a,b] [key=value …]``.

    Raises:
        ConfigError: task or models are missing, or a word is wrong.
    """
    scale, seeds, further = settings_of(words)
    given, extra = split_words(further, ("task", "model", "metrics"))
    check_words("comparison", given, extra)
    chosen = given["model"].split(",")
    metrics = given["metrics"].split(",") if "metrics" in given else []
    if not all(metrics):
        raise ConfigError(f"metrics={given['metrics']} has an empty name; leave it out.")
    for key, words in (("model", chosen), ("metrics", metrics)):
        if twice := [word for word in words if words.count(word) > 1]:
            raise ConfigError(f"{key}={given[key]} names {twice[0]} twice; name each once.")
    task = given["task"]
    title = f"{', '.join(map(display_name, chosen))} side by side"
    choices = [[f"model={model}", f"task={task}", f"scale={scale}"] for model in chosen]
    overrides = in_one_form(choices, extra)
    what: Any = {"task": task, "models": chosen, "overrides": overrides, "metrics": metrics}
    comparison = Compare(name=default_name(task), title=title, **what)
    comparison.seeds = seeds
    return comparison, scale, seeds


def in_one_form(choices: Sequence[Sequence[str]], overrides: Sequence[str]) -> list[str]:
    """Overrides of which the deciding ones are last, ordered by their keys, have the values of the
    config, and change something: other wordings of one comparison become the same.

    Args:
        choices: the other words of each model's runs.

    Raises:
        ConfigError: an override is wrong.
    """
    if not (named := deciding(overrides)):
        return list(overrides)
    with_keys = [compose_config([*words, *overrides]) for words in choices]
    without = [compose_config(words) for words in choices]
    found = {}
    for word in named:
        key, _, choice = word.lstrip("+~").partition("=")
        if key in GROUPS and all(cfg[key].name == choice for cfg in without):
            continue
        before, now = ([_value(cfg, key) for cfg in configs] for configs in (without, with_keys))
        alike = all(value == now[0] for value in now) and not isinstance(now[0], dict)
        if key in GROUPS or word.startswith("~") or "${" in word or not alike:
            found[key] = word  # as it was given
        elif now != before:
            added = "+" if word.startswith("+") and None in before else ""
            found[key] = f"{added}{key}={literal(now[0])}"
    return [word for word in overrides if word not in named] + [found[key] for key in sorted(found)]


def _value(cfg: DictConfig, key: str) -> Any:
    """What a config has at a key; None where it has nothing."""
    value = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def check_words(what: str, given: Mapping[str, str], further: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a comparison or a search lacks its task or its models, or
    has a word that is no override.
    """
    for key, example in (("task", "task=arithmetic"), ("model", "model=rope,tape")):
        if not given.get(key):
            raise ConfigError(f"a {what} needs {key}=, as in {example}.")
    if wrong := [
        word for word in further if "=" not in word or word.lstrip("+").startswith("seed=")
    ]:
        raise ConfigError(
            f"{wrong[0]} is no word of a {what}; seeds are given as seeds=0,1,2, other keys with "
            "their value, as task.train_digits=6."
        )
    refuse_debug(further, what)


def _digits(metric: str, values: Sequence[float]) -> int:
    """Decimals of a column: two of percent and perplexities, more of small losses and numbers."""
    small = 1 if metric.endswith("loss") else 0.1
    return 4 if 0 < max(map(abs, values), default=0.0) < small else 2
