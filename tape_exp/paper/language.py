"""The language-model tables and figures: perplexity, ablations, shifts of positions, patterns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tape_exp.drawing.patterns import draw_patterns
from tape_exp.paper import tables
from tape_exp.paper.artifacts import Artifact, Record
from tape_exp.paper.claims import Contest, Measured, over_seeds


class Comparison(Artifact):
    """Perplexity of each encoding on each test set at each length, beside the best that ignores the
    context.
    """

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        some = next(iter(records.values()))[0]
        trained = some["config"]["task"]["train_length"]
        seen = {(r["seed"], r["data_fingerprint"]) for mine in records.values() for r in mine}
        same = len(seen) == len({seed for seed, _ in seen})
        keys = [
            key for key in some["metrics"] if "/perplexity@" in key and not key.endswith("_stderr")
        ]
        keys += [key for key in some["metrics"] if key.endswith(f"/bits_per_byte@{trained}")]
        rows = []
        for model in self.models:
            mine = records.get(model, [])
            cells = [
                tables.mean_text([r["metrics"][key] for r in mine], 3 if "bits" in key else 2)
                for key in keys
            ]
            rows.append([model, *cells, *tables.origin(mine, scale)])
        unigram = [some["metrics"].get(f"{key.split('/')[0]}/unigram_perplexity") for key in keys]
        baseline = [
            f"{value:.2f}" if "/perplexity@" in key else ""
            for key, value in zip(keys, unigram, strict=True)
        ]
        rows.append(["unigram", *baseline, "", "", ""])
        columns = [
            "model",
            *(
                key.replace("/perplexity@", " ").replace("/bits_per_byte@", " bits/byte ")
                for key in keys
            ),
        ]
        caption = (
            f"{self.title}, by context length; {some['parameters']:,} parameters trained at "
            f"{trained} tokens on "
            f"{some['tokens'] / 1e6:.1f} M. Mean over seeds with its 95 % interval. Of each seed, "
            "all models saw "
            f"{'the same tokens in the same order' if same else 'NOT the same tokens'}. Unigram: "
            "the entropy of the set's own "
            f"token counts, below which no model that ignores the context can come. Scale {scale}."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}", [*columns, *tables.ORIGIN], rows, caption
        )


@dataclass
class Ablation(Artifact):
    """Perplexity at several lengths beside the paper's, added parameters and the measured shift
    error.

    Args:
        columns: headings of the first columns.
        labels: their cells for each model.
    """

    columns: list[str] = field(default_factory=list)
    labels: dict[str, list[str]] = field(default_factory=dict)

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """Perplexity at the longest length."""
        paper = self.paper()
        longest = max(
            (
                n
                for mine in records.values()
                for n in mine[0]["config"]["task"]["windows"]["lengths"]
            ),
            default=0,
        )
        return self.versus(
            f"{longest} tokens",
            over_seeds(records, f"github/perplexity@{longest}"),
            published={model: row[-1] for model, row in paper["perplexity"].items()},
            published_where=f"{paper['lengths'][-1]} tokens",
            higher=False,
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        paper = self.paper()
        some = next(iter(records.values()))[0]
        lengths, unigram = (
            some["config"]["task"]["windows"]["lengths"],
            some["metrics"]["github/unigram_perplexity"],
        )
        columns = ["model", *self.columns]
        for theirs, ours in zip(paper["lengths"], lengths, strict=True):
            columns += [f"paper {theirs}", f"ours {ours}"]
        columns += ["added paper (M)", "added ours (M)", "shift error ours (%)", *tables.ORIGIN]
        rows = []
        for model in self.models:
            mine = records.get(model, [])
            cells = [model, *self.labels[model]]
            for published, length in zip(paper["perplexity"][model], lengths, strict=True):
                cells += [
                    f"{published:.1f}",
                    tables.mean_text([r["metrics"][f"github/perplexity@{length}"] for r in mine]),
                ]
            added = paper.get("added_m", {}).get(model)
            cells.append("" if added is None else f"{added:.2f}")
            cells.append(f"{mine[0]['positional_parameters'] / 2**20:.4f}" if mine else "")
            cells.append(
                f"{np.mean([r['metrics']['shift/attention'] for r in mine]):.1e}" if mine else ""
            )
            rows.append([*cells, *tables.origin(mine, scale)])
        caption = (
            f"{self.title}. Perplexity on GitHub by context length, the paper's "
            f"({paper['source']}, {paper['setting']}, one "
            f"seed) beside ours (scale {scale}: its own lengths, corpus and size, "
            f"{some['parameters']:,} parameters; mean over "
            "seeds with its 95 % interval). M is 2^20. Shift error: the largest relative change of "
            "any layer's attention when "
            f"position ids begin at 3, in fp32. A model that ignores the context: {unigram:.0f} at "
            "best."
        )
        return tables.write(into / "tables" / f"{self.name}-{scale}", columns, rows, caption)


SHIFTED = {"attention": "attention_relative", "products": "products", "blocks": "blocks"}


class Shift(Artifact):
    """What three more BOS and position ids from 3 change, by layer, in fp32 and bf16."""

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """The change of the deepest measured layer's attention where position ids begin at 3, in
        percent of the mean weight.
        """
        paper = self.paper()
        key = "trained_fp32/shift_ids/attention_relative@"
        names = [
            name for mine in records.values() for name in mine[0]["metrics"] if name.startswith(key)
        ]
        deepest = max((int(name.removeprefix(key)) for name in names), default=0)
        changes = {
            model: [100 * r["metrics"][f"{key}{deepest}"] for r in mine]
            for model, mine in records.items()
        }
        return self.versus(
            f"layer {deepest}, %",
            {model: Measured.over_seeds(values) for model, values in changes.items()},
            published={model: row[-1] for model, row in paper["attention"]["shift_ids"].items()},
            published_where=f"layer {paper['layers'][-1]}",
            higher=False,
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``tables/<name>-<scale>.{md,tex,csv}``."""
        paper = self.paper()
        found = [key for mine in records.values() for key in mine[0]["metrics"]]
        layers = sorted({int(key.split("@")[1]) for key in found})
        cases = ["trained_fp32", "trained_bf16", "random_fp32", "random_bf16"]
        rows = []
        for measure, name in SHIFTED.items():
            for shift in ("add_tokens", "shift_ids"):
                for model in self.models:
                    mine = records.get(model, [])
                    for layer in layers:
                        published = paper.get(measure, {}).get(shift, {}).get(model, [])
                        theirs = dict(zip(paper["layers"], published, strict=False)).get(layer)
                        cells = [
                            measure,
                            shift,
                            model,
                            str(layer),
                            "" if theirs is None else f"{theirs:.2f}",
                        ]
                        for case in cases:
                            values = [
                                r["metrics"].get(f"{case}/{shift}/{name}@{layer}") for r in mine
                            ]
                            cells.append(_percent([v for v in values if v is not None]))
                        rows.append([*cells, *tables.origin(mine, scale)])
        columns = [
            "measure",
            "shift",
            "model",
            "layer",
            "paper",
            *(f"ours {case.replace('_', ' ')} (%)" for case in cases),
        ]
        caption = (
            f"{self.title}. Attention: mean change over causal pairs, ours relative to the mean "
            "weight, the paper's in units "
            "of 0.01. Products: E·Eᵀ, heads and blocks averaged, relative, in percent. Blocks: "
            "every entry of e_i e_jᵀ, of "
            "which proposition 2 speaks, root mean square, relative; the averaged product hides "
            "what commutes. Random: "
            f"positional parameters drawn anew. Paper: {paper['setting']}. Scale {scale}, mean "
            "over seeds."
        )
        return tables.write(
            into / "tables" / f"{self.name}-{scale}", [*columns, *tables.ORIGIN], rows, caption
        )


