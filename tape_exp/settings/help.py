"""What the help of ``train`` and ``plan`` says, and how these commands were called."""

import textwrap
from collections.abc import Callable

from omegaconf import OmegaConf

from tape_exp.settings import folders
from tape_exp.settings.plugins import names_in

GROUPS = ("model", "task", "scale", "trainer", "logger", "peft", "debug")
PLAN = "tape-exp plan"


def register_help() -> None:
    """Give Hydra the resolvers of conf/hydra/help."""
    resolvers: dict[str, Callable[..., str]] = {
        "choices": _choices,
        "groups": lambda: "\n".join(map(_choices, GROUPS)),
        "more": footer,
        "program": program,
        "told": folders.told,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def program() -> str:
    """The command whose words are read, as users give it."""
    return PLAN if folders.called_as == PLAN else folders.TRAIN


def _choices(group: str) -> str:
    """The YAMLs of a group, wrapped and indented."""
    names = ", ".join(names_in(group))
    return textwrap.fill(names, 100, initial_indent=f"  {group:9}", subsequent_indent=" " * 11)


def footer() -> str:
    """Where to read on; the pages of the documentation are in a clone."""
    clone = not folders.INSTALLED
    lines = {
        f"{program()} --cfg job": "print the resolved config",
        "tape-exp --help": f"the other commands{'; in a clone also make help' if clone else ''}",
    }
    if clone:
        lines["docs/architecture.md"] = "what is where"
        lines["docs/speed.md"] = "trainer.attention, trainer.precision, trainer.compile"
    return "More:  " + "\n       ".join(f"{what:30}{why}" for what, why in lines.items())
