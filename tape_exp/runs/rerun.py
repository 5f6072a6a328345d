"""The overrides that make a run of a config again."""

import functools
import re
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from tape_exp.runs.identity import without_folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.naming import choice_of, choice_of_model, literal
from tape_exp.settings.schema import GROUPS

KEYS = ("seed", "model", "task", "peft", "debug")
NAMED = ("model", "task", "scale")  # choices that a command names even where they are the default


def words(config: dict[str, Any]) -> list[str]:
    """The overrides that compose to a recorded config, as far as ``identity_of`` can tell."""
    task, source = config["task"], config["task"].get("text", config["task"]).get("source")
    wanted: dict[str, Any] = {key: config[key] for key in KEYS if key in config}
    wanted["scale"] = {"name": config["scale"]} | ({} if source is None else {"text": source})
    wanted["trainer"] = {"precision": config["precision"]}
    checkpoint = config.get("checkpoint")
    if checkpoint != task.get("init_from"):  # else the task names it
        wanted["checkpoint"] = checkpoint
    overrides = words_of(wanted, _composed, partial=True)
    # A name such as scrolls_qasper is computed from other keys.
    return [word for word in overrides if not re.match(r"\w+\.name=", word)]


@functools.cache
def _composed(*overrides: str) -> dict[str, Any]:
    cfg: Any = OmegaConf.to_container(compose_config(overrides), resolve=True)
    return without_folders(cfg)


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
