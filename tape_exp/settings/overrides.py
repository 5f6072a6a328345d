"""Values and choices in the words of Hydra's command line."""

import json
import re
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from tape_exp.settings.help import GROUPS
from tape_exp.settings.patterns import words_of_pattern
from tape_exp.settings.plugins import names_in

NAMED = ("model", "task", "scale")  # choices that a command names even where they are the default
_WORDS = ("null", "true", "false", "nan", "inf")


def literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(literal, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
        quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)  # a backslash is itself, but before a quote
        return "'" + re.sub(r"(\\+)$", r"\1\1", quoted) + "'"
    return value if isinstance(value, str) and value.lower() not in _WORDS else json.dumps(value)


def choice_of(group: str, name: str) -> str:
    """The longest YAML's name that begins ``name``: ``scrolls`` for the task ``scrolls_qasper``."""
    return max(
        (stem for stem in names_in(group) if name == stem or name.startswith(f"{stem}_")),
        key=len,
        default=name,
    )


def choice_of_model(model: Any) -> str:
    """What ``model=`` chooses a section with: a YAML's name, or a pattern of layers."""
    model = OmegaConf.to_container(model, resolve=True) if OmegaConf.is_config(model) else model
    if "layers" in model and model["name"] not in names_in("model"):
        return literal(words_of_pattern(model))
    return choice_of("model", model["name"])


def words_of(
    wanted: dict[str, Any], compose: Callable[..., dict[str, Any]], partial: bool = False
) -> list[str]:
    """The overrides that compose a config: its choices, every key that differs from what they give,
    and its seed.

    Args:
        wanted: the config, resolved.
        compose: what overrides compose to, in the form of ``wanted``.
        partial: whether ``wanted`` lacks keys, which are then left as they are.
    """
    plain = compose()
    words = []
    for group in (group for group in GROUPS if "name" in wanted.get(group, {})):
        choice = (
            choice_of_model(wanted[group])
            if group == "model"
            else choice_of(group, wanted[group]["name"])
        )
        if group in NAMED or choice != plain[group]["name"]:
            words.append(f"{group}={choice}")
    # The keys of the scale come first: other keys are computed from them.
    words += differences(compose(*words)["scale"], wanted["scale"], "scale", partial)
    words += differences(compose(*words), wanted, "", partial)
    return words + ([f"seed={wanted['seed']}"] if wanted["seed"] == plain["seed"] else [])


def differences(given: Any, wanted: Any, key: str, partial: bool = False) -> list[str]:
    """The words that turn a node, which is ``given`` at ``key``, into what is ``wanted``:
    ``a.b=1``, ``+a.new=2``, ``~a.old``.

    Args:
        partial: leave keys as they are that only one of the two has.
    """
    if isinstance(given, dict) and isinstance(wanted, dict) and given:
        inner = f"{key}." if key else ""
        words = [] if partial else [f"~{inner}{name}" for name in given if name not in wanted]
        for name, value in wanted.items():
            if name in given:
                words += differences(given[name], value, inner + name, partial)
            elif not partial:
                words.append(f"+{inner}{name}={literal(value)}")
        return words
    return [] if given == wanted else [f"{key}={literal(wanted)}"]
