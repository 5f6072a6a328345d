"""What a shift of positions changes: proposition 2 of the TAPE paper, measured.

Shape suffixes: B batch, T tokens (queries, then keys), H heads.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler, generator_for
from tape_exp.models.decoder import Decoder
from tape_exp.models.peft import without_autocast
from tape_exp.models.precision import full_precision
from tape_exp.models.trace import Trace, trace
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.schema import Count, Positive
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import Analysis

WEIGHTS = ("trained", "random")
PRECISIONS = ("fp32", "bf16")
SHIFTS = ("add_tokens", "shift_ids")
MEASURES = ("attention_relative", "products", "blocks")


class Stability(Analysis):
    """Table shift of the paper: attention and E Eᵀ before and after a shift, in fp32 and bf16.

    The weights are ``trained`` (those of ``checkpoint=``) and ``random`` (positional parameters
    drawn anew, N(0, ``std``): see :func:`random_copy`). Metrics, of :func:`shift_rows`:
    ``<weights>_<precision>/<shift>/<measure>@<layer>``, for a shift by ``shift`` positions.
    """

    def __init__(
        self,
        layers: tuple[int, ...] = (1, 2, 4, 8),
        rows: Count = 4,
        shift: Count = 3,
        std: Positive = 0.3,
        **settings: Any,
    ) -> None:
        super().__init__(layers=layers, rows=rows, **settings)
        self.set_max_length(self.length + shift)
        self.shift = shift
        self.std = std

    def metric_names(self) -> list[str]:
        """Name all metrics, those of trained weights and of encodings with an E among them."""
        names = []
        for weights, precision, shift, measure, layer in itertools.product(
            WEIGHTS, PRECISIONS, SHIFTS, MEASURES, self.layers
        ):
            names.append(f"{weights}_{precision}/{shift}/{measure}@{layer}")
        return names

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Measure both shifts, in both precisions, of all weights."""
        decoders = {"trained": model.decoder} if self.run_context.checkpoint is not None else {}
        decoders["random"] = random_copy(model.decoder, self.seed, self.std)
        tokens = self.sample.to(model.device)
        bos = self.tokenizer.bos
        cases = list(itertools.product(decoders, PRECISIONS))[:limit]
        metrics: dict[str, float] = {}
        table = []
        for weights, precision in progress(cases, "measuring shifts"):
            full = without_autocast(decoders[weights])
            half = torch.autocast(tokens.device.type, torch.bfloat16)
            with half if precision == "bf16" else full:
                rows = shift_rows(decoders[weights], tokens, bos, self.layers, self.shift)
            for (shift, layer), changes in rows.items():
                row = {"weights": weights, "precision": precision, "shift": shift, "layer": layer}
                table.append(row | changes)
                for measure, change in changes.items():
                    metrics[f"{weights}_{precision}/{shift}/{measure}@{layer}"] = change
        return Evaluation(metrics, tables={"shift": table})


def shift_rows(
    decoder: Decoder, tokens_BT: Tensor, bos: int, layers: Sequence[int], shift: int = 3
) -> dict[tuple[str, int], dict[str, float]]:
    """Measure the :func:`changes` of some layers, counted from 1, by two shifts of positions:

    - ``add_tokens``: ``shift`` more BOS tokens come first. Compared are the pairs of original
      tokens, as they are: the probability that now falls on the new tokens is missing in their
      rows.
    - ``shift_ids``: position ids begin at ``shift`` instead of 0; the tokens are the same.
      Encodings that sample positions draw the same ones before and after.
    """
    unshifted = _positions(decoder, tokens_BT)
    before = trace(decoder, tokens_BT, layers, unshifted)
    longer = torch.cat([tokens_BT.new_full((len(tokens_BT), shift), bos), tokens_BT], 1)
    after = trace(decoder, longer, layers, _positions(decoder, longer))
    rows = {("add_tokens", n): changes(before[n], after[n], shift) for n in layers}
    after = trace(decoder, tokens_BT, layers, unshifted + shift)
    return rows | {("shift_ids", n): changes(before[n], after[n]) for n in layers}


