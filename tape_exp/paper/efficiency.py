"""Tables flops and speed of the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from tape_exp.drawing.timings import timing_panels, timing_title
from tape_exp.paper.artifacts import RESULTS, Artifact, Record, Records, RunArtifact
from tape_exp.paper.claims import NO, UNTESTED, YES, Contest, Verdict
from tape_exp.paper.figure_kinds import Curves, Figure
from tape_exp.paper.records import read_or_leave_out
from tape_exp.paper.tables import Column, Row, Table, columns, commits
from tape_exp.paper.values import NOT_RUN, NOTHING, Cell, Value, reported

# name of a count -> its metric, its unit, that unit's size, and where the paper's numbers are
COUNTS = {
    "FLOPs": ("count/flops_paper", "G", 1e9, "flops_g"),
    "MACs": ("count/macs_paper", "G", 1e9, "macs_g"),
    "params": ("count/parameters", "M", 2**20, "parameters_m"),
}


@dataclass(kw_only=True)
class Flops(RunArtifact):
    """Operations in the paper's convention next to its numbers, and what this code computes."""

    def verdict(self, scale: str, records: Records) -> Verdict:
        """What TAPE adds to RoPE; counts have no spread: the claim holds if ours agree to 0.1 %."""
        table = self.cells(scale, records)
        theirs, ours, apart = [], [], []
        for count in COUNTS:
            name = count.replace("params", "parameters")
            added = {who: _added(table.values((count, who))) for who in ("paper", "ours")}
            theirs.append(f"{added['paper']:+.1f} % {name}")
            if added["ours"] is not None:
                ours.append(f"{added['ours']:+.1f} % {name}")
                apart.append(abs(added["ours"] - added["paper"]))
        holds = UNTESTED if not apart else YES if max(apart) < 0.1 else NO
        return Verdict(", ".join(theirs), ", ".join(ours), holds, "a count" if apart else "")

    def command(self, scale: str) -> str:
        """What counts all models."""
        return f"tape-exp paper run {self.name}"

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """Those of seed 0: a count is the same with every seed."""
        return super().configs(scale, [seed for seed in seeds if seed == 0], extra)

    def place(self, scale: str) -> str:
        """No scale: a count is the same at all."""
        return ""

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model."""
        paper = self.paper()
        rows: list[Row] = []
        for model in self.models:
            metrics = records[model][-1]["metrics"] if model in records else {}
            row: Row = {"model": model, "commit": NOT_RUN}
            for name, (metric, _, size, column) in COUNTS.items():
                row[name, "paper"] = reported(paper[column].get(model))
                row[name, "ours"] = _count(metrics, metric, size)
            row["true FLOPs", "ours"] = _count(metrics, "count/flops", 1e9)
            if model in records:
                row["commit"] = commits(records[model])
            rows.append(row)
        head = [Column("model")]
        for name, (_, unit, _, _) in COUNTS.items():
            head += [Column((name, who), unit=unit) for who in ("paper", "ours")]
        return Table([*head, Column(("true FLOPs", "ours"), unit="G"), Column("commit")], rows)

    def caption(self, scale: str, records: Records) -> str:
        """The conventions of counting."""
        return (
            f"{self.title}. FLOPs, MACs: the paper's convention ({self.paper()['source']}): no "
            "causality, einsums count as FLOPs only; M is 2^20. True FLOPs: the matrix products of "
            "this code with causal attention fused; of PaTH without its triangular solves. Of an "
            "encoding that the paper does not have, matrix products count in both. Counts do not "
            "depend on the scale."
        )


def _count(metrics: dict[str, float], metric: str, size: float) -> Cell:
    return Value(metrics[metric] / size) if metric in metrics else NOT_RUN


def _added(counts: dict[str, Value]) -> Any:
    """What TAPE adds to RoPE in percent; None before both are counted."""
    if not {"tape", "rope"} <= counts.keys():
        return None
    return 100 * (counts["tape"].number / counts["rope"].number - 1)


@dataclass(kw_only=True)
class Speed(Artifact):
    """The fastest backend of each encoding next to RoPE's, from :mod:`benchmarks.speed`."""

    def collect(self, scale: str, records: Sequence[Record]) -> Records:
        """The machines' records, shown once: a GPU's under scale small, a CPU's under smoke."""
        paths = sorted((RESULTS / "speed").glob("speed-*.json"))
        machines = read_or_leave_out({path.stem: path for path in paths})
        return {
            name: [record]
            for name, (record,) in machines.items()
            if scale == ("small" if _on_gpu(record) else "smoke")
        }

    def place(self, scale: str) -> str:
        """On which kind of machine, instead of a scale."""
        return "on a CPU" if scale == "smoke" else "on a GPU"

    def command(self, scale: str) -> str:
        """The measurement, which does not depend on a scale."""
        return "python -m benchmarks.speed"

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The time of forward attention at each GPU's longest length: median ms with quartiles.

        The claim is about fused attention, which a CPU does not run.
        """
        published = {name: Value(ms) for name, ms in self.paper()["time_ms"].items()}
        options: dict[str, Any] = {"published_where": "A100, ms", "higher": False, "digits": 3}
        contests: list[Contest] = []
        for record in _gpus(records):
            longest = max(row["T"] for row in record["rows"])
            attention = {"machine": record["machine"], "what": "core", "mode": "forward"}
            measured = self.cells(scale, records).values("ms", T=longest, **attention)
            where = f"fastest backends, {record['machine']}, {longest} tokens, ms"
            contests += self.versus(where, measured, published, **options)
            published = {}  # said once
        return contests or self.versus("", {}, published, **options)

    def verdict(self, scale: str, records: Records) -> Verdict:
        """Medians over rounds on a machine, with their quartiles, instead of means over seeds."""
        seeds = "rounds of one machine" if _gpus(records) else ""
        return replace(super().verdict(scale, records), seeds=seeds)

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each machine, part, length, direction and encoding."""
        paper = self.paper()["time_ms"]
        rows: list[Row] = []
        for (record,) in records.values():
            fastest: dict[tuple, dict[str, Any]] = {}
            for row in record["rows"]:
                case = row["what"], row["T"], row["backward"], row["encoding"]
                if case not in fastest or row["ms"] < fastest[case]["ms"]:
                    fastest[case] = row
            for (what, T, backward, name), row in fastest.items():
                compared = what == "core" and not backward
                low, high = row["ms_quartiles"]
                of = "quartiles over rounds"
                times = (row["ms"], low, high, row["rounds"])
                ratio = reported(paper[name] / paper["rope"] if name in paper else None)
                rows.append(
                    {
                        "machine": record["machine"],
                        "what": what,
                        "T": Value(T, form="{number}"),
                        "mode": "forward + backward" if backward else "forward",
                        "model": name,
                        "backend": row["backend"],
                        "ms": Value(*times, "{number:.3f}", of),
                        "quartiles": Value(*times, "{low:.3f} – {high:.3f}", of),
                        "/ RoPE": Value(row["ratio_to_rope"]),
                        "paper / RoPE": ratio if compared else NOTHING,
                    }
                )
        head = ("machine", "what", "T", "mode", "model", "backend", "ms", "quartiles", "/ RoPE")
        return Table(columns([*head, "paper / RoPE"]), rows)

    def caption(self, scale: str, records: Records) -> str:
        """What is timed, and what the ratios are to."""
        return (
            f"{self.title}. Core: attention alone, each encoding on its fastest backend; step: a "
            "whole training step. Medians, quartiles and ratios to RoPE of the same run; "
            f"column paper: {self.paper()['setting']}."
        )

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """The time of attention by length, a figure for each machine."""
        return [
            Curves(
                timing_title(record),
                timing_panels(record),
                f"-{stem.removeprefix('speed-')}",
                {"shared": False},
            )
            for stem, (record,) in records.items()
            if any(row["what"] == "core" for row in record["rows"])
        ]


def _gpus(records: Records) -> list[Record]:
    return [record for (record,) in records.values() if record["rows"] and _on_gpu(record)]


def _on_gpu(record: Record) -> bool:
    """Whether a GPU was measured, of a known peak or not; a CPU is named with its threads."""
    return not str(record.get("machine", " threads")).endswith(" threads")
