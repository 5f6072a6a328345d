"""The language-model tables and figures: perplexity, ablations, shifts of positions, patterns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

import numpy as np

from tape_exp.paper.artifacts import (
    LanguageArtifact,
    Record,
    Records,
    RunArtifact,
    first_of,
    task_of,
    windows_of,
)
from tape_exp.paper.claims import Contest
from tape_exp.paper.figure_kinds import Figure, Patterns
from tape_exp.paper.statistics import lead
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, columns, origin, pairs
from tape_exp.paper.values import (
    NOT_RUN,
    NOTHING,
    Missing,
    Value,
    integer,
    known,
    mean_of,
    over_seeds,
    reported,
)
from tape_exp.settings.naming import display_name


@dataclass(kw_only=True)
class Comparison(LanguageArtifact):
    """The perplexity of each encoding on each test set at each length, and of a unigram model.

    Args:
        reference: the model from which the paired differences at the trained length are taken.
    """

    reference: str = "rope"

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model, and one for the unigram baseline."""
        keys = _perplexities(first_of(records)) if records else {}
        at_trained = [key for key in keys if key[1] == self._trained(records) and " " not in key[0]]
        leads = {key: (f"{key[0]} - {self.reference}", key[1]) for key in at_trained}
        rows: list[Row] = []
        for model in self.models:
            runs = records.get(model, [])
            row: Row = {"model": model}
            for column, (metric, digits) in keys.items():
                row[column] = mean_of(runs, metric, digits)
            rows.append(row | origin(runs, scale))
        by_model = {row["model"]: row for row in rows}
        for row, key in product(rows, leads):
            other = by_model.get(self.reference, {}).get(key, NOT_RUN)
            row[leads[key]] = NOTHING if row["model"] == self.reference else lead(row[key], other)
        unigram: Row = {"model": "unigram"}
        for column, (metric, _) in keys.items():
            if "/perplexity@" in metric:
                baseline = f"{metric.split('/')[0]}/unigram_perplexity"
                unigram[column] = reported(first_of(records)["metrics"][baseline])
        to = display_name(self.reference)
        apart = [
            Column(lead, shown=f"{display_name(key[0])} − {to} {key[1]}")
            for key, lead in leads.items()
        ]
        head = [Column("model"), *map(Column, keys), *apart, *ORIGIN]
        return Table(head, [*rows, unigram], quantity="perplexity")

    def _trained(self, records: Records) -> int:
        """The tokens that the models were trained at."""
        return task_of(records)["train_length"] if records else 0

    def caption(self, scale: str, records: Records) -> str:
        """How the models were trained."""
        some = first_of(records)
        return (
            f"{self.title}, by context length; {sizes(records)} trained at "
            f"{some['config']['task']['train_length']} tokens on {some['tokens'] / 1e6:.1f} M "
            f"tokens.{scored(records)} Mean over seeds with its 95 % interval. Unigram: the "
            "entropy of the set's own token counts, below which no model that ignores the context "
            f"can come. − {display_name(self.reference)}: the difference paired by seed. "
            f"Scale {scale}."
        )


def sizes(records: Records) -> str:
    """The parameters of the models: ``475,712 parameters``, or from the fewest to the most."""
    counts = [record["parameters"] for runs in records.values() for record in runs]
    ends = sorted({min(counts), max(counts)})
    return f"{' to '.join(f'{n:,}' for n in ends)} parameters"


def scored(records: Records) -> str:
    """How much of each test set was scored, as a sentence after a space; empty if none says."""
    metrics = [r["metrics"] for runs in records.values() for r in runs]
    counts = {n for each in metrics for name, n in each.items() if name.endswith("/tokens")}
    if not counts:
        return ""
    ends = sorted({min(counts), max(counts)})
    first = " to ".join(f"{n:,.0f}" for n in ends)
    return (
        f" Scored: the first {first} tokens of each set, the same for all seeds, so that intervals "
        "over seeds leave out what other documents would give."
    )


def _perplexities(record: Record) -> dict[tuple[str, int], tuple[str, int]]:
    """(test set, length) -> (metric, digits), with bits a byte at the trained length."""
    keys = {}
    trained = record["config"]["task"]["train_length"]
    for metric in record["metrics"]:
        name, _, length = metric.partition("/perplexity@")
        if length.isdigit():
            keys[name, int(length)] = (metric, 2)
    for metric in record["metrics"]:
        if metric.endswith(f"/bits_per_byte@{trained}"):
            keys[f"{metric.split('/')[0]} bits/byte", trained] = (metric, 3)
    return keys