def shift_error(decoder: Decoder, tokens_BT: Tensor, shift: int = 3) -> float:
    """Return the largest change of attention in any layer when position ids begin at ``shift``."""
    unshifted = _positions(decoder, tokens_BT)
    before = trace(decoder, tokens_BT, positions_BT=unshifted)
    after = trace(decoder, tokens_BT, positions_BT=unshifted + shift)
    return max(attention_change(before[layer], after[layer]) for layer in before)


def changes(before: Trace, after: Trace, skip: int = 0) -> dict[str, float]:
    """Measure how a layer differs between two passes, of which the later one has ``skip`` more
    tokens at its beginning. Over all rows and heads and the T (T + 1) / 2 pairs of a query and a
    key not after it:

    | key                | value                                                               |
    |--------------------|---------------------------------------------------------------------|
    | attention_relative | mean abs ΔA / mean abs A, which is always 2 / (T + 1): rows sum to 1 |
    | products           | mean abs Δ(E Eᵀ) / mean abs E Eᵀ, heads averaged                     |
    | blocks             | RMS Δ(e_i e_jᵀ) / RMS e_i e_jᵀ over heads, blocks, entries and pairs |

    The last two are of encodings with an E. ``blocks`` is what proposition 2 states. ``products``
    is half its trace, averaged, and sees less: from a RoPE start a shift leaves the trace of the
    second layer's blocks as it is even where W1 and W2 mix over R, since 2 × 2 rotations commute.
    """
    measures = {"attention_relative": attention_change(before, after, skip)}
    old = before.products
    new = after.products
    if old is not None and new is not None:
        change = _pairs(new[..., skip:, skip:] - old).mean()
        measures["products"] = float(change / _pairs(old).mean())
        measures["blocks"] = _block_change(before, after, skip)
    return measures


def attention_change(before: Trace, after: Trace, skip: int = 0) -> float:
    """Compute mean abs ΔA / mean abs A."""
    change = _pairs(after.attention[..., skip:, skip:] - before.attention)
    return float(change.mean() / _pairs(before.attention).mean())


def random_copy(decoder: Decoder, seed: int, std: float) -> Decoder:
    """Return a copy whose positional parameters have N(0, std) added, each from a generator of its
    own.

    TAPE begins exactly as RoPE: at their initial values its parameters say nothing about what its
    updates preserve.
    """
    copied = copy.deepcopy(decoder)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if ".position." in name:
                generator = generator_for(seed, "random copy", name)
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(std * noise.to(parameter))
    return copied


def _positions(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Return the positions, which are given before a shift too, so that biases are computed
    alike.
    """
    B, T = tokens_BT.shape
    return decoder.positions(B, T, tokens_BT.device, RowSampler(0, "stability positions"))


def _block_change(before: Trace, after: Trace, skip: int) -> float:
    """Compute √ (Σ ‖Δ(e_i e_jᵀ)‖² / Σ ‖e_i e_jᵀ‖²), Frobenius norms over all pairs, heads and
    blocks.

    With U_i = [e_i, -e'_i] and V_j = [e_j, e'_j] the change is U_i V_jᵀ, and its squares over all
    pairs add up to tr(UᵀU VᵀV): no T × T matrix for each block. In fp64 what cancels in it leaves
    an error near 1e-8.
    """
    assert before.matrices is not None
    assert after.matrices is not None
    q, k = (E.double() for E in before.matrices)
    q_new, k_new = (E[:, skip:].double() for E in after.matrices)
    change = _squares(torch.cat([q, -q_new], -1), torch.cat([k, k_new], -1))
    return float((change.clamp(min=0) / _squares(q, k)).sqrt())


def _squares(U: Tensor, V: Tensor) -> Tensor:
    """Compute Σ_ij ‖U_i V_jᵀ‖², summed over rows, heads and blocks."""
    with full_precision(U.device):
        UtU = torch.einsum("bihmlr,bihmls->bhmrs", U, U)
        VtV = torch.einsum("bihmlr,bihmls->bhmrs", V, V)
        return (UtU * VtV).sum()


def _pairs(values: Tensor) -> Tensor:
    """Return absolute values (…, pairs) of the causal pairs of (T, T), in fp64 for means over
    millions.
    """
    rows, columns = torch.tril_indices(*values.shape[-2:], device=values.device)
    return values[..., rows, columns].abs().double()
