"""The overrides that make a run of a config again."""

import re
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from tape_exp.runs.identity import without_folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.naming import choice_of, choice_of_model, literal
from tape_exp.settings.schema import GROUPS

KEYS = ("seed", "model", "task", "peft", "debug", "checkpoint")
NAMED = ("model", "task", "scale")  # choices that a command names even where they are the default


def words(config: dict[str, Any]) -> list[str]:
    """The overrides that compose to a recorded config, as far as ``identity_of`` can tell: its
    choices, every key that differs from what they give, and its seed.
    """
    source = config["task"].get("text", config["task"]).get("source")
    wanted: dict[str, Any] = {key: config[key] for key in KEYS if key in config}
    wanted["scale"] = {"name": config["scale"]} | ({} if source is None else {"text": source})
    wanted["trainer"] = {"precision": config["precision"]}
    plain, chosen = _composed(), []
    for group in (group for group in GROUPS if "name" in wanted.get(group, {})):
        name = wanted[group]["name"]
        is_model = group == "model"
        choice = choice_of_model(wanted[group]) if is_model else choice_of(group, name)
        if group in NAMED or choice != plain[group]["name"]:
            chosen.append(f"{group}={choice}")
    # The keys of the scale come first: other keys are computed from them.
    chosen += differences(_composed(*chosen)["scale"], wanted["scale"], "scale")
    chosen += differences(_composed(*chosen), wanted, "")
    chosen += [f"seed={wanted['seed']}"] if wanted["seed"] == plain["seed"] else []
    # A name such as scrolls_qasper is computed from other keys.
    return [word for word in chosen if not re.match(r"\w+\.name=", word)]


@cache
def _composed(*overrides: str) -> dict[str, Any]:
    cfg: Any = OmegaConf.to_container(compose_config(overrides), resolve=True)
    return without_folders(cfg)


def differences(given: Any, wanted: Any, key: str) -> list[str]:
    """The words that turn a node, which is ``given`` at ``key``, into what is ``wanted``; keys that
    only one of the two has are left as they are.
    """
    if isinstance(given, dict) and isinstance(wanted, dict) and given:
        inner = f"{key}." if key else ""
        shared = (name for name in wanted if name in given)
        return [w for name in shared for w in differences(given[name], wanted[name], inner + name)]
    return [] if given == wanted else [f"{key}={literal(wanted)}"]
