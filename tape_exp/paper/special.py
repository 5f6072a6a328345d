"""What a few artifacts need beyond their YAML: ranks, choices, records of other programs."""

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_exp.data.builtin import FACTS
from tape_exp.machine.files import read_jsonl
from tape_exp.paper import claims
from tape_exp.paper.artifact import reported
from tape_exp.results.derived import extra_length
from tape_exp.results.statistics import Value, lowest
from tape_exp.results.store import commits
from tape_exp.results.tables import Cell, Column, Table
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError

if TYPE_CHECKING:
    from tape_exp.paper.view import View

# ---- tables that need more than their YAML ----


def ranked(view: "View", table: Table) -> Table:
    """A table by the mean rank over the columns with a key ``rank``, ``lower`` or ``higher`` being
    the better, among the models that have all of them, by the seeds that all have.
    """
    from scipy.stats import rankdata  # half a second to import

    columns = [column for column in view.columns if column.spec.get("rank")]
    better = {column.spec["rank"] for column in columns}
    if not columns or not better <= {"lower", "higher"}:
        raise ConfigError(
            f"conf/paper/{view.artifact.name}.yaml: finish: ranked needs rank: lower or rank: "
            "higher in each column whose ranks count."
        )
    values = {}
    cells = []
    for row, cell in zip(view.rows, table.rows, strict=True):
        model = row.labels["model"]
        runs = [view.runs(row, column) for column in columns]
        if all(runs):
            values[model] = [view.cell(row, column).runs for column in columns]  # type: ignore[union-attr]
        sizes = " / ".join(f"{each[0]['parameters'] / 1000:.0f}" for each in runs if each)
        seeds = " / ".join(str(len(each)) for each in runs)
        cells.append({**cell, "parameters (thousands)": sizes, "seeds": seeds})
    seeds_of = [set(runs) for each in values.values() for runs in each]
    ranks = {}
    if common := set.intersection(*seeds_of) if seeds_of else None:
        means = [[mean(runs[s].number for s in common) for runs in row] for row in values.values()]
        signs = [1 if column.spec["rank"] == "lower" else -1 for column in columns]
        order = rankdata(np.array(means) * signs, axis=0)
        ranks = dict(zip(values, map(float, order.mean(1)), strict=True))
    for row, cell in zip(view.rows, cells, strict=True):
        rank = ranks.get(row.labels["model"])
        cell["mean rank"] = None if rank is None else Value(rank)
    cells.sort(key=lambda cell: ranks.get(str(cell["model"]), float("inf")))
    first, *rest = table.columns
    columns = [first, Column("mean rank"), *rest[:-2], Column("parameters (thousands)"), *rest[-2:]]
    return replace(table, rows=cells, columns=columns)


