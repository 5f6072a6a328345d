"""What pages and pictures call an encoding, a method of fine-tuning or a data set.

A YAML of conf/model or conf/peft says it in a comment among its first lines::

    # display: TAPE without attention

So the name is no key of the config: it changes no run, and a variant does not inherit it.
"""

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.plugins import yaml_of

KEY = "display"
MARKS = "†"  # that may follow a name
# what tables name besides the YAMLs: a model of the public code, and data sets
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
    """What a model, method or data set is called: ``TAPE`` for ``tape``, ``TAPE†`` for ``tape†``.

    Of a pattern of layers each entry is: ``RoPE ×3 + NoPE`` for ``rope×3+nope``. A name whose YAML
    gives none, or that has no YAML, stays as it is.

    Raises:
        ConfigError: its YAML nearly says it.
    """
    bare = name.rstrip(MARKS)
    if "+" in bare or "×" in bare:
        parts = (part.partition("×") for part in bare.split("+"))
        shown = " + ".join(_of(one) + (f" ×{n}" if n else "") for one, _, n in parts)
    else:
        shown = _of(bare)
    return shown + name[len(bare) :]


def display_label(label: str) -> str:
    """The label of an artifact's runs, which begins with a model or a method: ``TAPE s5``."""
    name, *rest = re.split("[ /]", label, maxsplit=1)
    return " ".join([display_name(name), *rest])


def _of(name: str) -> str:
    for path in yamls_of(name):
        if shown := _header(path):
            return shown
    return OTHERS.get(name, name)


def yamls_of(name: str) -> list[Path]:
    """The YAMLs that may say what a name is called, the first one first."""
    found = (yaml_of(group, name) for group in ("model", "peft"))
    return [path for path in found if path]


@cache
def _header(path: Path) -> str:
    """What ``# display:`` says in the comments that a YAML begins with; empty where none does."""
    if not path.is_file():
        return ""
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        key, _, value = line.lstrip("# ").partition(":")
        if key == KEY:
            return value.strip()
        if get_close_matches(key.lower(), [KEY], cutoff=0.8):
            raise ConfigError(f"{path}: `# {key}:` is not read; write `# {KEY}:{value}`.")
    return ""
