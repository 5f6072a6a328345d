"""Every key of every section, from the schema, with values that it should not have."""

import dataclasses
import inspect
import random
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.settings.compose import compose_config, known_keys
from tape_exp.settings.folders import CONF
from tape_exp.settings.targets import HOMES, locate
from tests.campaign.world import ARCH, TINY

VALUES = {
    "wrong type": "abc",
    "a list": "[1]",
    "a section": "{a: 1}",
    "negative": "-3",
    "zero": "0",
    "huge": "1" + "0" * 18,
    "not a number": "nan",
    "infinite": "inf",
    "empty": "''",
    "null": "null",
    "a flag": "true",
    "unicode": "'naïve 日本語'",
    "very long": "x" * 5000,
    "another key": "${seed}",
}
NUMBERS = ("negative", "zero", "huge", "not a number", "infinite")
# What a user may call as they like, or where any place is a right one.
FREE = ("logger.project", "logger.entity", "runs", "cache", "name", "repository", "revision")
# What makes a run of any task small.
LITTLE = {
    "windows.tokens": 256,
    "sliding.tokens": 256,
    "trials": 1,
    "limit": 2,
    "timing.seconds": 0.1,
}
LITTLE |= {
    "train_tokens": 4096,
    "validation_rows": 2,
    "samples_per_cell": 1,
    "tokenizer.kind": "byte",
}
LITTLE |= {"train_digits": 1, "test_digits": 2, "train_letters": 2, "test_letters": 4}
BASES = [f"task={path.stem}" for path in sorted((CONF / "task").glob("*.yaml"))]


@dataclass(frozen=True)
class Case:
    """One wrong value: the words of the command, the key, and of which kind the value is."""

    words: tuple[str, ...]
    key: str
    kind: str

    def nonsense(self, sort: type | None) -> bool:
        """Whether it is nonsense to accept it, for a key whose values are of ``sort``."""
        if self.kind == "unknown key":
            return True
        if sort in (int, float):
            return self.kind not in ("zero", "huge", "null", "another key")
        if sort is bool:
            return self.kind not in ("a flag", "null", "zero", "huge", "negative", "another key")
        return self.kind in ("a list", "a section", "empty")


def tiny(base: str) -> list[str]:
    """The words of the smallest run of a task."""
    cfg = compose_config([base])
    words = [base, *TINY]
    keys = OmegaConf.to_container(cfg.task, resolve=True)
    assert isinstance(keys, dict)
    if "arch" in keys:
        words += ARCH
    if "optim" in keys:
        words += ["task.optim.batch=4", "task.optim.max_steps=2"]
    return words + [f"task.{key}={value}" for key, value in LITTLE.items() if has(cfg.task, key)]


def keys(base: str) -> dict[str, type | None]:
    """The keys of a config and what type their values have, where it is a simple one."""
    cfg = compose_config([base])
    found: dict[str, type | None] = {}
    for key in known_keys([base]):
        if key in HOMES:
            continue
        node = OmegaConf.select(cfg, key, throw_on_missing=False)
        if not isinstance(node, DictConfig):
            found[key] = sort_of(cfg, key, node)
    for section in ("task", "model"):
        for name, parameter in parameters(cfg[section], section):
            found.setdefault(f"{section}.{name}", simple(parameter.annotation))
    return found


def parameters(node: Any, section: str) -> Iterator[tuple[str, inspect.Parameter]]:
    """What the constructor of a section takes from a config."""
    cls: Any = locate(node._target_, section)
    hints = typing.get_type_hints(vars(cls).get("__init__", cls.__init__))
    for name, parameter in inspect.signature(cls).parameters.items():
        if simple(hints.get(name)) is not None:
            yield name, parameter.replace(annotation=hints[name])
        for option in typing.get_args(hints.get(name)) or (hints.get(name),):
            if dataclasses.is_dataclass(option):
                for key, hint in typing.get_type_hints(option).items():
                    yield f"{name}.{key}", parameter.replace(annotation=hint)


def simple(hint: Any) -> type | None:
    """The type of an annotation such as ``int | None``; None if it is not a simple one."""
    options = [o for o in typing.get_args(hint) or (hint,) if o is not type(None)]
    return options[0] if len(options) == 1 and options[0] in (int, float, bool, str) else None


def sort_of(cfg: DictConfig, key: str, value: Any) -> type | None:
    """By the value that a YAML sets, where no annotation is at hand."""
    return type(value) if type(value) in (int, float, bool, str) else None


def cases(seed: int, bases: Sequence[str] = ()) -> list[tuple[Case, type | None]]:
    """Every key once, in the first of ``bases`` that has it, with every value, in a random order.

    Without ``bases``, those of every task and of every model.
    """
    tried: set[tuple[str, str]] = set()
    found: list[tuple[Case, type | None]] = []
    models = [f"model={path.stem}" for path in sorted((CONF / "model").glob("*.yaml"))]
    for base in bases or [*BASES, *models]:
        cfg = compose_config([base])
        words = [base, *tiny("task=arithmetic")] if base in models else [*tiny(base), "model=rope"]
        for key, sort in keys(base).items():
            section = key.partition(".")[0]
            owner = str(cfg[section].get("_target_", "")) if section in ("task", "model") else ""
            if section == "hydra" or (owner, key) in tried:
                continue
            tried.add((owner, key))
            kept = [word for word in words if word.partition("=")[0] != key]
            word = key if has(cfg, key) else f"+{key}"
            for kind, value in VALUES.items():
                found.append((Case((*kept, f"{word}={value}"), key, kind), sort))
            found.append((Case((*words, f"{key}x=1"), key, "unknown key"), sort))
    random.Random(seed).shuffle(found)
    return found


def has(cfg: DictConfig, key: str) -> bool:
    """Whether the YAMLs set the key."""
    node: Any = cfg
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in list(node):
            return False
        node = node._get_node(part)
    return True
