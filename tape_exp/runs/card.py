"""The model card of an exported run: what it is, what it measured, how to load it."""

import re
import shlex
from typing import Any

import yaml

from tape_exp.runs.evaluation import is_diagnostic
from tape_exp.runs.identity import names_a_folder
from tape_exp.runs.weights import is_task
from tape_exp.settings.display import display_name
from tape_exp.settings.redaction import unmarked

Z = 1.96  # standard errors in half of a 95 % interval


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """The ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        record: of the run.
        parameters: of the model, with adapters merged.
        command: that makes the run again, once the paths in it, which a record cuts to their last
            names, are whole again: the card says where there are some. One that Markdown cannot
            quote is left out.
    """
    config = yaml.safe_dump(record["config"], sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in ["", *re.findall("`+", config)]))
    parts = [
        head.rstrip(),
        _told(record, parameters),
        _results(record),
        "## The run",
        _facts(record, command),
    ]
    return "\n\n".join([*parts, f"{fence}yaml\n{config}{fence}"]) + "\n"


def _told(record: dict[str, Any], parameters: int) -> str:
    config = record["config"]
    return (
        f"Positional encoding: {unmarked(display_name(config['model']['name']))}. Task: "
        f"{unmarked(config['task']['name'])}, at scale {unmarked(config['scale'])}, seed "
        f"{record['seed']}. It has {parameters:,} parameters{_trained(record)}. It is the result "
        "of an experiment on positional encodings, and is meant for further ones only."
    )


def _trained(record: dict[str, Any]) -> str:
    """For how long, as far as the record says."""
    steps = f" and was trained for {record['steps']:,} steps" if "steps" in record else ""
    return f"{steps} ({record['tokens']:,} tokens)" if steps and "tokens" in record else steps


def _results(record: dict[str, Any]) -> str:
    """A table of the metrics, with intervals where there are standard errors."""
    metrics = record["metrics"]
    lines = ["## Results", "| metric | value |\n|---|---|"]
    for key, value in metrics.items():
        if key.endswith("_stderr") or is_diagnostic(key):
            continue
        error = metrics.get(f"{key}_stderr")
        spread = f" ± {Z * error:.2g}" if error else ""  # 0 says only that all were alike
        lines[-1] += f"\n| {unmarked(key)} | {value:.4g}{spread} |"
    if "±" in lines[-1]:
        lines.append("± is half of a 95 % interval over test samples, of this one run.")
    return "\n\n".join(lines)


def _facts(record: dict[str, Any], command: str) -> str:
    """Commit, data, machine and the command, as far as the record has them."""
    run = f"run: `{unmarked(record['run'])}`, " if "run" in record else ""
    every = (record["git"]["commit"], *record["git"].get("later", ()))
    commit = ", then ".join(each or "unknown, outside a clone" for each in every)
    changed = ", with changes that are not committed" if record["git"]["dirty"] else ""
    lines = [
        f"- {run}begun {unmarked(record['started'][:10])}",
        f"- commit of tape_exp: {unmarked(commit)}{changed}",
    ]
    if "data_fingerprint" in record:
        lines.append(f"- fingerprint of the data: `{unmarked(record['data_fingerprint'])}`")
    hardware = record.get("hardware", {})
    if machine := ", ".join(hardware.get("gpus") or [hardware.get("cpu", "")]):
        lines.append(f"- machine: {unmarked(machine)}")
    for package, found in record.get("plugins", {}).items():
        of = f", version {unmarked(found['version'])}" if "version" in found else ""
        lines.append(f"- package {unmarked(package)}{of}, sources `{unmarked(found['sources'])}`")
    if command.isprintable() and command and "`" not in command:
        cut = ", in which folders are cut to their last names" if _is_cut(command) else ""
        lines.append(f"- command{cut}: `{command}`")
    return "\n".join(lines)


def _is_cut(command: str) -> bool:
    """Whether a word of the command is a path, of which a record has the last name only."""
    words = shlex.split(command)
    parts = [word.partition("=") for word in words]
    begun_from = {value for key, _, value in parts if key in ("checkpoint", "task.init_from")}
    return names_a_folder(words) or not all(map(is_task, begun_from - {"null"}))
