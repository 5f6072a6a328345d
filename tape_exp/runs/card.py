"""The model card of an exported run: what it is, what it measured, how to load it."""

from typing import Any

import yaml

from tape_exp.runs.evaluation import is_result
from tape_exp.settings.naming import display_name


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """The ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        parameters: of the model, with adapters merged.
        command: that makes the run again.
    """
    config, git, metrics = record["config"], record["git"], record["metrics"]
    commits = ", then ".join(str(commit) for commit in (git["commit"], *git.get("later", ())))
    commits += ", with changes that are not committed" if git["dirty"] else ""
    results = ""
    for key, value in metrics.items():
        if is_result(key):
            error = metrics.get(f"{key}_stderr")
            spread = f" ± {1.96 * error:.2g}" if error else ""  # 0 says only that all were alike
            results += f"| {key} | {value:.4g}{spread} |\n"
    packages = "".join(
        f"- package {name}, version {package['version']}, sources `{package['sources']}`\n"
        for name, package in record.get("plugins", {}).items()
    )
    return f"""{head.rstrip()}

Positional encoding: {display_name(config["model"]["name"])}. Task: {config["task"]["name"]}, at \
scale {config["scale"]}, seed {record["seed"]}. It has {parameters:,} parameters and was trained \
for {record["steps"]:,} steps ({record["tokens"]:,} tokens). It is the result of an experiment on \
positional encodings, and is meant for further ones only.

## Results

| metric | value |
|---|---|
{results}
± is half of a 95 % interval over test samples, of this one run.

## The run

- run: `{record["run"]}`, begun {record["started"][:10]}
- commit of tape_exp: {commits}
- fingerprint of the data: `{record["data_fingerprint"]}`
- machine: {", ".join(record["hardware"]["gpus"] or [record["hardware"]["cpu"]])}
{packages}- command, with the last name of each path: `{command}`

```yaml
{yaml.safe_dump(config, sort_keys=False, allow_unicode=True)}```
"""