@dataclass(kw_only=True)
class Ablation(LanguageArtifact):
    """Perplexity by length next to the paper's, added parameters and the measured shift error.

    Args:
        columns: headings of the first columns.
        labels: their cells for each model.
    """

    columns: list[str] = field(default_factory=list)
    labels: dict[str, list[str]] = field(default_factory=dict)

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """Perplexity at the longest length."""
        table, at_paper = self.cells(scale, records), self.paper()["lengths"][-1]
        longest = max(windows_of(records), default=0)
        return self.versus(
            f"{longest} tokens",
            table.values(("ours", longest)),
            table.values(("paper", at_paper)),
            published_where=f"{at_paper} tokens",
            higher=False,
        )

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each model."""
        paper = self.paper()
        lengths = windows_of(records)
        rows: list[Row] = []
        for model in self.models:
            runs = records.get(model, [])
            row: Row = {"model": model, **dict(zip(self.columns, self.labels[model], strict=True))}
            for n, number in zip(paper["lengths"], paper["perplexity"][model], strict=True):
                row["paper", n] = reported(number, 1)
            for n in lengths:
                row["ours", n] = mean_of(runs, f"github/perplexity@{n}")
            row["added", "paper"] = reported(paper.get("added_m", {}).get(model))
            row["added", "ours"] = over_seeds(
                {r["seed"]: r["positional_parameters"] / 2**20 for r in runs[:1]}, 4
            )
            row["shift error", "ours"] = _rewritten(
                mean_of(runs, "shift/attention"), "{number:.1e}"
            )
            rows.append(row | origin(runs, scale))
        head = [Column("model"), *map(Column, self.columns), *pairs(paper["lengths"], lengths)]
        head += [Column(("added", whose), unit="M") for whose in ("paper", "ours")]
        head += [Column(("shift error", "ours"), unit="%"), *ORIGIN]
        return Table(head, rows, quantity="perplexity")

    def caption(self, scale: str, records: Records) -> str:
        """What is compared, and what a model that ignores the context reaches."""
        paper, some = self.paper(), first_of(records)
        return (
            f"{self.title}. Perplexity on GitHub by context length, the paper's "
            f"({paper['source']}, {paper['setting']}, one seed) next to ours (scale {scale}: its "
            f"own lengths, corpus and size, {sizes(records)}; mean over seeds "
            "with its 95 % interval). M is 2^20. Shift error: the largest relative change of any "
            "layer's attention when position ids begin at 3, in fp32. A model that ignores the "
            f"context: {some['metrics']['github/unigram_perplexity']:.0f} at best."
        )


SHIFTED = {"attention": "attention_relative", "products": "products", "blocks": "blocks"}
PAPERS = {"attention": "paper ×0.01", "products": "paper %"}
CASES = ("trained_fp32", "trained_bf16", "random_fp32", "random_bf16")


@dataclass(kw_only=True)
class Shift(LanguageArtifact):
    """What three more BOS and position ids from 3 change, by layer, in fp32 and bf16."""

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """How the deepest measured layer's attention changes when position ids begin at 3, in %."""
        table, paper = self.cells(scale, records), self.paper()
        deepest, at_paper = max(_layers(records), default=0), paper["layers"][-1]
        published = {
            model: Value(row[-1]) for model, row in paper["attention"]["shift_ids"].items()
        }
        return self.versus(
            f"layer {deepest}, %",
            table.values("trained_fp32", measure="attention", shift="shift_ids", layer=deepest),
            published,
            published_where=f"layer {at_paper}, ×0.01",
            higher=False,
        )

    def cells(self, scale: str, records: Records) -> Table:
        """A row for each measure, shift, model and layer."""
        paper = self.paper()
        rows: list[Row] = []
        for measure, metric in SHIFTED.items():
            for shift in ("add_tokens", "shift_ids"):
                for model in self.models:
                    runs = records.get(model, [])
                    published = paper.get(measure, {}).get(shift, {}).get(model, [])
                    theirs = dict(zip(paper["layers"], published, strict=False))
                    for layer in _layers(records):
                        row: Row = {"measure": measure, "shift": shift, "model": model}
                        row["layer"] = integer(layer)
                        if measure in PAPERS:
                            row[PAPERS[measure]] = reported(theirs.get(layer))
                        for case in CASES:
                            key = f"{case}/{shift}/{metric}@{layer}"
                            row[case] = _percent(
                                {r["seed"]: r["metrics"][key] for r in runs if key in r["metrics"]}
                            )
                        rows.append(row | origin(runs, scale))
        head = columns(["measure", "shift", "model", "layer"])
        head += [Column("paper ×0.01", "paper", "×0.01"), Column("paper %", "paper", "%")]
        head += [Column(case, f"ours {case.replace('_', ' ')}", "%") for case in CASES]
        return Table([*head, *ORIGIN], rows)

    def caption(self, scale: str, records: Records) -> str:
        """What each measure is relative to, and what the paper has of the layers not shown."""
        paper = self.paper()
        deepest = (f"{display_name(m)} {r[-1]}" for m, r in paper["attention"]["shift_ids"].items())
        theirs = f"its layer {paper['layers'][-1]}, attention, shift ids: {', '.join(deepest)}"
        return (
            f"{self.title}. Attention: mean change over causal pairs, ours relative to the mean "
            "weight in percent, the paper's as printed, in units of 0.01. Products: "
            "E·Eᵀ, heads and blocks averaged, "
            "relative, in percent. Blocks: every entry of e_i e_jᵀ, of which proposition 2 speaks, "
            "root mean square, relative; the averaged product hides what commutes. Random: "
            f"positional parameters drawn anew. Paper: {paper['setting']}; {theirs}. Scale "
            f"{scale}, mean over seeds."
        )


