"""Whether a run survived its faults, and the page ``results/reliability.md`` of the soak."""

from typing import Any

import torch

from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.sinks import read_metrics
from tape_exp.runs.weights import signature_of

# What no two runs share.
TIMED = ("seconds", "train/tokens_per_second", "train/mfu", "train/data_wait")
MOMENTS = ("training", "checkpoint", "evaluation")  # of a SIGKILL
OTHERS = (
    "SIGUSR1",
    "SIGTERM",
    "full disk",
    "truncated checkpoint",
    "flipped bit",
    "second process",
)


def compare(whole: RunDirectory, broken: RunDirectory) -> list[str]:
    """What differs from the whole run: nothing, if the faults were survived."""
    if not broken.done:
        return ["not DONE"]
    last = [
        directory.checkpoints / f"step{whole.record()['steps']:08d}.ckpt"
        for directory in (whole, broken)
    ]
    states = [torch.load(path, weights_only=True) for path in last]
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "global_step")
    pairs = {
        "metrics": (whole.record()["metrics"], broken.record()["metrics"]),
        "curve": (curve(whole), curve(broken)),
        **{f"checkpoint's {part}": (states[0][part], states[1][part]) for part in parts},
        "signature": (True, all(signature_of(path).exists() for path in last)),
    }
    return [name for name, (one, other) in pairs.items() if not same(one, other)]


def curve(directory: RunDirectory) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on time."""
    rows = read_metrics(directory.path / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def same(one: Any, other: Any) -> bool:
    """Equality bit for bit, tensors and all."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


WELL = ("accepted", "requeue", "interrupted", "ended by its signal")
CLASSES = {
    "keys": "every key of the schema with wrong values, through each command that takes it",
    "files": "every file that a command reads, damaged",
    "writes": "every command that writes, broken off, without room, and two at once",
    "text": "text that is none, in every format",
    "hostile": "words and files that would run something or tell a secret",
}


def campaign_section(campaign: dict[str, Any]) -> list[str]:
    """A row for each class of faults that were generated, and the seconds under load."""
    rows = []
    for name in (name for name in CLASSES if name in campaign):
        counts = campaign[name]["counts"]
        well = sum(counts.get(v, 0) for v in WELL)
        sentence, traceback, hang = (counts.get(v, 0) for v in ("sentence", "traceback", "hang"))
        tried = sum(counts.values())
        other = tried - well - sentence - traceback - hang
        numbers = (tried, sentence, well, traceback, hang, other)
        made = (campaign[name]["git"]["commit"] or "unknown")[:7]
        cells = " | ".join(f"{n}" for n in (name, *numbers, made))
        rows.append(f"| {cells} |")
    lines = [
        "",
        "## Faults by generation",
        "",
        "`python -m tests.campaign` makes wrong input from the schema and from the files that are "
        "there, and counts how each",
        "command ended: with one sentence, well (the value was a right one, the damage did not "
        "matter, or the same command",
        "went on), with a traceback, not at all, or otherwise wrong (nonsense accepted, no "
        "sentence, something lost or run).",
        "The counts are of the commit in the last column; what went wrong there was mended "
        "afterwards, with a test of its own.",
        "",
        "| faults | tried | sentence | well | traceback | hang | otherwise wrong | commit |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        *(f"- {name}: {text}" for name, text in CLASSES.items() if name in campaign),
    ]
    if "load" in campaign:
        cpu = campaign["load"]["hardware"]["cpu"]
        lines += ["", f"Under load, one thread of {cpu}, in seconds where no unit is said:", ""]
        lines += [f"- {what}: {value:g}" for what, value in campaign["load"]["seconds"].items()]
    return lines


def page(record: dict[str, Any], campaign: dict[str, Any]) -> str:
    """The text of results/reliability.md.

    Args:
        record: of the soak.
        campaign: the counts of ``tests.campaign``, by class; may be empty.
    """
    faults = [(run, fault) for run in record["runs"] for fault in run["faults"]]
    rows = []
    for kind in (*MOMENTS, *OTHERS):
        of_kind = [(run, fault) for run, fault in faults if fault["kind"] == kind]
        tried = len(of_kind)
        survived = sum(run["identical"] and fault["as_expected"] for run, fault in of_kind)
        name = f"SIGKILL: {kind}" if kind in MOMENTS else kind
        if tried:
            rows.append(f"| {name:<22} | {tried:>5} | {survived:>8} | {tried - survived:>4} |")
    killed = [(run, fault) for run, fault in faults if fault["kind"] in MOMENTS]
    well = sum(run["identical"] and fault["as_expected"] for run, fault in killed)
    resumed, fresh = (
        record["first_step_seconds_of_a_resumed_run"],
        record["first_step_seconds_of_a_fresh_run"],
    )
    share = record["checkpoint_share"]
    lines = [
        "# Reliability",
        "",
        "Generated by `make soak` from `reliability.json`. A fault is survived when the process "
        "ended as it should, and the",
        "run, started again by the same command, ended with the metrics, the curve and the last "
        "checkpoint of an undisturbed",
        "run, bit for bit.",
        "",
        "| fault                  | tried | survived | lost |",
        "|------------------------|-------|----------|------|",
        *rows,
        "",
        f"{well} of {len(killed)} kills in {len(record['runs'])} runs recovered with identical "
        "results.",
        "",
        f"From the command to the first step: {fresh['median']} s fresh ({fresh['least']} to "
        f"{fresh['most']}), {resumed['median']} s resumed ({resumed['least']} to "
        f"{resumed['most']}), Python's imports included; resuming costs "
        f"{resumed['median'] - fresh['median']:.2f} s more than starting.",
    ]
    if share is not None:
        lines += [
            "",
            f"At scale smoke (addition, TAPE) training waits for checkpoints {share} % of its "
            "time.",
        ]
    made = record["git"]["commit"] or "unknown"
    cpu = f"{record['hardware']['cpu']}, {record['hardware']['threads']} thread"
    return (
        "\n".join(
            [
                *lines,
                "",
                f"Commit {made[:7]}, {record['started'][:10]}, {cpu}, seed {record['seed']}.",
                *(campaign_section(campaign) if campaign else []),
            ]
        )
        + "\n"
    )
