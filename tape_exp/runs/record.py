"""The record that tables are made from: making it, writing it, and telling whether one is whole."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tape_exp.machine.files import parse_json
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import folders, plugins
from tape_exp.settings.commit import git_state
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redaction import redact, redact_tree, shown

if TYPE_CHECKING:
    from tape_exp.runs.directory import RunDirectory

Record = dict[str, Any]

PACKAGES = (
    "torch",
    "lightning",
    "hydra-core",
    "numpy",
    "wandb",
    "datasets",
    "transformers",
    "lm_eval",
    "triton",
    "flash-attn",
)


# What tables, figures and the report read of a record. A tuple lists types, a list with one item is
# a list of such, and a dictionary with the key "*" has such values only.
NUMBER = (int, float)
NAMED = {"name": str}
NEEDED: dict[str, Any] = {
    "config": {"precision": str, "scale": str, "model": NAMED, "task": NAMED},
    "seed": int,
    "metrics": {"*": NUMBER},
    "started": str,
    "git": {"commit": (str, type(None)), "dirty": (bool, type(None))},
}
OF_MANIFEST = {key: NEEDED[key] for key in ("started", "git")}
LATER: dict[str, Any] = {"later": [(str, type(None))]}  # of git, where a run went on at another
BROUGHT: dict[str, Any] = {"plugins": {"*": {"sources": str}}}  # by packages, where there are any
CONFIGURED: dict[str, Any] = {"peft": NAMED}  # of the config, where a record has it
OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(
        ("run", "config_hash", "data_fingerprint", "precision", "begun_from", "begun_from_weights"),
        str,
    ),
    **dict.fromkeys(("parameters", "positional_parameters", "trained_parameters", "steps"), int),
    "tokens": NUMBER,
    "fingerprint_version": int,
    **dict.fromkeys(("knows_digits", "compiled"), bool),
    "seconds": {"training": NUMBER, "evaluation": NUMBER},
    "hardware": {"cpu": str, "gpus": [str]},
    "packages": {"*": str},
    **BROUGHT,
    "curves": {"*": {"step": [NUMBER], "value": [NUMBER]}},
    "heatmap": [[(*NUMBER, type(None))]],
    "matrices": {"*": [[NUMBER]]},
    "samples": [dict],
    "artifacts": [str],
}


def manifest(hash_: str, config: Any) -> dict[str, Any]:
    """Who made this run: command, commit, versions, machine, time, and the packages of other
    authors whose classes the config constructs.
    """
    others = plugins.versions_of(config)
    called = folders.called_as.split() or [Path(sys.argv[0]).name]
    return {
        "command": [*called, *map(redact, sys.argv[1:])],
        "config_hash": hash_,
        **circumstances(),
        **({"plugins": others} if others else {}),
    }


def circumstances() -> dict[str, Any]:
    """What every record begins with: commit, versions, machine, time."""
    return {
        "git": git_state(),
        "packages": package_versions(),
        "hardware": hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, those that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """Processor, cores, threads and GPUs; no host name."""
    import torch

    from tape_exp.machine.hardware import cpu_name

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def make_record(
    run: "RunDirectory", fingerprint: str, metrics: dict[str, float], **facts: Any
) -> dict[str, Any]:
    """The record of a finished run: all that tables and figures need, small enough to commit."""
    made = parse_json((run.path / "manifest.json").read_text())
    return {
        "run": run.name,
        "config_hash": run.hash,
        "config": without_folders(redact_tree(identity_of(run.cfg))),
        "seed": run.cfg.seed,
        **{key: made[key] for key in ("git", "packages", "hardware", "started")},
        **({"plugins": made["plugins"]} if "plugins" in made else {}),
        "data_fingerprint": fingerprint,
        **facts,
        "metrics": metrics,
        "artifacts": sorted(p.name for p in run.artifacts.iterdir() if p.name[0] != "."),
    }


def dump_record(record: dict[str, Any]) -> str:
    """JSON with one line for each row of a grid and for each curve, which reads and diffs well."""
    parts: list[str] = []
    mark = uuid4().hex  # which no text of a record has

    def apart(text: str) -> str:
        parts.append(text)
        return f"{mark} {len(parts) - 1}"

    def line(part: Any) -> str:
        return json.dumps(part, allow_nan=False)

    def rows(grid: list[Any]) -> str:
        return apart("[\n  " + ",\n  ".join(map(line, grid)) + "\n ]")

    short = dict(record)
    if "heatmap" in short:
        short["heatmap"] = rows(short["heatmap"])
    if "matrices" in short:
        short["matrices"] = {name: rows(grid) for name, grid in short["matrices"].items()}
    if "curves" in short:
        short["curves"] = {name: apart(line(curve)) for name, curve in short["curves"].items()}
    text = json.dumps(short, indent=1, allow_nan=False)
    for number, part in enumerate(parts):
        text = text.replace(f'"{mark} {number}"', part, 1)
    return text + "\n"


def checked(record: Any, path: Path) -> Record:
    """The record. Raises :class:`ConfigError` where it lacks what is read of it, or is damaged."""
    timed = ("run", "hardware") if isinstance(record, dict) and "seconds" in record else ()
    needed = NEEDED | {key: OPTIONAL[key] for key in timed}
    wrong = what_is_wrong(record, needed)
    wrong = wrong or next(_wrong(record, OPTIONAL, "", needed=False), None)
    wrong = wrong or next(_wrong(record["config"], CONFIGURED, "config", needed=False), None)
    wrong = wrong or next(_contradictions(record), None)
    if wrong:
        raise ConfigError(f"{path} is not a record ({wrong}); restore or remove it.")
    return record


def what_is_wrong(content: Any, needed: Mapping[str, Any]) -> str | None:
    """What a record or a manifest lacks of what is needed, or has in another type, in words."""
    found = next(_wrong(content, needed, ""), None)
    found = found or next(_wrong(content["git"], LATER, "git", needed=False), None)
    return found or next(_wrong(content, BROUGHT, "", needed=False), None)


def _contradictions(record: Record) -> Iterator[str]:
    """What cannot be, although every type is right, in words."""
    seed, config = record["seed"], record["config"]
    if not record["metrics"]:
        yield "metrics is empty"
    if seed < 0:
        yield f"seed is {seed}"
    if config.get("seed", seed) != seed:
        yield f"seed is {seed}, and config.seed is {config['seed']}"
    if "run" in record and "config_hash" in record:
        named = f"seed{seed}-{record['config_hash']}"
        if not record["run"].endswith(named):
            yield f"run is {shown(record['run'])}, without {shown(named)}"
    for metric, value in record["metrics"].items():
        if metric.endswith("exact_match") and not 0 <= value <= 100:
            yield f"{metric} is {value}, which is not from 0 to 100"


def _wrong(value: Any, kind: Any, key: str, needed: bool = True) -> Iterator[str]:
    """What is wrong with a value, in words."""
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            yield f"{key or 'it'} is of type {type(value).__name__}"
            return
        for name, inner in kind.items() if "*" not in kind else ():
            if name in value:
                yield from _wrong(value[name], inner, f"{key}.{name}".lstrip("."))
            elif needed:
                yield f"{key}.{name}".lstrip(".") + " is missing"
        for name, item in value.items() if "*" in kind else ():
            yield from _wrong(item, kind["*"], f"{key} {name}")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{key} is of type {type(value).__name__}"
            return
        for item in value:
            yield from _wrong(item, kind[0], f"a part of {key}")
    else:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in kinds:
            yield f"{key} is of type {type(value).__name__}"
        elif isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            yield f"{key} is not finite"
