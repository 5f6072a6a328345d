"""Tables flops and speed of the paper."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from tape_exp.paper import tables
from tape_exp.paper.artifacts import RESULTS, Artifact, Record
from tape_exp.paper.claims import NO, UNTESTED, YES, Contest, Measured, Verdict

FLOPS_COLUMNS = ["model", "FLOPs paper (G)", "FLOPs ours (G)", "MACs paper (G)", "MACs ours (G)"]
FLOPS_COLUMNS += ["params paper (M)", "params ours (M)", "true FLOPs ours (G)", "commit"]


COUNTS = {"FLOPs": ("count/flops_paper", "flops_g"), "MACs": ("count/macs_paper", "macs_g")}
COUNTS |= {"parameters": ("count/parameters", "parameters_m")}


class Flops(Artifact):
    """Operations in the paper's convention beside the paper's numbers, and what this code really
    computes.
    """

    def verdict(self, scale: str, records: dict[str, list[Record]]) -> Verdict:
        """What TAPE adds to RoPE, which is counted and has no spread: it holds where our counts add
        as much, to 0.1 %.
        """
        paper, both = self.paper(), {"tape", "rope"} <= records.keys()
        theirs, ours, apart = [], [], []
        for name, (metric, column) in COUNTS.items():
            published = 100 * (paper[column]["tape"] / paper[column]["rope"] - 1)
            theirs.append(f"{published:+.1f} % {name}")
            if both:
                tape, rope = (records[model][-1]["metrics"][metric] for model in ("tape", "rope"))
                counted = 100 * (tape / rope - 1)
                ours.append(f"{counted:+.1f} % {name}")
                apart.append(abs(counted - published))
        holds = UNTESTED if not both else YES if max(apart) < 0.1 else NO
        return Verdict(", ".join(theirs), ", ".join(ours), holds, "a count" if both else "")

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/tab_flops-<scale>.{md,tex,csv}``."""
        paper = self.paper()
        rows = []
        for model in self.models:
            cells = [model]
            mine = records.get(model, [None])[-1]
            metrics: dict[str, Any] = mine["metrics"] if mine else {}
            for key, divisor, column in (
                ("count/flops_paper", 1e9, "flops_g"),
                ("count/macs_paper", 1e9, "macs_g"),
                ("count/parameters", 2**20, "parameters_m"),
            ):
                published = paper[column].get(model)
                cells.append("" if published is None else f"{published:.2f}")
                cells.append(f"{metrics[key] / divisor:.2f}" if mine else "")
            cells.append(f"{metrics['count/flops'] / 1e9:.2f}" if mine else "")
            cells.append(tables.commit(mine) if mine else "")
            rows.append(cells)
        caption = (
            f"{self.title}. FLOPs, MACs: the paper's convention ({paper['source']}): no causality, "
            "einsums as FLOPs alone; "
            "M is 2^20. True FLOPs: the matrix products of this code with causal attention fused. "
            "Counts do not depend on the scale."
        )
        return tables.write(into / "tables" / f"{self.name}-{scale}", FLOPS_COLUMNS, rows, caption)


SPEED_COLUMNS = [
    "machine",
    "what",
    "T",
    "mode",
    "model",
    "backend",
    "ms",
    "quartiles",
    "/ RoPE",
    "paper / RoPE",
]


class Speed(Artifact):
    """The fastest backend of each encoding beside RoPE's, from the records of ``python -m
    tape_exp.speed``.
    """

    def collect(self, scale: str, records: Any) -> dict[str, list[Record]]:
        """The machines' records, shown once, under scale small where they come from a GPU and smoke
        from a CPU.
        """
        found: dict[str, list[Record]] = {}
        for path in sorted((RESULTS / "speed").glob("speed-*.json")):
            record = json.loads(path.read_text())
            if scale == ("smoke" if record["peak_flops"] is None else "small"):
                found[path.stem] = [record]
        return found

    def command(self, scale: str) -> str:
        """The measurement, which does not depend on a scale."""
        return "python -m tape_exp.speed"

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """Attention alone, forward, at the longest length of each GPU: medians in ms, with their
        quartiles.

        The claim is about fused attention, which a CPU does not run.
        """
        published = self.paper()["time_ms"]
        options: dict[str, Any] = {"published_where": "A100, ms", "higher": False, "digits": 3}
        gpus = self._gpus(records)
        if not gpus:
            return self.versus("", {}, published=published, **options)
        found: list[Contest] = []
        for record in gpus:
            longest = max(row["T"] for row in record["rows"])
            rows = [
                row
                for row in record["rows"]
                if (row["what"], row["T"], row["backward"]) == ("core", longest, False)
            ]
            fastest = {row["encoding"]: row for row in sorted(rows, key=lambda row: -row["ms"])}
            measured = {
                name: Measured(
                    row["ms"],
                    low=row["ms_quartiles"][0],
                    high=row["ms_quartiles"][1],
                    seeds=row["rounds"],
                )
                for name, row in fastest.items()
            }
            where = f"fastest backends, {record['machine']}, {longest} tokens, ms"
            found += self.versus(where, measured, published=published, **options)
            published = {}  # said once
        return found

    def verdict(self, scale: str, records: dict[str, list[Record]]) -> Verdict:
        """Medians over rounds on a machine, with their quartiles, instead of means over seeds."""
        return replace(
            super().verdict(scale, records),
            seeds="rounds of one machine" if self._gpus(records) else "",
        )

    def _gpus(self, records: dict[str, list[Record]]) -> list[Record]:
        return [record for (record,) in records.values() if record["peak_flops"] is not None]

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/tab_speed-<scale>.{md,tex,csv}`` and the plot of each machine."""
        paper = self.paper()["time_ms"]
        rows, pictures = [], []
        for stem, (record,) in records.items():
            best: dict[tuple, dict[str, Any]] = {}
            for row in record["rows"]:
                key = row["what"], row["T"], row["backward"], row["encoding"]
                if key not in best or row["ms"] < best[key]["ms"]:
                    best[key] = row
            for (what, T, backward, name), row in best.items():
                published = paper.get(name) if what == "core" and not backward else None
                low, high = row["ms_quartiles"]
                cells = [
                    record["machine"],
                    what,
                    str(T),
                    "forward + backward" if backward else "forward",
                    name,
                    row["backend"],
                ]
                cells += [
                    f"{row['ms']:.3f}",
                    f"{low:.3f} – {high:.3f}",
                    f"{row['ratio_to_rope']:.2f}",
                ]
                rows.append(
                    [*cells, "" if published is None else f"{published / paper['rope']:.2f}"]
                )
            picture = RESULTS / "speed" / f"{stem}.png"
            if picture.exists():
                target = into / "figures" / f"{self.name}-{scale}-{stem.removeprefix('speed-')}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(picture, target)
                pictures.append(target)
        caption = (
            f"{self.title}. Core: attention alone, each encoding on its fastest backend; step: a "
            "whole training step. Medians, "
            "quartiles and ratios to RoPE of the same run; tape_separate is TAPE as public code "
            "writes it. Column paper: "
            f"{self.paper()['setting']}."
        )
        return [
            *pictures,
            *tables.write(into / "tables" / f"{self.name}-{scale}", SPEED_COLUMNS, rows, caption),
        ]