def chosen(view: "View", table: Table) -> Table:
    """Which rate of rows that differ only in it has the lowest validation loss; one rate is none
    to choose from.
    """
    losses: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}

    def others(labels: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(labels[name] for name in view.dimensions() if name != "rate")

    for row in view.rows:
        found = {run["seed"]: run["metrics"]["val/loss"] for run in view.runs(row)}
        losses.setdefault(others(row.labels), {})[row.labels["rate"]] = found
    rows = []
    for cells in table.rows:
        by_rate = losses[others(cells)]
        edge = cells["rate"] in (min(by_rate, key=float), max(by_rate, key=float))
        told = "yes, at the edge" if edge else "yes"
        best = len(by_rate) > 1 and cells["rate"] == lowest(by_rate)
        rows.append({**cells, "chosen": told if best else ""})
    columns = [*table.columns[:-3], Column("chosen"), *table.columns[-3:]]
    return replace(table, rows=rows, columns=columns)


def answers(view: "View") -> Table | None:
    """tab_quality_examples: the first questions of QuALITY, and what each model answers."""
    samples = {
        row.labels["model"]: {s["id"]: s for s in runs[0]["samples"]}
        for row in view.rows
        if (runs := view.runs(row))
    }
    rows = []
    for name, sample in next(iter(samples.values()), {}).items():
        texts = {"question": sample["question"], "reference": sample["references"]}
        texts |= {m: each[name]["prediction"] for m, each in samples.items() if name in each}
        rows.append({key: " ".join(t.split()).replace("|", "/") for key, t in texts.items()})
    columns = [*map(Column, ("question", "reference"))]
    columns += [Column("{model}", {}, "ours", {"model": m}) for m in samples]
    return Table(columns, rows, ["question"], view.caption()) if rows else None


# ---- records that are not those of runs ----


def speed_records(scale: str) -> list[dict[str, Any]]:
    """What :mod:`benchmarks.speed` measured, a record a machine: on GPUs under scale small, on
    processors, which are named with their threads, under smoke.
    """
    on = {"smoke": True, "small": False}.get(scale)
    path = folders.RESULTS / "speed.jsonl"
    records = [value for _, value in read_jsonl(path)] if path.exists() else []
    of_speed = [record for record in records if record and record["benchmark"] == "speed"]
    return [each for each in of_speed if str(each["machine"]).endswith(" threads") is on]


def fastest(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a record on the fastest backend of each case."""
    best: dict[tuple, dict[str, Any]] = {}
    for row in record["rows"]:
        case = row["what"], row["T"], row["backward"], row["encoding"]
        if case not in best or row["ms"] < best[case]["ms"]:
            best[case] = row
    return [*best.values()]


def timed(row: Mapping[str, Any]) -> Value:
    """A median between its quartiles."""
    low, high = row["ms_quartiles"]
    return Value(row["ms"], low, high, n=row["rounds"])


def speed(view: "View") -> Table | None:
    """tab_speed: the fastest backend of each encoding."""
    paper = view.artifact.paper["time_ms"]
    rows = []
    for record, row in [(r, row) for r in speed_records(view.scale) for row in fastest(r)]:
        rows.append(
            {
                "machine": record["machine"],
                "what": row["what"],
                "T": str(row["T"]),
                "mode": "forward + backward" if row["backward"] else "forward",
                "model": row["encoding"],
                "backend": row["backend"],
                "ms": timed(row),
                "/ RoPE": Value(row["ratio_to_rope"]),
            }
        )
        if row["what"] == "core" and not row["backward"] and row["encoding"] in paper:
            rows[-1]["paper / RoPE"] = Value(paper[row["encoding"]] / paper["rope"])
    labels = ["machine", "what", "T", "mode", "model"]
    names = (*labels, "backend", "ms", "/ RoPE", "paper / RoPE")
    head = [Column(name, {"digits": 3} if name == "ms" else {}) for name in names]
    return Table(head, rows, labels, view.caption()) if rows else None


def speed_verdict(view: "View", claim: Mapping[str, Any]) -> "claims.Verdict":
    """The time of forward attention at each GPU's longest length: the claim is about fused
    attention, which a CPU does not run. A margin is a fraction of the rivals' longest time.
    """
    published = {name: Value(ms) for name, ms in view.artifact.paper["time_ms"].items()}
    (favourite,) = claim.get("better", ["tape"])
    rivals = claim["than"]
    times = {"": dict[str, Value]()}
    for record in speed_records("small"):
        rows = [r for r in fastest(record) if r["what"] == "core" and not r["backward"]]
        longest = max((row["T"] for row in rows), default=0)
        times[f"fastest backends, {record['machine']}, {longest} tokens, ms"] = {
            row["encoding"]: timed(row) for row in rows if row["T"] == longest
        }
    shown = {where: found for where, found in times.items() if found} or {"": {}}
    contests = []
    for where, found in shown.items():
        longest = max((found[name].number for name in rivals if name in found), default=0.0)
        margin = claim.get("margin", 0.0) * longest
        names = (where, favourite, rivals)
        contest = claims.Contest(*names, found, published, "A100, ms", False, None, 3, margin)
        contests.append(contest)
    return replace(claims.decide(contests), seeds="rounds of one machine" if len(times) > 1 else "")


def of_report(make: Callable[[Mapping[str, Any]], Table]) -> Callable[["View"], Table | None]:
    """The table of what ``tape-exp theory --record`` left, which has no scale."""

    def table(view: "View") -> Table | None:
        path = folders.RESULTS / "theory.json"
        if not path.exists():
            return None
        report = json.loads(path.read_text(encoding="utf-8"))
        facts = report["theorem"]
        more = (
            facts
            | facts["exhaustive"]
            | {
                "longest": facts["lengths"][-1],
                "never": f"{facts['never'][-1]:.2f}",
                "seconds": f"{facts['seconds']:.2f}",
                "cpu": report["hardware"]["cpu"],
            }
        )
        caption = re.sub(r"\{(\w+)\}", lambda m: str(more[m[1]]), view.artifact.caption)
        return replace(make(report), caption=f"{view.artifact.title}. {caption}")

    return table


def theorem(report: Mapping[str, Any]) -> Table:
    """theory: accuracy of the construction, as printed, partly and wholly repaired."""
    found = report["theorem"]
    rows = []
    for name, form in found["forms"].items():
        row: dict[str, Cell] = {"construction": name}
        for n, share in [*zip(found["lengths"], form["identity"], strict=True)][3::4]:
            row[f"identities right {n} (%)"] = Value(share)
        row["positions right (%)"] = Value(form["all"][-1])
        row |= {"exact labels (%)": Value(form["exact"]), "margin": Value(form["margin"])}
        rows.append(row | {"commit": commits([dict(report)])})
    return Table([*map(Column, rows[0])], rows, ["construction"])


def propositions(report: Mapping[str, Any]) -> Table:
    """theory_propositions: which variant of TAPE satisfies which equation, with the error."""
    from tape_exp.theory import HOLDS, PROPERTIES

    names = dict(zip(PROPERTIES, PROPERTIES, strict=True))
    names |= {"rotation": "one O(R)", "rotations": "O(R) per block"}
    rows = []
    for one in report["propositions"]:
        row: dict[str, Cell] = {"model": one["variant"], "initial": one["initial"]}
        for key, name in names.items():
            text = f"yes ({one[key]:.0e})" if one[key] < HOLDS else f"no ({one[key]:.2g})"
            row[name] = Value(one[key], text=text)
        rows.append(row | {"commit": commits([dict(report)])})
    head = ("model", "initial", *names.values(), "commit")
    return Table([*map(Column, head)], rows, ["initial", "model"])


# ---- claims ----


def flops_verdict(view: "View", claim: Mapping[str, Any]) -> "claims.Verdict":
    """What TAPE adds to RoPE; counts have no spread: the claim holds if ours agree to 0.1 %."""
    rows = {str(row["model"]): row for row in view.table.rows} if view.table else {}
    names = {"FLOPs {} (G)": "FLOPs", "MACs {} (G)": "MACs", "params {} (M)": "parameters"}
    added: dict[str, dict[str, float]] = {"paper": {}, "ours": {}}
    for who, (name, title) in itertools.product(added, names.items()):
        tape, rope = (rows.get(model, {}).get(name.format(who)) for model in ("tape", "rope"))
        if isinstance(tape, Value) and isinstance(rope, Value):
            added[who][title] = 100 * (tape.number / rope.number - 1)
    paper, ours = (
        ", ".join(f"{n:+.1f} % {title}" for title, n in each.items()) for each in added.values()
    )
    apart = [abs(n - added["paper"][t]) for t, n in added["ours"].items() if t in added["paper"]]
    holds = claims.UNTESTED if not apart else claims.YES if max(apart) < 0.1 else claims.NO
    seeds = "a count" if apart else ""
    return claims.Verdict(paper, ours, holds, seeds=seeds, short=ours, short_paper=paper)


def trend_published(view: "View") -> tuple[str, dict[str, Value]]:
    """The paper's extra lengths at its largest size, of its printed means of the grid."""
    values = paper_extra_lengths()
    largest = max(n for _, n in values)
    return f"{largest} digits", {m: Value(v) for (m, n), v in values.items() if n == largest}


def paper_extra_lengths() -> dict[tuple[str, int], float]:
    """(model, trained digits) -> the paper's extra length, of one seed."""
    sizes = {20: "fig_addition_20", 40: "fig_addition"}
    return {
        (model, n): extra_length(value / 100)
        for n, name in sizes.items()
        for model, value in reported()[name]["values"].items()
    }


def scrolls_floor(view: "View", column: Column) -> float | None:
    """What is reached without reading, in percent: on generated text by a guess among the answers,
    on the real sets by the naive baseline of the benchmark's authors.
    """
    (dataset,) = column.at.values()
    if view.scale == "smoke":
        known = {"contract_nli": 100 / 3} | dict.fromkeys(FACTS, 25.0)
        return known.get(dataset)
    return naive_score(dataset)


def naive_score(dataset: str) -> float:
    """What answers without a model reach on a set of SCROLLS, in percent: of ROUGE the mean."""
    naive = reported()["tab_scrolls"]["naive"][dataset]
    return float(np.prod(naive) ** (1 / np.size(naive)))


TABLES = {
    "speed": speed,
    "theorem": of_report(theorem),
    "propositions": of_report(propositions),
    "answers": answers,
}
FINISH = {"ranked": ranked, "chosen": chosen}
VERDICTS = {
    "flops": flops_verdict,
    "speed": speed_verdict,
    "examples": lambda view, claim: claims.Verdict(holds=claims.UNTESTED),
}
PUBLISHED = {"trend": trend_published}
FLOORS = {"scrolls": scrolls_floor}
