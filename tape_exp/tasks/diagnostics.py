"""Length diagnostics of a model on any text: what it makes of far tokens, and where it looks.

Shape suffixes: B batch, T tokens, H heads, N windows, P ranges of positions, C contexts.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge

from tape_exp.data.batch import IGNORE
from tape_exp.machine.processes import gather, share
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.peft import without_autocast
from tape_exp.models.trace import AttentionUse, attention_use
from tape_exp.runs import starting_weights
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Fraction
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import Analysis

Row = dict[str, Any]
SCORED = 16  # one of so many tokens of a window are scored with every context


class Diagnostics(Analysis):
    """Loss by position and by context, and use of attention, of ``checkpoint=``'s model.

    The text's first ``rows`` windows of ``length`` tokens are read. The tables, which the record
    holds too, and each of which is drawn:

    | table              | value                                                                 |
    |--------------------|-----------------------------------------------------------------------|
    | loss_by_position   | nats a token by the number of tokens that are seen                    |
    | loss_by_context    | the same last tokens of each window, scored with shorter contexts     |
    | attention_sinks    | attention on the first ``sinks`` tokens of a window, by query         |
    | attention_distance | attention by the distance of the key                                  |
    | attention_entropy  | its entropy in nats, by query                                         |
    | frequency_use      | norms of queries and keys by frequency, where pairs of them turn      |

    Bands are 95 % intervals of Student's t over windows. ``attention_layers`` has each layer's
    means and its lowest and highest head; they and ``attention_distance`` are over queries of the
    second half of a window, which all see length / 2 tokens or more. ``summary`` says of what all
    this is, an untrained model among others. Metrics: :meth:`_metrics`.

    Args:
        length: of a window, in tokens; null: twice the trained length.
        rows: how many windows are read.
        traced: in how many of them attention is looked at.
        contexts: in tokens; null: the powers of two, the trained length and ``length``. A pass
            holds exactly so many, and its last sixteenth is scored.
        margin: in nats a token; the effective context is the shortest whose loss is above the
            lowest by no more.
        sinks: how many tokens count as the first.
        tokens_per_batch: of one forward pass.
    """

    def __init__(
        self,
        train_length: Count,
        length: Annotated[int, Ge(2)] | None = None,
        rows: Count = 16,
        traced: Count = 2,
        contexts: tuple[int, ...] | None = None,
        margin: Fraction = 0.01,
        sinks: Count = 4,
        tokens_per_batch: Count = 8192,
        **settings: Any,
    ) -> None:
        length = 2 * train_length if length is None else length
        super().__init__(train_length=train_length, length=length, rows=rows, **settings)
        if contexts is None:
            doubled = [1 << n for n in range(length.bit_length())]
            contexts = (*doubled, min(train_length, length))
        self.contexts = sorted({*contexts, length})
        if self.contexts[0] < 1 or self.contexts[-1] > length:
            raise ConfigError(
                f"task.contexts={list(contexts)} must be from 1 to task.length={length}."
            )
        self.traced = min(traced, rows)
        self.margin, self.sinks, self.tokens_per_batch = margin, sinks, tokens_per_batch

    def prepare(self) -> None:
        """Take the windows, and what follows each of their tokens."""
        super().prepare()
        self.labels = self.first_tokens(after=1)

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Read the windows one by one; ``limit`` of them."""
        reach = model.decoder.reach
        if reach is not None and reach < self.length:
            raise ConfigError(
                f"task.length={self.length} is more than the {reach} positions that the model has; "
                f"set task.length={reach}."
            )
        begun = self.surroundings.checkpoint
        trained = self.trained_tokens() if begun else None  # an untrained model has seen none
        positions = ranges(self.length, 4, trained or self.length)
        losses: list[tuple[np.ndarray, np.ndarray]] = []
        for number, counts in progress(share(range(self.rows)[:limit]), "reading windows"):
            nll_T = self._losses(model, number)
            shorter = [self._with_context(model, number, n) for n in self.contexts]
            if counts:
                by_range = [nll_T[a - 1 : b].mean() for a, b in positions]
                losses.append((np.array(by_range), np.array(shorter)))
        uses: list[dict[int, dict[str, np.ndarray]]] = []
        for number, counts in progress(share(range(self.traced)[:limit]), "looking at attention"):
            use = self._attention(model, number)
            uses += [use] if counts else []
        every = [pair for process in gather(losses) for pair in process]
        losses_NP, losses_NC = (np.stack(values) for values in zip(*every, strict=True))
        layers = [layer for process in gather(uses) for layer in process]
        by_position: list[Row] = [
            {"from": a, "to": b, **mean_row("loss", values)}
            for (a, b), values in zip(positions, losses_NP.T, strict=True)
        ]
        by_context = context_rows(self.contexts, losses_NC)
        tables: dict[str, list[Row]] = {
            "loss_by_position": by_position,
            "loss_by_context": by_context,
        }
        tables |= attention_tables(layers, self.length, self.sinks)
        name = self.text.label
        found: Row = {"effective_context": effective_context(by_context, self.margin)}
        found["best_context"] = min(by_context, key=lambda row: row["loss"])["context"]
        metrics = {f"{name}/{key}": value for key, value in found.items()}
        metrics |= {f"{name}/last_perplexity@{r['context']}": r["perplexity"] for r in by_context}
        for row in tables["attention_layers"]:
            for measure, times in (("sinks", 100), ("distance", 1), ("entropy", 1)):
                metrics[f"attention/{measure}@{row['layer']}"] = times * row[measure]
        facts = {
            "model": starting_weights.title(begun) if begun else "untrained",
            "trained_length": trained,
            "text": name,
            "length": self.length,
            "windows": len(every),
            "traced": len(layers),
            "scored": max(self.length // SCORED, 1) * len(every),
            "margin": self.margin,
            "sinks": self.sinks,
        }
        tables["summary"] = [facts | found]
        return Evaluation(metrics, tables=tables, record_tables=True)

    def _losses(self, model: Model, number: int) -> np.ndarray:
        """Of every token of a window, (T,) fp64."""
        rows = slice(number, number + 1)
        sampler = RowSampler(0, "evaluation", first=number)
        nll_BT = model(self.sample[rows], labels_BT=self.labels[rows], sampler=sampler)
        return nll_BT[0].double().cpu().numpy()

    def _with_context(self, model: Model, number: int, context: int) -> float:
        """The mean loss of the last tokens of a window, from passes of so many tokens.

        The last sixteenth of each pass is scored, if that leaves no pass that would begin before
        the window; else one pass scores them all.
        """
        scored = max(self.length // SCORED, 1)
        alone = context > self.length - scored
        at_once = min(scored, context if alone else max(context // SCORED, 1))
        ends, total = torch.arange(self.length, self.length - scored, -at_once), 0.0
        for some in ends.split(max(self.tokens_per_batch // context, 1)):
            places = some[:, None] - context + torch.arange(context)
            labels = self.labels[number][places][:, -at_once:]
            # The first pass of a window may score tokens that are none of the last.
            labels = labels.masked_fill(places[:, -at_once:] < self.length - scored, IGNORE)
            at = torch.arange(len(some))[:, None] * context + context - at_once
            at = (at + torch.arange(at_once)).flatten()
            sampler = RowSampler(0, "evaluation", number, context, first=int(some[0]))
            logits = model(self.sample[number][places], logits_at=at, sampler=sampler).float()
            wanted = labels.flatten().to(logits.device)
            nll = F.cross_entropy(logits, wanted, ignore_index=IGNORE, reduction="none")
            total += float(nll.double().sum())
        return total / scored

    def _attention(self, model: Any, number: int) -> dict[int, dict[str, np.ndarray]]:
        """What :func:`attention_tables` needs of each layer, in fp32."""
        tokens = self.sample[number : number + 1].to(model.device)
        edges = [0, *(a for a, _ in ranges(self.length - 1, 1)), self.length]
        sampler = RowSampler(0, "evaluation", first=number)
        with without_autocast(model.decoder):
            uses = attention_use(model.decoder, tokens, self.sinks, edges, sampler)
        return {layer: reduced(uses[layer], ranges(self.length, 2)) for layer in self.layers}


def ranges(length: int, per_doubling: int, *also: int) -> list[tuple[int, int]]:
    """1 … length in ranges (first, last) whose ends grow alike; ``also`` are ends too."""
    steps = per_doubling * length.bit_length()
    ends = {round(2 ** (n / per_doubling)) for n in range(steps)} | {*also, length}
    last = sorted(end for end in ends if end <= length)
    return [(before + 1, end) for before, end in zip([0, *last], last, strict=False)]


def rounded(value: Any) -> float:
    """Six significant digits, as records hold them."""
    return float(f"{float(value):.6g}")


def mean_row(name: str, values: np.ndarray, before: str = "") -> Row:
    """The mean over units and its 95 % interval by Student's t, which a single one has not."""
    from scipy.stats import sem, t

    low = high = None
    if len(values) > 1:
        half = t.ppf(0.975, len(values) - 1) * sem(values)
        low, high = rounded(values.mean() - half), rounded(values.mean() + half)
    return {name: rounded(values.mean()), f"{before}low": low, f"{before}high": high}


def context_rows(contexts: Sequence[int], losses_NC: np.ndarray) -> list[Row]:
    """The mean loss with each context, and how far it is above that of the best, window by window:
    the tokens are the same.
    """
    rows, best_N = [], losses_NC[:, losses_NC.mean(0).argmin()]
    for context, values in zip(contexts, losses_NC.T, strict=True):
        row: Row = {"context": context, **mean_row("loss", values)}
        row["perplexity"] = rounded(math.exp(min(values.mean(), 700)))
        rows.append(row | mean_row("excess", values - best_N, "excess_"))
    return rows


def effective_context(rows: Sequence[Row], margin: float) -> int:
    """The shortest context of :func:`context_rows` whose loss is within the margin of the lowest:
    where the longest contexts do harm, it is that from which on others do no better.
    """
    return min(row["context"] for row in rows if row["excess"] <= margin)


def reduced(use: AttentionUse, positions: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
    """A layer's means over queries: of each range of positions, and of the second half by head."""
    half = use.first.shape[-1] // 2
    late = use.by_distance[:, :, half:].double().mean(dim=(0, 1, 2))
    kept = {"by distance": late} | ({} if use.norms is None else {"norms": use.norms.double()})
    for name, values in (
        ("sinks", use.first),
        ("entropy", use.entropy),
        ("distance", use.distance),
    ):
        mean_T = values.double().mean(dim=(0, 1))
        kept[name] = values[..., half:].double().mean(dim=(0, 2))
        kept[f"{name} by position"] = torch.stack([mean_T[a - 1 : b].mean() for a, b in positions])
    return {name: values.cpu().numpy() for name, values in kept.items()}


def attention_tables(
    windows: Sequence[dict[int, dict[str, np.ndarray]]], length: int, sinks: int
) -> dict[str, list[Row]]:
    """Means over windows of what :func:`reduced` gives, and the same of uniform attention;
    probabilities are from 0 to 1.
    """
    positions, distances = ranges(length, 2), [(0, 0), *ranges(length - 1, 1)]
    seen = np.arange(1, length + 1)
    late = seen[length // 2 :]
    uniform = {
        "sinks": [np.minimum(sinks / seen[a - 1 : b], 1).mean() for a, b in positions],
        "entropy": [np.log(seen[a - 1 : b]).mean() for a, b in positions],
        "distance": [
            ((np.minimum(b + 1, late) - np.minimum(a, late)) / late).mean() for a, b in distances
        ],
    }
    tables: dict[str, list[Row]] = {
        f"attention_{name}": [] for name in ("sinks", "distance", "entropy", "layers")
    }
    turning: list[Row] = []
    for layer in sorted(windows[0]):
        names = windows[0][layer]
        mean = {name: np.mean([window[layer][name] for window in windows], 0) for name in names}
        for table, value, own, places in (
            ("sinks", "probability", mean["sinks by position"], positions),
            ("entropy", "entropy", mean["entropy by position"], positions),
            ("distance", "probability", mean["by distance"], distances),
        ):
            tables[f"attention_{table}"] += [
                {"layer": layer, "from": a, "to": b, value: rounded(x), "uniform": rounded(u)}
                for (a, b), x, u in zip(places, own, uniform[table], strict=True)
            ]
        row: Row = {"layer": layer}
        for measure in ("sinks", "distance", "entropy"):
            heads = mean[measure]
            row[measure] = rounded(heads.mean())
            row |= {f"{measure}_low": rounded(heads.min()), f"{measure}_high": rounded(heads.max())}
        tables["attention_layers"].append(row)
        for pair, (q, k) in enumerate(mean.get("norms", np.zeros((2, 0))).T, 1):
            norms = {"queries": rounded(q), "keys": rounded(k)}
            turning.append({"layer": layer, "pair": pair, **norms})
    return tables | ({"frequency_use": turning} if turning else {})
