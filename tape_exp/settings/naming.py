"""What models and data sets are called in tables, and values in Hydra's command-line grammar."""

import json
import re
from functools import cache
from pathlib import PurePath
from typing import Any

from tape_exp.settings.plugins import yaml_of

MARKS = "†"  # that may follow a name
DISPLAY = re.compile(r"^# display: *(.+?) *$", re.MULTILINE)
NO_TEXT = ("null", "true", "false", "nan", "inf")  # without quotes
# Names in tables that have no YAML: a model of the public code, data sets, and groups.
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
    "s3": "S3",
    "a5": "A5",
    "s5": "S5",
}


def display_name(name: str) -> str:
    """Name a model, method or data set for readers. A name whose YAML does not say stays as it is.

    >>> display_name("tape†"), display_name("rope×3+nope"), display_name("mine")
    ('TAPE†', 'RoPE ×3 + NoPE', 'mine')
    """
    bare = name.rstrip(MARKS)
    marks = name.removeprefix(bare)
    titles = []
    for entry in bare.split("+"):
        model, _, count = entry.partition("×")
        titles.append(f"{_name(model)} ×{count}" if count else _name(model))
    return " + ".join(titles) + marks


def task_title(task: Any) -> str:
    """Name a task in words, from its config: ``reverse`` for that problem of the battery."""
    return str(task.get("problem", task["name"])).replace("_", " ")


@cache
def _name(name: str) -> str:
    """Return what a YAML's comment ``# display: TAPE`` says, or the name itself."""
    for group in ("model", "peft"):
        path = yaml_of(group, name)
        if path:
            line = DISPLAY.search(path.read_text(encoding="utf-8"))
            if line:
                return line[1]
    return OTHERS.get(name, name)


def literal(value: Any) -> str:
    """Write a value in the grammar of Hydra's overrides.

    >>> print(literal({"method": "yarn", "betas": [0.9, None], "note": "it's"}))
    {method:yarn,betas:[0.9,null],note:'it\\'s'}
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(literal, value)) + "]"
    if not isinstance(value, str | PurePath):
        return json.dumps(value)
    text = str(value)
    if not re.fullmatch(r"[A-Za-z_/][\w./-]*", text):
        quoted = re.sub(r"(\\*)'", r"\1\1\\'", text)  # a backslash is itself, but before a quote
        return "'" + re.sub(r"(\\+)$", r"\1\1", quoted) + "'"
    return json.dumps(text) if text.lower() in NO_TEXT else text
