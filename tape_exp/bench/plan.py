"""What a bench runs: a search of learning rates that is the same for all, then further seeds."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from omegaconf import DictConfig

from tape_exp.bench.tasks import SETS, Entry, chosen
from tape_exp.paper.artifacts import UNFIT, Records, RunArtifact
from tape_exp.paper.compare import deciding
from tape_exp.paper.records import Record
from tape_exp.paper.words import settings_of, split_words
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.plugins import names_in

RATES = (0.001, 0.003, 0.01)
RIVAL = "rope"
WHICH = ("task.problem=", "task.group=", "task.kind=")  # what a task of the list has for its own


@dataclass(kw_only=True)
class Bench(RunArtifact):
    """Some models on some tasks: the runs they need, and which of them count.

    At the first seed every model has every rate on every task; the lowest validation loss, on
    further rows of the trained lengths, chooses the rate of the model on the task, and the test has
    no part in it. Further seeds run at that rate alone.

    Args:
        entries: the tasks.
        rates: learning rates, the same for every model.
        seeds: the first is that of the search.
        choices: (model, task) -> the rate that was chosen, once all have run.
        unfit: (model, task) -> why the model cannot have the task.
        group: what the tables' files are called by.
    """

    entries: Sequence[Entry]
    rates: Sequence[float] = RATES
    seeds: Sequence[int] = (0,)
    choices: dict[tuple[str, str], float] = field(default_factory=dict)
    unfit: dict[tuple[str, str], str] = field(default_factory=dict)
    group: str = "quick"

    def lines(
        self, scale: str, seed: Sequence[str], extra: Sequence[str]
    ) -> Iterator[tuple[str, list[str]]]:
        """Task by task every model and rate; at seeds beyond the first only the chosen rates."""
        search = not seed or list(seed) == [f"seed={self.seeds[0]}"]
        for entry, model, rate in product(self.entries, self.models, self.rates):
            pair = model, entry.name
            if pair not in self.unfit and (search or self.choices.get(pair) == rate):
                words = [f"model={model}", *entry.words, f"task.optim.lr={rate}", f"scale={scale}"]
                yield label(*pair, rate), [*words, *seed, *self.words(scale), *extra]

    def of_scale(self, scale: str, record: Record) -> bool:
        """Whether a record may be one of its runs at a scale."""
        models = record["config"]["model"]["name"] in self.models
        return models and super().of_scale(scale, record)

    def _fault(self, scale: str, records: Records) -> str:
        """What the board cannot read of some records, or nothing."""
        entries = {entry.name: entry for entry in self.entries}
        try:
            for key, runs in records.items():
                entry = entries[key.split("/")[1]]
                for run in runs:
                    entry.by_length(run), entry.rows(run), entry.guessed(run), entry.score(run)
        except UNFIT as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def each(self, scale: str) -> Iterator[tuple[tuple[str, str], DictConfig]]:
        """A config of every model on every task, at the first rate and seed."""
        for entry, model in product(self.entries, self.models):
            rate = f"task.optim.lr={self.rates[0]}"
            words = [f"model={model}", *entry.words, rate, f"scale={scale}"]
            seed = f"seed={self.seeds[0]}"
            yield (model, entry.name), compose_config([*words, seed, *self.words(scale)])

    def losses(self, records: Records, model: str, task: str) -> dict[float, float]:
        """The validation loss at the first seed of each rate that has run."""
        found = {}
        for rate in self.rates:
            for record in records.get(label(model, task, rate), []):
                if record["seed"] == self.seeds[0] and "val/loss" in record["metrics"]:
                    found[rate] = record["metrics"]["val/loss"]
        return found

    def choose(self, records: Records) -> None:
        """The rate of each model on each task, where all its rates have run at the first seed."""
        for model, entry in product(self.models, self.entries):
            losses = self.losses(records, model, entry.name)
            if len(losses) == len(self.rates):
                self.choices[model, entry.name] = min(losses, key=lambda rate: losses[rate])

    def runs(self, records: Records, model: str, task: str) -> list[Record]:
        """The records of a model on a task at the chosen rate, by seed; none before the choice."""
        rate = self.choices.get((model, task))
        return [] if rate is None else records.get(label(model, task, rate), [])

    def effort(self, records: Records) -> dict[str, Any]:
        """What the search of each model on each task tried, chose and took, for a JSON file."""
        tasks: dict[str, Any] = {}
        for entry, model in product(self.entries, sorted(self.models)):
            tried = {
                f"{rate:g}": {
                    "run": record.get("run"),
                    "val/loss": record["metrics"].get("val/loss"),
                    "steps": record.get("steps"),
                    "training_seconds": record.get("seconds", {}).get("training"),
                }
                for rate in self.rates
                for record in records.get(label(model, entry.name, rate), [])
                if record["seed"] == self.seeds[0]
            }
            if tried:
                seeds = [record["seed"] for record in self.runs(records, model, entry.name)]
                of_model = {"tried": tried, "chosen": self.choices.get((model, entry.name))}
                tasks.setdefault(entry.name, {})[model] = of_model | {"seeds": seeds}
        words = deciding(self.overrides)
        return {
            **({"overrides": words} if words else {}),
            "rates": list(self.rates),
            "search_seed": self.seeds[0],
            "rule": "the lowest val/loss: further rows of the trained lengths",
            "tasks": tasks,
        }

    def settings(self, scale: str) -> str:
        """What all its runs have in common, in a sentence."""
        words = deciding(self.overrides)
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        keys = f", with {' '.join(words)}" if words else ""
        return f"Scale {scale}{keys}; learning rates {rates}, searched at seed {self.seeds[0]}."


def label(model: str, task: str, rate: float) -> str:
    """``tape/reverse/0.003``."""
    return f"{model}/{task}/{rate:g}"


def requested(words: Sequence[str]) -> tuple[Bench, str]:
    """The bench and the scale that the words of the command ask for.

    They are ``[model …] [tasks=] [scale=] [seeds=] [rates=] [key=value …]``.

    Raises:
        ConfigError: a word is wrong.
    """
    models = [word for word in words if "=" not in word]
    scale, seeds, further = settings_of([word for word in words if "=" in word])
    for model in models:
        one_of("model", model, names_in("model"))
    given, extra = split_words(further, ("tasks", "rates"))
    fixed = ("seed=", "task=", "model=", "peft=", "checkpoint=", "task.optim.lr=", "debug", *WHICH)
    if wrong := [word for word in extra if word.lstrip("+~").startswith(fixed)]:
        raise ConfigError(
            f"{wrong[0]} is no word of a bench: models are given by name, tasks as "
            "tasks=reverse,sort, seeds as seeds=0,1,2 and learning rates as rates=0.001,0.003."
        )
    for key, several in (("seeds", [*map(str, seeds)]), ("models", models)):
        if twice := [word for word in several if several.count(word) > 1]:
            raise ConfigError(f"{key} name {twice[0]} twice; name each once.")
    tasks = given.get("tasks", "quick")
    entries = chosen(tasks)
    bench = Bench(
        name="bench",
        title="Encodings on the battery",
        task="battery",
        models=models,
        overrides=extra,
        entries=entries,
        rates=_rates(given.get("rates")),
        seeds=seeds,
        group=tasks if tasks in SETS else _group(entries),
    )
    return bench, scale


def _group(entries: Sequence[Entry]) -> str:
    """What the files of a bench of some tasks are called by: all of them, or of many the first."""
    names = [entry.name for entry in entries]
    if len(names) <= 3:
        return "-".join(names)
    digest = hashlib.sha256(",".join(names).encode()).hexdigest()[:6]
    return f"{names[0]}-and-{len(names) - 1}-more-{digest}"


def _rates(text: str | None) -> list[float]:
    if text is None:
        return list(RATES)
    try:
        rates = sorted({float(word) for word in text.split(",")})
        if not all(0 < rate < 10 for rate in rates):
            raise ValueError
    except ValueError as error:
        raise ConfigError(
            f"rates={text} must be numbers above 0 and below 10, as in rates=0.001,0.003."
        ) from error
    if len({f"{rate:g}" for rate in rates}) < len(rates):
        raise ConfigError(f"rates={text} agree to six digits; give rates that differ more.")
    return rates


def shown(bench: Bench, records: Sequence[Record]) -> Bench:
    """The bench of all models that some records have, besides those that were asked for.

    Args:
        records: those that benches have left.
    """
    of_records = {record["config"]["model"]["name"] for record in records}
    others = sorted(of_records & {*names_in("model")} - {*bench.models})
    return replace(bench, models=[*bench.models, *others], choices=dict(bench.choices))
