"""The command that makes a recorded run again."""

import functools
import shlex
from typing import Any

from omegaconf import OmegaConf

from tape_exp.paper.artifacts import Record
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import CONF
from tape_exp.settings.overrides import choice_of, differences


def command(record: Record) -> str:
    """``python train.py …``: the choice of each group, then every key that differs from what that
    choice composes to.

    Keys that the code has since lost are left out. A record tells of each path its last name alone,
    and so does the command.
    """
    return shlex.join(["python", "train.py", *words(record["config"])])


def words(config: dict[str, Any]) -> list[str]:
    """The overrides of a recorded config: ``identity_of`` of what they compose to says the same as
    the record.
    """
    task, scale = choice_of("task", config["task"]["name"]), config["scale"]
    told = [
        f"model={config['model']['name']}",
        f"task={task}",
        f"scale={scale}",
        f"seed={config['seed']}",
    ]
    peft = config.get("peft", {"name": "none"})
    if peft["name"] != "none":
        told.append(f"peft={peft['name']}")
    source = config["task"].get("text", config["task"]).get("source")
    if source is not None and source != _choice("scale", scale)["text"]:
        told.append(f"scale.text={source}")
    checkpoint = config.get("checkpoint")
    if checkpoint is not None and checkpoint != config["task"].get("init_from"):
        told.append(f"checkpoint={checkpoint}")
    composed = {
        "model": _choice("model", config["model"]["name"]),
        "task": _task_of(task, scale, source),
    }
    composed |= {"peft": _choice("peft", peft["name"])} if "peft" in config else {}
    for (
        group,
        node,
    ) in (
        composed.items()
    ):  # a key that one of them lacks is left alone, and a name follows from the other keys
        changed = differences(node, config[group], group)
        told += [word for word in changed if not word.startswith(("~", "+", f"{group}.name="))]
    if config["precision"] != "auto":
        told.append(f"trainer.precision={config['precision']}")
    return told


@functools.cache
def _choice(group: str, name: str) -> Any:
    """A YAML of a group over those of its defaults list, which for models, scales and methods holds
    names of the same group.

    Hydra composes the same, a whole config at a time, which for every model would take seconds.
    """
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    above = [_choice(group, other) for other in node.pop("defaults", []) if other != "_self_"]
    return without_folders(OmegaConf.to_container(OmegaConf.merge(*above, node)))


@functools.cache
def _task_of(name: str, scale: str, source: str | None) -> Any:
    """The task of a config, as a record would tell it; it depends on the scale and the text
    alone.
    """
    text = [] if source is None else [f"scale.text={source}"]
    return without_folders(identity_of(compose_config([f"task={name}", f"scale={scale}", *text])))[
        "task"
    ]