def _percent(values: list[float]) -> str:
    if not values:
        return ""
    mean = 100 * float(np.mean(values))
    return f"{mean:.2f}" if mean >= 0.01 or mean == 0 else f"{mean:.0e}"


class Pattern(Artifact):
    """E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """How far back the last layer attends: the mean distance from query to key, weighted by
        attention.
        """
        found = {
            model: [_distance(_last(r, "attention")) for r in mine]
            for model, mine in records.items()
        }
        return self.versus(
            "tokens back", {model: Measured.over_seeds(values) for model, values in found.items()}
        )

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png``; nothing before both models have run."""
        if not {"tape", "rope"} <= records.keys():
            return []
        tape, rope = (_matrices(records[model]) for model in ("tape", "rope"))
        last = max(int(name.split("@")[1]) for name in tape)
        difference = f"attention, TAPE - RoPE, layer {last}"
        panels = {
            f"E·Eᵀ of TAPE, layer {last}": tape[f"products@{last}"],
            f"E·Eᵀ of RoPE, layer {last}": rope[f"products@{last}"],
            difference: tape[f"attention@{last}"] - rope[f"attention@{last}"],
        }
        path = into / "figures" / f"{self.name}-{scale}.png"
        return [
            draw_patterns(
                panels,
                path,
                f"{self.title} — scale {scale}",
                signed=[difference],
                causal=[difference],
            )
        ]


class Layers(Artifact):
    """E·Eᵀ from the first layer to the last."""

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """The diagonal of E·Eᵀ by the mean over other causal pairs, absolute values: the last
        layer's and the first's.
        """
        mine = records.get(self.models[0], [])
        measured = {}
        for layer, pick in (("last layer", _last), ("first layer", _first)):
            if mine:
                measured[layer] = Measured.over_seeds(
                    [_dominance(pick(r, "products")) for r in mine]
                )
        return self.versus("diagonal / rest", measured, higher=False)

    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """``figures/<name>-<scale>.png``, a panel a layer, each with its own scale."""
        found = _matrices(records[self.models[0]])
        panels = {
            f"layer {name.split('@')[1]}": values
            for name, values in found.items()
            if name.startswith("products")
        }
        path = into / "figures" / f"{self.name}-{scale}.png"
        return [
            draw_patterns(panels, path, f"{self.title} — scale {scale}", shared=False, label="E·Eᵀ")
        ]


def _first(record: Record, kind: str) -> np.ndarray:
    return np.array(record["matrices"][f"{kind}@{min(_layers(record))}"], dtype=float)


def _last(record: Record, kind: str) -> np.ndarray:
    return np.array(record["matrices"][f"{kind}@{max(_layers(record))}"], dtype=float)


def _layers(record: Record) -> list[int]:
    return [int(name.split("@")[1]) for name in record["matrices"]]


def _distance(attention: np.ndarray) -> float:
    positions = np.arange(len(attention))
    return float((np.tril(attention) * (positions[:, None] - positions)).sum(1).mean())


def _dominance(products: np.ndarray) -> float:
    below = np.tri(len(products), k=-1, dtype=bool)
    return float(np.abs(np.diag(products)).mean() / np.abs(products[below]).mean())


def _matrices(records: list[Record]) -> dict[str, Any]:
    """The patterns of the first seed."""
    return {name: np.array(rows) for name, rows in records[0]["matrices"].items()}