def _layers(records: Records) -> list[int]:
    """The measured layers."""
    metrics = [metric for runs in records.values() for metric in runs[0]["metrics"]]
    return sorted({int(metric.split("@")[1]) for metric in metrics})


def _percent(shares: Mapping[int, float]) -> Value | Missing:
    """The mean over seeds; its interval is not written, but claims are judged by it."""
    value = over_seeds({seed: 100 * share for seed, share in shares.items()})
    small = isinstance(value, Value) and 0 < value.number < 0.01
    return _rewritten(value, "{number:.0e}" if small else "{number:.2f}")


def _rewritten(value: Value | Missing, form: str) -> Value | Missing:
    return replace(value, form=form) if isinstance(value, Value) else value


PRODUCTS = (
    "E·Eᵀ: the products of the positional states of two tokens, heads and blocks averaged. A run "
    "reads one passage of 64 tokens, the same at every scale and seed. Panels of one kind share a "
    "scale of colours."
)


@dataclass(kw_only=True)
class Pattern(RunArtifact):
    """E·Eᵀ of TAPE and RoPE in the last layer, and the difference of their attention."""

    def caption(self, scale: str, records: Records) -> str:
        """What the panels show."""
        return f"{PRODUCTS} Attention: probabilities, heads averaged."

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """The attention-weighted mean distance from query to key in the last layer."""
        distances = {
            model: over_seeds({r["seed"]: _distance(_last(r, "attention")) for r in runs})
            for model, runs in records.items()
        }
        return self.versus("tokens back", known(distances), {})

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """Nothing before both models have run; on the page the attention of each too."""
        if not {"tape", "rope"} <= records.keys():
            return []
        first = {model: records[model][0] for model in ("tape", "rope")}
        layer = _depths(first["tape"])[-1]
        products = {
            f"E·Eᵀ of {display_name(model)}, layer {layer}": _last(record, "products")
            for model, record in first.items()
        }
        attention = {
            f"attention of {display_name(model)}, layer {layer}": _last(record, "attention")
            for model, record in first.items()
        }
        difference = f"attention, TAPE − RoPE, layer {layer}"
        tape, rope = attention.values()
        title = f"{self.title} — scale {scale}, seed {first['tape']['seed']}"
        label = dict.fromkeys(products, "E·Eᵀ") | {difference: "difference of attention"}
        return [
            Patterns(title, products | {difference: tape - rope}, causal=[difference], label=label),
            Patterns(title, attention, None, [*attention], "attention"),
        ]


@dataclass(kw_only=True)
class Layers(RunArtifact):
    """E·Eᵀ from the first layer to the last."""

    def caption(self, scale: str, records: Records) -> str:
        """What the panels show."""
        return PRODUCTS

    def contests(self, scale: str, records: Records) -> list[Contest]:
        """Mean |E·Eᵀ| on the diagonal over that of other causal pairs: each layer and the one
        before it.
        """
        runs = records.get(self.models[0], [])
        depths = _depths(runs[0]) if runs else []
        shares = {
            f"layer {n}": over_seeds(
                {r["seed"]: _dominance(_matrix(r, "products", n)) for r in runs}
            )
            for n in depths
        }
        return [
            Contest("diagonal / rest", deeper, [layer], known(shares), {}, higher=False)
            for layer, deeper in pairwise(shares)
        ]

    def figures(self, scale: str, records: Records) -> list[Figure]:
        """One picture, a panel for each layer."""
        first = records[self.models[0]][0]
        panels = {
            f"layer {name.split('@')[1]}": np.array(rows)
            for name, rows in first["matrices"].items()
            if name.startswith("products")
        }
        title = f"{self.title} — scale {scale}, seed {first['seed']}"
        return [Patterns(title, panels, label="E·Eᵀ")]


def _last(record: Record, kind: str) -> np.ndarray:
    return _matrix(record, kind, _depths(record)[-1])


def _matrix(record: Record, kind: str, layer: int) -> np.ndarray:
    return np.array(record["matrices"][f"{kind}@{layer}"], dtype=float)


def _depths(record: Record) -> list[int]:
    """The layers whose matrices are recorded."""
    return sorted({int(name.split("@")[1]) for name in record["matrices"]})


def _distance(attention: np.ndarray) -> float:
    positions = np.arange(len(attention))
    return float((np.tril(attention) * (positions[:, None] - positions)).sum(1).mean())


def _dominance(products: np.ndarray) -> float:
    below = np.tri(len(products), k=-1, dtype=bool)
    return float(np.abs(np.diag(products)).mean() / np.abs(products[below]).mean())
