"""The model card of an exported run: what it is, what it measured, how to load it."""

from typing import Any

import yaml

from tape_exp.runs.evaluation import is_diagnostic
from tape_exp.settings.display import display_name
from tape_exp.settings.errors import printable

Z = 1.96  # standard errors in half of a 95 % interval


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """The ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        record: of the run.
        parameters: of the model, with adapters merged.
        command: that makes the run again, with the last names of folders only.
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
        f"{parameters:,} parameters{_trained(record)}. It is the result of an experiment on "
        "positional encodings, and is meant for further ones only."
    )


def _trained(record: dict[str, Any]) -> str:
    """For how long, as far as the record says."""
    steps = f" and was trained for {record['steps']:,} steps" if "steps" in record else ""
    return f"{steps} ({record['tokens']:,} tokens)" if steps and "tokens" in record else steps


def _shown(text: Any) -> str:
    """A text of a record on one line, without what Markdown or a browser would take for markup."""
    return printable(" ".join(str(text).split())).translate(dict.fromkeys(map(ord, "`<>|")))


def _results(record: dict[str, Any]) -> str:
    """A table of the metrics, with intervals where there are standard errors."""
    metrics = record["metrics"]
    lines = ["## Results", "| metric | value |\n|---|---|"]
    for key, value in metrics.items():
        if key.endswith("_stderr") or is_diagnostic(key):
            continue
        error = metrics.get(f"{key}_stderr")
        spread = f" ± {Z * error:.2g}" if error else ""  # 0 says only that all were alike
        lines[-1] += f"\n| {_shown(key)} | {value:.4g}{spread} |"
    if "±" in lines[-1]:
        lines.append("± is half of a 95 % interval over test samples, of this one run.")
    return "\n\n".join(lines)


def _facts(record: dict[str, Any], command: str) -> str:
    """Commit, data, machine and the command."""
    commit = record["git"]["commit"] or "unknown, outside a clone"
    changed = ", with changes that are not committed" if record["git"]["dirty"] else ""
    hardware = record.get("hardware", {})
    machine = ", ".join(hardware.get("gpus") or [hardware.get("cpu", "unknown")])
    lines = [
        f"- run: `{_shown(record.get('run', 'unknown'))}`, begun {_shown(record['started'][:10])}",
        f"- commit of tape_exp: {_shown(commit)}{changed}",
        f"- machine: {_shown(machine)}",
    ]
    if "data_fingerprint" in record:
        lines.insert(2, f"- fingerprint of the data: `{_shown(record['data_fingerprint'])}`")
    for package, found in record.get("plugins", {}).items():
        of = f", version {_shown(found['version'])}" if "version" in found else ""
        lines.append(f"- package {_shown(package)}{of}, sources `{_shown(found['sources'])}`")
    cut = ", in which folders are cut to their last names" if ".path=" in command else ""
    command = f"- command{cut}: `{command}`" if command else ""
    return "\n".join([*lines, command]).rstrip()
