"""The command that makes a recorded run again."""

import functools
import re
import shlex
from typing import Any

from omegaconf import OmegaConf

from tape_exp.paper.records import Record
from tape_exp.runs.identity import without_folders
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import TRAIN
from tape_exp.settings.overrides import words_of

KEYS = ("seed", "model", "task", "peft", "debug")


def command(record: Record) -> str:
    """``python train.py …``: each group's choice, then every key that differs from the choice's.

    Keys that the code has since lost are left out. A record keeps only the last name of each path,
    and so does the command. A package that is not installed is named.
    """
    packages = plugins.naming(record.get("plugins") or ())
    compiled = ["trainer.compile=true"] if record.get("compiled") else []
    return shlex.join([*TRAIN.split(), *words(record["config"]), *compiled, *packages])


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
