"""What a few artifacts need beyond their YAML: ranks, choices, records of other programs."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
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

PAPERS_FIGURES = {20: "fig_addition_20", 40: "fig_addition"}  # of addition, by trained digits

# ---- tables that need more than their YAML ----


def ranked(view: "View", table: Table) -> Table:
    """A table by the mean rank over the columns with a key ``rank``, ``lower`` or ``higher`` being
    the better, among the models that have all of them, by the seeds that all have.
    """
    columns = [column for column in view.columns if column.spec.get("rank")]
    better = {column.spec["rank"] for column in columns}
    if not columns or not better <= {"lower", "higher"}:
        raise ConfigError(
            f"conf/paper/{view.artifact.name}.yaml: finish: ranked needs rank: lower or rank: "
            "higher in each column whose ranks count."
        )
    ranks = mean_ranks(view, columns)
    rows = []
    for row, cells in zip(view.rows, table.rows, strict=True):
        sizes = []
        seeds = []
        for column in columns:
            runs = view.runs(row, column)
            seeds.append(str(len(runs)))
            if runs:
                sizes.append(f"{runs[0]['parameters'] / 1000:.0f}")
        rank = ranks.get(row.labels["model"])
        further: dict[str, Cell] = {
            "parameters (thousands)": " / ".join(sizes),
            "seeds": " / ".join(seeds),
            "mean rank": None if rank is None else Value(rank),
        }
        rows.append({**cells, **further})
    rows.sort(key=lambda cells: ranks.get(str(cells["model"]), float("inf")))
    model, *measured, scale, commit = table.columns
    size = Column("parameters (thousands)")
    return replace(
        table, rows=rows, columns=[model, Column("mean rank"), *measured, size, scale, commit]
    )


def mean_ranks(view: "View", columns: Sequence[Column]) -> dict[str, float]:
    """Model -> its mean rank over columns, 1 the best; empty where no seed is shared by all."""
    from scipy.stats import rankdata  # half a second to import

    by_seed: dict[str, list[Mapping[int, Value]]] = {}
    for row in view.rows:
        values = [view.cell(row, column) for column in columns]
        if all(view.runs(row, column) for column in columns):
            by_seed[row.labels["model"]] = [value.runs for value in values]  # type: ignore[union-attr]
    every = [set(runs) for of_model in by_seed.values() for runs in of_model]
    seeds = set.intersection(*every) if every else set()
    if not seeds:
        return {}
    signs = [1 if column.spec["rank"] == "lower" else -1 for column in columns]
    means = np.zeros((len(by_seed), len(columns)))
    for i, of_model in enumerate(by_seed.values()):
        for j, runs in enumerate(of_model):
            means[i, j] = mean(runs[seed].number for seed in seeds)
    ranks = rankdata(means * signs, axis=0).mean(1)
    return dict(zip(by_seed, map(float, ranks), strict=True))


def chosen(view: "View", table: Table) -> Table:
    """Which rate of rows that differ only in it has the lowest validation loss; one rate is none
    to choose from.
    """
    losses: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    others = [name for name in view.dimensions() if name != "rate"]
    for row in view.rows:
        by_rate = losses.setdefault(tuple(row.labels[name] for name in others), {})
        by_rate[row.labels["rate"]] = {
            run.seed: run["metrics"]["val/loss"] for run in view.runs(row)
        }
    rows = []
    for cells in table.rows:
        by_rate = losses[tuple(str(cells[name]) for name in others)]
        rate = cells["rate"]
        mark = ""
        if len(by_rate) > 1 and rate == lowest(by_rate):
            at_edge = rate in (min(by_rate, key=float), max(by_rate, key=float))
            mark = "yes, at the edge" if at_edge else "yes"
        rows.append({**cells, "chosen": mark})
    columns = [*table.columns[:-3], Column("chosen"), *table.columns[-3:]]
    return replace(table, rows=rows, columns=columns)


def answers(view: "View") -> Table | None:
    """tab_quality_examples: the first questions of QuALITY, and what each model answers."""
    samples: dict[str, dict[str, Any]] = {}
    for row in view.rows:
        runs = view.runs(row)
        if runs:
            samples[row.labels["model"]] = {sample["id"]: sample for sample in runs[0]["samples"]}
    rows: list[dict[str, Cell]] = []
    for name, sample in next(iter(samples.values()), {}).items():
        texts = {"question": sample["question"], "reference": sample["references"]}
        for model, of_model in samples.items():
            if name in of_model:
                texts[model] = of_model[name]["prediction"]
        rows.append({key: on_one_line(text) for key, text in texts.items()})
    columns = [Column("question"), Column("reference")]
    columns += [Column("{model}", {}, "ours", {"model": model}) for model in samples]
    return Table(columns, rows, ["question"], view.caption()) if rows else None


def on_one_line(text: str) -> str:
    """A text as a cell: without line breaks, and without the pipe of Markdown's tables."""
    return " ".join(text.split()).replace("|", "/")


# ---- records that are not those of runs ----


