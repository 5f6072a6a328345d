"""tab_speed: its records are those of ``benchmarks.speed``, not of runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tape_exp.artifacts.artifact import Claim
from tape_exp.machine.files import read_jsonl
from tape_exp.paper.outcomes import Contest
from tape_exp.paper.verdicts import Verdict, decide
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


def is_forward_attention(row: Mapping[str, Any]) -> bool:
    """Say whether a row is about attention without its gradients, which the paper times."""
    return row["what"] == "core" and not row["backward"]


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
            if is_forward_attention(row) and row["encoding"] in paper:
                cells["paper / RoPE"] = Value(paper[row["encoding"]] / paper["rope"])
            rows.append(cells)
    if not rows:
        return None
    labels = ["machine", "what", "T", "mode", "model"]
    columns = [Column(name) for name in (*labels, "backend")]
    columns += [Column("ms", digits=3), Column("/ RoPE"), Column("paper / RoPE")]
    return Table(columns, rows, labels, view.caption())


def speed_verdict(view: "View", claim: Claim) -> Verdict:
    """Judge the time of forward attention at each GPU's longest length: the claim is about fused
    attention, which a CPU does not run.
    """
    published = {name: Value(ms) for name, ms in view.artifact.paper["time_ms"].items()}
    contests = []
    records = speed_records("small")
    for record in records:
        rows = [row for row in fastest(record) if is_forward_attention(row)]
        if rows:
            length = max(row["T"] for row in rows)
            measured = {row["encoding"]: timed(row) for row in rows if row["T"] == length}
            where = f"fastest backends, {record['machine']}, {length} tokens, ms"
            contests.append(contest_of_times(claim, where, measured, published))
    if not contests:  # the paper's times are told all the same
        contests.append(contest_of_times(claim, "", {}, published))
    return replace(decide(contests), seeds="rounds of one machine" if records else "")


def contest_of_times(
    claim: Claim, where: str, measured: Mapping[str, Value], published: Mapping[str, Value]
) -> Contest:
    """Compare times, of which the shorter is better; the claim's margin is a fraction of the
    longest time of a rival.
    """
    (favourite,) = claim.better
    rivals = claim.than or []
    times = [measured[name].number for name in rivals if name in measured]
    return Contest(
        where=where,
        favourite=favourite,
        rivals=rivals,
        measured=measured,
        published=published,
        published_where="A100, ms",
        higher=False,
        digits=3,
        margin=claim.margin * max(times, default=0.0),
    )
