"""What models and data sets are called in tables, and values in Hydra's command-line grammar."""

import json
import re
from functools import cache
from pathlib import PurePath
from typing import Any

from tape_exp.settings.plugins import yaml_of

MARKS = "†"  # that may follow a name
# Names in tables that have no YAML: a model of the public code, and data sets.
OTHERS = {
    "tape_separate": "TAPE (as public code writes it)",
    "proof_pile": "Proof-pile",
    "pg19": "PG-19",
    "qasper": "Qasper",
    "contract_nli": "ContractNLI",
    "narrative_qa": "NarrativeQA",
    "quality": "QuALITY",
    "qmsum": "QMSum",
    "summ_screen_fd": "SummScreenFD",
    "gov_report": "GovReport",
}


def display_name(name: str) -> str:
    """What a model, method or data set is called: ``TAPE†`` for ``tape†``, ``RoPE ×3 + NoPE`` for
    ``rope×3+nope``. A name whose YAML does not say stays as it is.
    """
    bare = name.rstrip(MARKS)
    parts = (part.partition("×") for part in bare.split("+"))
    text = " + ".join(_name(one) + (f" ×{n}" if n else "") for one, _, n in parts)
    return text + name[len(bare) :]


def task_title(task: Any) -> str:
    """What the config of a task is called in words: ``reverse`` for that problem of the battery."""
    return str(task.get("problem", task["name"])).replace("_", " ")


@cache
def _name(name: str) -> str:
    """What a YAML's comment ``# display: TAPE`` says, or the name itself."""
    for path in filter(None, (yaml_of("model", name), yaml_of("peft", name))):
        if line := re.search(
            r"^# display: *(.+?) *$", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            return line[1]
    return OTHERS.get(name, name)


def literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(literal, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
        quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)  # a backslash is itself, but before a quote
        return "'" + re.sub(r"(\\+)$", r"\1\1", quoted) + "'"
    words = ("null", "true", "false", "nan", "inf")
    return value if isinstance(value, str) and value.lower() not in words else json.dumps(value)