def speed_records(scale: str) -> list[dict[str, Any]]:
    """What :mod:`benchmarks.speed` measured, a record a machine: on GPUs under scale small, on
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


def speed_verdict(view: "View", claim: Mapping[str, Any]) -> "claims.Verdict":
    """The time of forward attention at each GPU's longest length: the claim is about fused
    attention, which a CPU does not run. A margin is a fraction of the rivals' longest time.
    """
    published = {name: Value(ms) for name, ms in view.artifact.paper["time_ms"].items()}
    (favourite,) = claim.get("better", ["tape"])
    rivals = claim["than"]
    contests = []
    records = speed_records("small")
    for record in records:
        rows = [row for row in fastest(record) if row["what"] == "core" and not row["backward"]]
        if rows:
            length = max(row["T"] for row in rows)
            measured = {row["encoding"]: timed(row) for row in rows if row["T"] == length}
            where = f"fastest backends, {record['machine']}, {length} tokens, ms"
            contests.append(claims.Contest(where, favourite, rivals, measured, published))
    seeds = "rounds of one machine" if records else ""
    contests = contests or [claims.Contest("", favourite, rivals, {}, published)]
    for contest in contests:
        times = [contest.measured[name].number for name in rivals if name in contest.measured]
        contest.margin = claim.get("margin", 0.0) * max(times, default=0.0)
        contest.published_where = "A100, ms"
        contest.higher = False
        contest.digits = 3
    return replace(claims.decide(contests), seeds=seeds)


def of_report(make: Callable[[Mapping[str, Any]], Table]) -> Callable[["View"], Table | None]:
    """The table of what ``tape-exp theory --record`` left, which has no scale."""

    def table(view: "View") -> Table | None:
        path = folders.RESULTS / "theory.json"
        if not path.exists():
            return None
        report = json.loads(path.read_text(encoding="utf-8"))
        theorem = report["theorem"]
        facts = {
            **theorem,
            **theorem["exhaustive"],
            "longest": theorem["lengths"][-1],
            "never": f"{theorem['never'][-1]:.2f}",
            "seconds": f"{theorem['seconds']:.2f}",
            "cpu": report["hardware"]["cpu"],
        }
        caption = re.sub(r"\{(\w+)\}", lambda m: str(facts[m[1]]), view.artifact.caption)
        return replace(make(report), caption=f"{view.artifact.title}. {caption}")

    return table


def theorem(report: Mapping[str, Any]) -> Table:
    """theory: accuracy of the construction, as printed, partly and wholly repaired."""
    lengths = report["theorem"]["lengths"]
    rows = []
    for name, form in report["theorem"]["forms"].items():
        row: dict[str, Cell] = {"construction": name}
        for i in range(3, len(lengths), 4):
            row[f"identities right {lengths[i]} (%)"] = Value(form["identity"][i])
        row["positions right (%)"] = Value(form["all"][-1])
        row["exact labels (%)"] = Value(form["exact"])
        row["margin"] = Value(form["margin"])
        row["commit"] = commits([dict(report)])
        rows.append(row)
    return Table([*map(Column, rows[0])], rows, ["construction"])


def propositions(report: Mapping[str, Any]) -> Table:
    """theory_propositions: which variant of TAPE satisfies which equation, with the error."""
    from tape_exp.theory import HOLDS, PROPERTIES

    names = dict(zip(PROPERTIES, PROPERTIES, strict=True))
    names |= {"rotation": "one O(R)", "rotations": "O(R) per block"}
    rows = []
    for variant in report["propositions"]:
        row: dict[str, Cell] = {"model": variant["variant"], "initial": variant["initial"]}
        for key, name in names.items():
            error = variant[key]
            text = f"yes ({error:.0e})" if error < HOLDS else f"no ({error:.2g})"
            row[name] = Value(error, text=text)
        rows.append(row | {"commit": commits([dict(report)])})
    head = ("model", "initial", *names.values(), "commit")
    return Table([*map(Column, head)], rows, ["initial", "model"])


# ---- claims ----


def flops_verdict(view: "View", claim: Mapping[str, Any]) -> "claims.Verdict":
    """What TAPE adds to RoPE; counts have no spread: the claim holds if ours agree to 0.1 %."""
    ours = added_by_tape(view, "ours")
    papers = added_by_tape(view, "paper")
    errors = [abs(ours[count] - papers[count]) for count in ours if count in papers]
    holds = claims.UNTESTED
    if errors:
        holds = claims.YES if max(errors) < 0.1 else claims.NO
    text = ", ".join(f"{percent:+.1f} % {count}" for count, percent in ours.items())
    papers_text = ", ".join(f"{percent:+.1f} % {count}" for count, percent in papers.items())
    seeds = "a count" if errors else ""
    return claims.Verdict(
        papers_text, text, holds, seeds=seeds, short=text, short_paper=papers_text
    )


def added_by_tape(view: "View", who: str) -> dict[str, float]:
    """What TAPE has more than RoPE of each count, in percent: the paper's, or ours."""
    rows = {str(row["model"]): row for row in view.table.rows} if view.table else {}
    columns = {
        "FLOPs": f"FLOPs {who} (G)",
        "MACs": f"MACs {who} (G)",
        "parameters": f"params {who} (M)",
    }
    added = {}
    for count, column in columns.items():
        tape = rows.get("tape", {}).get(column)
        rope = rows.get("rope", {}).get(column)
        if isinstance(tape, Value) and isinstance(rope, Value):
            added[count] = 100 * (tape.number / rope.number - 1)
    return added


def trend_published(view: "View") -> tuple[str, dict[str, Value]]:
    """The paper's extra lengths at its largest size, of its printed means of the grid."""
    largest = max(PAPERS_FIGURES)
    lengths = paper_extra_lengths()
    of_largest = {}
    for model, by_digits in lengths.items():
        if largest in by_digits:
            of_largest[model] = Value(by_digits[largest])
    return f"{largest} digits", of_largest


def paper_extra_lengths() -> dict[str, dict[int, float]]:
    """Model -> trained digits -> the paper's extra length, of one seed."""
    lengths: dict[str, dict[int, float]] = {}
    for digits, name in PAPERS_FIGURES.items():
        for model, percent in reported()[name]["values"].items():
            lengths.setdefault(model, {})[digits] = extra_length(percent / 100)
    return lengths


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
