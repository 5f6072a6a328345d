"""The model card of an exported run: what it is, what it measured, how to load it."""

from typing import Any

import yaml

from tape_exp.runs.evaluation import is_diagnostic
from tape_exp.settings.display import display_name

Z = 1.96  # standard errors in half of a 95 % interval


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """The ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        record: of the run.
        parameters: of the model, with adapters merged.
        command: that makes the run again.
    """
    config = yaml.safe_dump(record["config"], sort_keys=False, allow_unicode=True)
    parts = [
        head.rstrip(),
        _told(record, parameters),
        _results(record),
        "## The run",
        _facts(record, command),
    ]
    return "\n\n".join([*parts, f"```yaml\n{config}```"]) + "\n"


def _told(record: dict[str, Any], parameters: int) -> str:
    config = record["config"]
    return (
        f"Positional encoding: {display_name(config['model']['name'])}. Task: "
        f"{config['task']['name']}, at scale {config['scale']}, seed {record['seed']}. It has "
        f"{parameters:,} parameters and was trained for {record['steps']:,} steps "
        f"({record['tokens']:,} tokens). It is the result of an experiment on positional "
        "encodings, and is meant for further ones only."
    )


def _results(record: dict[str, Any]) -> str:
    """A table of the metrics, with intervals where there are standard errors."""
    metrics = record["metrics"]
    lines = ["## Results", "| metric | value |\n|---|---|"]
    for key, value in metrics.items():
        if key.endswith("_stderr") or is_diagnostic(key):
            continue
        error = metrics.get(f"{key}_stderr")
        spread = f" ± {Z * error:.2g}" if error else ""  # 0 says only that all were alike
        lines[-1] += f"\n| {key} | {value:.4g}{spread} |"
    if "±" in lines[-1]:
        lines.append("± is half of a 95 % interval over test samples, of this one run.")
    return "\n\n".join(lines)


def _facts(record: dict[str, Any], command: str) -> str:
    """Commit, data, machine and the command."""
    commit = record["git"]["commit"] or "unknown, outside a clone"
    changed = ", with changes that are not committed" if record["git"]["dirty"] else ""
    machine = ", ".join(record["hardware"].get("gpus") or [record["hardware"]["cpu"]])
    lines = [
        f"- run: `{record['run']}`, begun {record['started'][:10]}",
        f"- commit of tape_exp: {commit}{changed}",
        f"- fingerprint of the data: `{record['data_fingerprint']}`",
        f"- machine: {machine}",
    ]
    for package, found in record.get("plugins", {}).items():
        lines.append(f"- package {package} {found['version']}, sources `{found['sources']}`")
    return "\n".join([*lines, f"- command: `{command}`" if command else ""]).rstrip()
