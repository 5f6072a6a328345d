"""The model card of an exported run: what it is, what it measured, how to load it."""

from typing import Any

import yaml

from tape_exp.runs.evaluation import is_diagnostic
from tape_exp.settings.naming import display_name

CARD = """{head}

Positional encoding: {model}. Task: {task}, at scale {scale}, seed {seed}. It has {parameters:,} \
parameters and was trained for {steps:,} steps ({tokens:,} tokens). It is the result of an \
experiment on positional encodings, and is meant for further ones only.

## Results

| metric | value |
|---|---|
{results}

± is half of a 95 % interval over test samples, of this one run.

## The run

- run: `{run}`, begun {started}
- commit of tape_exp: {commits}
- fingerprint of the data: `{data_fingerprint}`
- machine: {machine}
{packages}- command, with the last name of each path: `{command}`

```yaml
{config}```
"""


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """The ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        record: of the run.
        parameters: of the model, with adapters merged.
        command: that makes the run again.
    """
    config, git, metrics = record["config"], record["git"], record["metrics"]
    commits = ", then ".join(str(commit) for commit in (git["commit"], *git.get("later", ())))
    results = []
    for key, value in metrics.items():
        if not (key.endswith("_stderr") or is_diagnostic(key)):
            error = metrics.get(f"{key}_stderr")
            spread = f" ± {1.96 * error:.2g}" if error else ""  # 0 says only that all were alike
            results.append(f"| {key} | {value:.4g}{spread} |")
    packages = (
        f"- package {name}, version {package['version']}, sources `{package['sources']}`\n"
        for name, package in record.get("plugins", {}).items()
    )
    derived = {
        "head": head.rstrip(),
        "parameters": parameters,
        "model": display_name(config["model"]["name"]),
        "task": config["task"]["name"],
        "scale": config["scale"],
        "results": "\n".join(results),
        "started": record["started"][:10],
        "commits": commits + (", with changes that are not committed" if git["dirty"] else ""),
        "machine": ", ".join(record["hardware"]["gpus"] or [record["hardware"]["cpu"]]),
        "packages": "".join(packages),
        "command": command,
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
    }
    return CARD.format(**(record | derived))
