"""tab_speed: its records are those of ``benchmarks.speed``, not of runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tape_exp.artifacts.artifact import Claim
from tape_exp.machine.files import read_jsonl
from tape_exp.paper import verdicts
from tape_exp.results.statistics import Value
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings import folders

if TYPE_CHECKING:
    from tape_exp.artifacts.view import View


def speed_records(scale: str) -> list[dict[str, Any]]:
    """Say what :mod:`benchmarks.speed` measured, a record a machine: on GPUs under scale small, on
    processors, which are named with their threads, under smoke.
    """
    path = folders.RESULTS / "speed.jsonl"
    records = []
    for _, record in read_jsonl(path) if path.exists() else ():
        if record and record["benchmark"] == "speed":
            on_processor = str(record["machine"]).endswith(" threads")
            if scale == ("smoke" if on_processor else "small"):
                records.append(record)
    return records


def fastest(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the rows of a record on the fastest backend of each case."""
    best: dict[tuple, dict[str, Any]] = {}
    for row in record["rows"]:
        case = row["what"], row["T"], row["backward"], row["encoding"]
        if case not in best or row["ms"] < best[case]["ms"]:
            best[case] = row
    return [*best.values()]


def timed(row: Mapping[str, Any]) -> Value:
    """Put a median between its quartiles."""
    low, high = row["ms_quartiles"]
    return Value(row["ms"], low, high, n=row["rounds"])


def speed(view: "View") -> Table | None:
    """Show the fastest backend of each encoding."""
    paper = view.artifact.paper["time_ms"]
    rows = []
    for record in speed_records(view.scale):
        for row in fastest(record):
            cells: dict[str, Cell] = {
                "machine": record["machine"],
                "what": row["what"],
                "T": str(row["T"]),
                "mode": "forward + backward" if row["backward"] else "forward",
                "model": row["encoding"],
                "backend": row["backend"],
                "ms": timed(row),
                "/ RoPE": Value(row["ratio_to_rope"]),
            }
            if row["what"] == "core" and not row["backward"] and row["encoding"] in paper:
                cells["paper / RoPE"] = Value(paper[row["encoding"]] / paper["rope"])
            rows.append(cells)
    labels = ["machine", "what", "T", "mode", "model"]
    names = (*labels, "backend", "ms", "/ RoPE", "paper / RoPE")
    head = [Column(name, {"digits": 3} if name == "ms" else {}) for name in names]
    return Table(head, rows, labels, view.caption()) if rows else None


def speed_verdict(view: "View", claim: Claim) -> verdicts.Verdict:
    """Judge the time of forward attention at each GPU's longest length: the claim is about fused
    attention, which a CPU does not run. A margin is a fraction of the rivals' longest time.
    """
    published = {name: Value(ms) for name, ms in view.artifact.paper["time_ms"].items()}
    (favourite,) = claim.better
    rivals = claim.than or []
    contests = []
    records = speed_records("small")
    for record in records:
        rows = [row for row in fastest(record) if row["what"] == "core" and not row["backward"]]
        if rows:
            length = max(row["T"] for row in rows)
            measured = {row["encoding"]: timed(row) for row in rows if row["T"] == length}
            where = f"fastest backends, {record['machine']}, {length} tokens, ms"
            contests.append(verdicts.Contest(where, favourite, rivals, measured, published))
    seeds = "rounds of one machine" if records else ""
    contests = contests or [verdicts.Contest("", favourite, rivals, {}, published)]
    for contest in contests:
        times = [contest.measured[name].number for name in rivals if name in contest.measured]
        contest.margin = claim.margin * max(times, default=0.0)
        contest.published_where = "A100, ms"
        contest.higher = False
        contest.digits = 3
    return replace(verdicts.decide(contests), seeds=seeds)
