"""``tape-exp export <run> <folder>``: a run as a model that transformers loads, with a model card.

Adapters are merged into the weights. A model with RoPE becomes a plain Llama; any other is loaded
by ``AutoModelForCausalLM.from_pretrained`` after ``import tape_exp.models.hf``.
"""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError

from tape_exp.models import export, peft
from tape_exp.models.llama import fingerprint, read_config
from tape_exp.results.metric_names import is_result
from tape_exp.results.record import Record
from tape_exp.results.statistics import Z
from tape_exp.runs.checkpoint_info import chat_template, run_config
from tape_exp.runs.starting_weights import base_of
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError, warn
from tape_exp.settings.naming import display_name
from tape_exp.settings.parser import ArgumentParser
from tape_exp.training.loaded_run import LoadedRun, load, record_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model, or only its adapter."""
    parser = ArgumentParser(
        prog="tape-exp export",
        description="Write a run as a model that transformers loads, with a model card.",
        epilog="Example: tape-exp export runs/c4/smoke/rope/seed0-0123456789 my_model",
    )
    add = parser.add_argument
    add("run", type=Path, help="the run's folder, runs/<task>/<scale>/<model>/seed…")
    add("folder", type=Path, help="the folder to write, which must be new")
    dtype = "the type of the stored weights (default: %(default)s)"
    add("--dtype", choices=DTYPES, default="float32", help=dtype)
    name = "the name by which the card loads the model, as USER/MODEL (default: <folder>)"
    add("--name", help=name)
    add(
        "--adapter",
        metavar="BASE",
        help="write only LoRA's adapter, as peft loads it onto BASE, the Llama that the run began "
        "from (a folder, or a name on the hub)",
    )
    args = parser.parse_args(arguments)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    loaded = load(args.run, finished=False)
    name = args.name or args.folder.name
    try:
        if args.adapter:
            export_adapter(loaded, args.folder, args.adapter, name)
        else:
            peft.merge(loaded.model)
            export.save(
                loaded.model,
                args.folder,
                loaded.tokenizer,
                model=loaded.section,
                name=name,
                describe=lambda head: with_results(head, loaded),
                dtype=DTYPES[args.dtype],
                chat_template=chat_template(loaded.checkpoint) if loaded.checkpoint else None,
            )
    except SafetensorError as error:  # a full disk, which safetensors does not call an OSError
        raise OSError(f"{args.folder}: {error}") from error
    print(args.folder)
    return 0


def with_results(head: str, loaded: LoadedRun) -> str:
    """Complete the head of a model card by the run's record, if that is of these weights."""
    try:
        record = record_of(loaded.folder, loaded.checkpoint)
    except ConfigError as error:
        warn(f"{error} The card says how to load the model, and has no results.")
        return head
    parameters = loaded.model.named_parameters()
    count = sum(weight.numel() for name, weight in parameters if "lora_" not in name)
    return model_card(
        head, record, count, shlex.join(["tape-exp", "train", *Record(record).overrides])
    )


def export_adapter(loaded: LoadedRun, folder: Path, base: str, name: str) -> None:
    """Write the adapter of a run to a new folder, with a card of its record.

    Args:
        base: the Llama that the run began from, a folder or a name on the hub.
        name: by which the card loads it.
    """
    local = Path(base).expanduser()
    assert loaded.checkpoint is not None  # of a run that may be unfinished
    base_of_run = base_of(loaded.checkpoint)
    both = (local / "config.json").is_file() and base_of_run.is_dir()
    if both and fingerprint(local) != fingerprint(base_of_run):
        raise ConfigError(f"--adapter {base} has other weights than the run's base, {base_of_run}.")
    moved = moves_positions(loaded, base_of_run)
    export.save_adapter(
        loaded.model, folder, base, name, partial(with_results, loaded=loaded), moved
    )


def moves_positions(loaded: LoadedRun, base: Path) -> bool:
    """Say whether a run has other positions than its base, as far as that is known."""
    adaptation = loaded.model.adaptation
    if adaptation is None:
        return False
    if adaptation.interpolation != 1 or adaptation.theta is not None:
        return True
    if base.is_dir():
        scaling = read_config(base).scaling
    else:
        run = run_config(base)
        if run is None:  # a file outside of runs
            return True
        scaling = run.model.get("scaling") or {}
    own = loaded.config["model"].get("scaling") or {}
    return any(own.get(key) != value for key, value in scaling.items())


def model_card(head: str, record: dict[str, Any], parameters: int, command: str) -> str:
    """Write the ``README.md`` of an exported model or adapter.

    Args:
        head: its beginning, which says how to load it.
        parameters: of the model, with adapters merged.
        command: that makes the run again.
    """
    config = record["config"]
    git = record["git"]
    metrics = record["metrics"]
    if record.get("llama") and "tokenizer" in config["task"]:  # the Llama brought its own
        settings = config["task"]["tokenizer"].items()
        used = {key: value for key, value in settings if key not in ("kind", "vocab")}
        config = config | {"task": config["task"] | {"tokenizer": used}}
    commits = ", then ".join(str(commit) for commit in (git["commit"], *git.get("later", ())))
    commits += ", with changes that are not committed" if git["dirty"] else ""
    results = ""
    for key, value in metrics.items():
        if is_result(key):
            error = metrics.get(f"{key}_stderr")
            spread = f" ± {Z * error:.2g}" if error else ""  # 0 says only that all were alike
            results += f"| {key} | {value:.4g}{spread} |\n"
    packages = "".join(
        f"- package {name}, version {package['version'] or '?'}, sources `{package['sources']}`\n"
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


if __name__ == "__main__":
    sys.exit(main())
