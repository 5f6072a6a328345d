"""``attend``: the one attention primitive, causal softmax attention that also averages what
positions carry.

Shape suffixes: B batch, T query tokens, S key tokens (S >= T: earlier ones come from a cache), H
query heads, K key/value heads (K divides H), D head dimension, C width of what is carried, N
distances.
"""

import functools
import importlib.util
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models import cudnn, fastest, fla, flex
from tape_exp.models.kernels import causal
from tape_exp.models.window import Window
from tape_exp.settings.errors import ConfigError, one_of

log = logging.getLogger("tape_exp")

HIDDEN = -1e9  # what is added to the logits of padding: finite, so that rows of it stay finite

# On a CPU the fused kernel pays off only from this many tokens on; for fewer, one explicit softmax
# serves the values and what is carried at once.
CPU_SDPA_FROM = 64
ROWS = 128  # of queries that it then takes at once
# And its fused kernel wants values as wide as queries, with zeros to make them so: twice as fast as
# its unfused one at 1024 tokens, slower below this many.
CPU_PADS_FROM = 256


@dataclass(frozen=True)
class OnDemand:
    """A bias of T = S tokens that is computed in the form that the backend reads."""

    by_pair: Callable[[], Tensor | None]  # broadcasts to (B, H, T, S)
    piecewise: Callable[[], causal.Piecewise | None]  # for our kernel
    path: fla.Path | None = None  # for fla's, of which the bias is made


@dataclass(frozen=True)
class Inputs:
    """What a backend is asked to do; head-major, as kernels want it."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D)
    v: Tensor  # (B, K, S, D)
    carried: Tensor | None  # (B or 1, H or 1, S, C)
    bias: Tensor | None  # broadcasts to (B, H, T, S)
    by_distance: Tensor | None  # (H, N >= S)
    slopes: Tensor | None  # (H,)
    padding: Tensor | None = None  # (B,), the keys of a row that are hidden, from its first on
    on_demand: OnDemand | None = None  # instead of a bias
    key_bias: Tensor | None = None  # (B, H, S)
    window: Window | None = None  # None: a query sees all keys before it

    @property
    def groups(self) -> int:
        """Query heads to a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def biased(self) -> bool:
        """Whether anything is added to the logits."""
        parts = (self.bias, self.by_distance, self.on_demand, self.key_bias)
        return any(x is not None for x in parts)

    def with_pairs(self) -> "Inputs":
        """The same with a bias by pair, where one is computed on demand."""
        if self.on_demand is None:
            return self
        return replace(self, bias=self.on_demand.by_pair(), on_demand=None)

    def scaled(self, scale: Tensor) -> "Inputs":
        """The same with logits, biases included, times (B or 1, H, T): a bias by pair, if any."""
        bias = replace(self.with_pairs(), padding=None).dense_bias()
        return replace(
            self,
            q=(self.q * scale[..., None]).to(self.q.dtype),
            bias=None if bias is None else bias * scale[..., None],
            by_distance=None,
            slopes=None,
            on_demand=None,
            key_bias=None,
        )

    def mask(self) -> Tensor:
        """Booleans that broadcast to (B, H, T, S): where query t may look at key s, if s is not
        padding.
        """
        T, S, device = self.q.shape[2], self.k.shape[2], self.q.device
        if self.window is None:
            return causal_mask(T, S, device)
        places = torch.arange(S, device=device)
        return self.window.mask(places[S - T :], places, self.padding)

    def narrow(self, rows: int) -> bool:
        """Whether a window hides at least half of the keys from so many queries in a row."""
        if self.window is None:
            return False
        seen = self.window.size + self.window.sinks + min(rows, self.q.shape[2])
        return 2 * seen <= self.k.shape[2]

    def dense_bias(self) -> Tensor | None:
        """Biases and padding as one tensor that broadcasts to (B, H, T, S)."""
        T, S = self.q.shape[2], self.k.shape[2]
        parts = [] if self.bias is None else [self.bias]
        if self.by_distance is not None:
            keys = torch.arange(S, device=self.q.device)
            distance = torch.arange(S - T, S, device=self.q.device)[:, None] - keys
            parts.insert(0, self.by_distance[:, distance.clamp(min=0)][None])
        if self.key_bias is not None:
            parts.append(self.at_keys(0, T))
        if self.padding is not None:
            parts.append(self.hidden() * HIDDEN)
        return sum(parts[1:], parts[0]) if parts else None

    def at_keys(self, first: int, last: int) -> Tensor:
        """What the key bias adds for queries ``first`` … ``last`` - 1 at each key up to that of the
        last of them, less what it adds at a query's own key: (B, H, last - first, S - T + last), at
        least fp32.

        The softmax does not see what is subtracted, and what is left is small where probabilities
        are not: of sums of thousands it has lost no bits. Rounded to 16 bits, x is wrong by 2^-9 x,
        which changes a probability by x e^-x 2^-9 of that of a key without bias: by less than the
        rounding of the probability itself.
        """
        assert self.key_bias is not None
        T, S = self.q.shape[2], self.k.shape[2]
        own = self.key_bias[:, :, S - T + first : S - T + last, None].detach()
        precise = torch.promote_types(self.q.dtype, torch.float32)
        return (self.key_bias[:, :, None, : S - T + last] - own).to(precise)

    def hidden(self) -> Tensor:
        """(B, 1, 1, S) fp32: 1 where a key is padding."""
        assert self.padding is not None
        keys = torch.arange(self.k.shape[2], device=self.q.device)
        return (keys < self.padding[:, None])[:, None, None].float()

    def rows(self) -> "list[tuple[int, Inputs]]":
        """For each row its padding, and the row without it: no keys are hidden any more."""
        assert self.padding is not None
        parts = []
        for b, skip in enumerate(self.padding.tolist()):

            def cut(x: Tensor | None, *dims: int, b: int = b, skip: int = skip) -> Tensor | None:
                if x is None:
                    return None
                row = x[b : b + 1] if x.shape[0] > 1 else x
                for dim in dims:
                    row = row.narrow(dim, skip, x.shape[dim] - skip) if x.shape[dim] > 1 else row
                return row

            q, k, v = (x[b : b + 1, :, skip:] for x in (self.q, self.k, self.v))
            carried, bias, keys = cut(self.carried, 2), cut(self.bias, 2, 3), cut(self.key_bias, 2)
            rest = self.by_distance, self.slopes
            row = Inputs(q, k, v, carried, bias, *rest, key_bias=keys, window=self.window)
            parts.append((skip, row))
        return parts

    def per_query_head(self) -> tuple[Tensor, Tensor]:
        """The keys (B, H, S, D), and the values joined with what is carried, (B, H, S, D + C)."""
        k, v = self.k, self.v
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        if self.carried is not None:
            carried = self.carried.to(v.dtype).expand(*v.shape[:3], -1)
            v = torch.cat([v, carried], -1)
        return k, v

    def split(self, both: Tensor) -> tuple[Tensor, Tensor | None]:
        """Undo what :meth:`per_query_head` joined."""
        D = self.v.shape[-1]
        return both[..., :D], both[..., D:] if self.carried is not None else None


def attend(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    *,
    bias: Tensor | OnDemand | None = None,
    by_distance: Tensor | None = None,
    slopes: Tensor | None = None,
    key_bias: Tensor | None = None,
    carried: Tensor | None = None,
    padding: Tensor | None = None,
    window: Window | None = None,
    scale: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Causal attention: ``softmax(q kᵀ / √D + bias) v``, and the same probabilities times
    ``carried``.

    Query t sees keys up to t + S - T. This is eq. (f_attn) and eq. (g_attn) of the TAPE paper in
    one call: one probability matrix averages both the values and the position state.

    Args:
        q_BTHD: queries, already rotated where the positional encoding rotates. Logits are computed
            in their dtype.
        k_BSKD: keys; with fewer heads than q (grouped queries) each serves H / K query heads in
            turn.
        v_BSKD: values; narrower than queries and keys where an encoding widens these.
        bias: added to the scaled logits; broadcasts to (B, H, T, S), or is computed on demand.
        by_distance: (H, N), N >= S: a bias that depends only on the distance t + S - T - s.
        slopes: (H,), if ``by_distance`` is -slope · distance: kernels that know ALiBi compute it
            themselves.
        key_bias: (B, S, H): added to the scaled logits of a key, whatever the query. Only
            differences within a row matter; those of fp64 lose nothing where the numbers are large.
        carried: (B, S, H, C), or with 1 in place of B or H; averaged by the probabilities of each
            query head.
        padding: (B,), how many of the first keys of each row no query sees. What the queries at
            these places give is not defined.
        window: the keys that a query sees; None: all up to its own.
        scale: (B or 1, T, H): what the logits, biases included, are multiplied by.
        backend: a key of :data:`BACKENDS`, or ``auto``: the fastest that is correct here, said once
            in the log.

    Returns:
        The attended values (B, T, H, D) and the attended state (B, T, H, C), or None where nothing
        is carried.

    Raises:
        ConfigError: the backend is unknown, not installed or cannot do this; the message names
            those that can.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BSKD, v_BSKD))
    carried = None if carried is None else carried.transpose(1, 2)
    key_bias = None if key_bias is None else key_bias.transpose(1, 2)
    if isinstance(bias, OnDemand):
        inputs = Inputs(q, k, v, carried, None, by_distance, slopes, padding, bias, key_bias)
    else:
        inputs = Inputs(q, k, v, carried, bias, by_distance, slopes, padding, None, key_bias)
    inputs = replace(inputs, window=window)
    if scale is not None:
        inputs = inputs.scaled(scale.transpose(1, 2))
    values, attended = _compute(inputs, backend)
    return values.transpose(1, 2), None if attended is None else attended.transpose(1, 2)


def _compute(inputs: Inputs, backend: str) -> tuple[Tensor, Tensor | None]:
    """What a backend gives, or the one that is picked; rows with padding one after the other."""
    if inputs.padding is not None:
        inputs = inputs.with_pairs()
        on_cpu = inputs.q.device.type == "cpu"
        if inputs.q.shape[2] < inputs.k.shape[2] and backend != "reference":
            backend = "sdpa"  # decoding: a mask of one row is cheap, and all devices take it
        elif backend in ("flash", "flex", "triton") or (backend == "auto" and not on_cpu):
            return _by_rows(inputs, backend)
    if backend == "auto":
        if inputs.on_demand is not None and BACKENDS["triton"].refuses(inputs):
            inputs = inputs.with_pairs()
        backend = pick_backend(inputs)
    else:
        one_of("trainer.attention", backend, BACKENDS)
        reason = BACKENDS[backend].refuses(inputs)
        if reason:
            able = [name for name, other in BACKENDS.items() if not other.refuses(inputs)]
            raise ConfigError(
                f"trainer.attention={backend}: {reason}. These can: {', '.join(able)}."
            )
    reads = backend in ("triton", "fla")
    return BACKENDS[backend].compute(inputs if reads else inputs.with_pairs())


def _by_rows(inputs: Inputs, backend: str) -> tuple[Tensor, Tensor | None]:
    """Each row of a padded prompt without its padding, so that no mask keeps it from a fused
    kernel, and no scores of T × T are made; zeros at the places of padding.
    """
    rows = [(skip, *_compute(row, backend)) for skip, row in inputs.rows()]
    values = torch.cat([F.pad(out, (0, 0, skip, 0)) for skip, out, _ in rows])
    if inputs.carried is None:
        return values, None
    return values, torch.cat([F.pad(x, (0, 0, skip, 0)) for skip, _, x in rows if x is not None])


def probabilities(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    *,
    bias: Tensor | None = None,
    by_distance: Tensor | None = None,
    slopes: Tensor | None = None,
    key_bias: Tensor | None = None,
    padding: Tensor | None = None,
    window: Window | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """(B, H, T, S), at least fp32: what :func:`attend` averages with, from the same arguments.

    The logits are added up in at least fp32 whatever the dtype of q and k, as fused kernels do.
    """
    precise = torch.promote_types(q_BTHD.dtype, torch.float32)
    q, k = (x.transpose(1, 2).to(precise) for x in (q_BTHD, k_BSKD))
    key_bias = None if key_bias is None else key_bias.transpose(1, 2)
    inputs = Inputs(q, k, k[..., :0], None, bias, by_distance, slopes, padding, None, key_bias)
    inputs = replace(inputs, window=window)
    if scale is not None:
        inputs = inputs.scaled(scale.transpose(1, 2))
    with torch.autocast(q.device.type, enabled=False):
        return _probabilities(inputs, inputs.per_query_head()[0])


def pick_backend(inputs: Inputs) -> str:
    """The name of the fastest correct backend for these inputs; each choice is logged once."""
    able = {name: why for name, why in _preferences(inputs) if not BACKENDS[name].refuses(inputs)}
    if not able:
        return "reference"
    name, why = next(iter(able.items()))
    kind = "bias" if inputs.biased else "plain"
    if inputs.carried is not None:
        kind = "carried state"
    if len(able) > 1:
        T = inputs.q.shape[2]
        length = next((x for x in fastest.LENGTHS if x <= T), fastest.LENGTHS[-1])
        window = inputs.window or Window(0)
        size = (window.size, window.sinks)
        measured = _measured(tuple(able), *_kind(inputs), length, *size)
        if measured is not None:
            name, why = measured
    say(f"attention ({kind}, {inputs.q.device.type}, {inputs.q.dtype}): {name}, {why}")
    return name


def _kind(inputs: Inputs) -> tuple[Any, ...]:
    """The fields of :class:`fastest.Kind`, but for the length and the window."""
    q, bias = inputs.q, "none"
    if inputs.bias is not None:
        bias = "of each row" if inputs.bias.shape[0] > 1 else "shared by rows"
    elif inputs.by_distance is not None:
        bias = "by_distance" if inputs.slopes is None else "slopes"
    if inputs.key_bias is not None:
        bias += " and of keys"
    carried = 0 if inputs.carried is None else inputs.carried.shape[-1]
    return q.device, q.dtype, q.shape[1], inputs.k.shape[1], q.shape[-1], carried, bias


def _measured(candidates: tuple[str, ...], *kind: Any) -> tuple[str, str] | None:
    """The backend that is the fastest on this machine, and the times of all; None where nothing is
    to be measured. Its arguments are constants for torch.compile.
    """
    asked = fastest.Kind(*kind)
    row = fastest.choose(
        asked, candidates, lambda name, call: BACKENDS[name].compute(Inputs(**call))
    )
    if row is None:
        return None
    return row["fastest"] or candidates[0], fastest.in_words(row, asked.length)


def _preferences(inputs: Inputs) -> list[tuple[str, str]]:
    """(backend, reason): those that may be the fastest. On a GPU the times of those that do not
    refuse decide; where nothing is measured, the first of them is taken.
    """
    T, S = inputs.q.shape[2], inputs.k.shape[2]
    if inputs.q.device.type != "cuda":
        return (
            [("reference", "short sequences on a CPU")]
            if T < CPU_SDPA_FROM
            else [("sdpa", "fused on a CPU")]
        )
    if T != S or inputs.q.dtype not in (torch.float16, torch.bfloat16):
        return [("sdpa", "decoding or full precision")]
    if inputs.slopes is not None and inputs.carried is None:
        return [
            ("flash", "ALiBi slopes are native"),
            ("triton", "ALiBi slopes are native"),
            ("flex", "bias by distance"),
        ]
    if inputs.on_demand is not None:
        return [("triton", "the bias is computed from tables, for no pair in memory")]
    if inputs.biased:
        return [
            ("triton", "the bias is looked up by distance"),
            ("flex", "the bias is fused into the scores"),
            ("sdpa", "the bias as a mask"),
        ]
    if inputs.window is not None:
        return [
            ("flash", "windows are native"),
            ("flex", "blocks outside of the window are skipped"),
            ("sdpa", "the window as a mask"),
        ]
    if inputs.carried is not None:
        return [
            ("triton", "one pass over values and state"),
            ("sdpa", "values and state side by side"),
            ("flash", "values and state side by side"),
        ]
    return [("sdpa", "cuDNN or flash"), ("flash", "its own kernels")]


_said: dict[str, None] = {}


def say(text: str) -> None:
    """Log a choice once in a run."""
    if text not in _said:
        _said[text] = None
        log.info(text)


def choices() -> list[str]:
    """What was chosen since :func:`forget`, as the log has it."""
    return list(_said)


def forget() -> None:
    """A new run begins, whose choices are told again."""
    _said.clear()


def to_compile() -> None:
    """Tell torch.compile which of these functions it calls once, as it builds the graph, which then
    is one graph: what is logged, what is installed, what a library can do, and what was fast. None
    of them may be cached: torch.compile would look through the cache and trace what it finds.
    """
    here = (say, _installed, _measured, cudnn.takes_wide_values, fla.installed)
    facts = causal.installed, causal.interpreted, causal.too_old, causal.too_small
    for fact in (*here, *facts):
        torch.compiler.assume_constant_result(fact)


def causal_mask(T: int, S: int, device: torch.device) -> Tensor:
    """(T, S) booleans, true where query t may look at key s: s <= t + S - T."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def _probabilities(inputs: Inputs, k_BHSD: Tensor) -> Tensor:
    """The explicit softmax, with a key head for each query head: (B, H, T, S), at least fp32."""
    q, k = inputs.q, k_BHSD
    logits = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    bias = inputs.dense_bias()
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~inputs.mask(), float("-inf"))
    return logits.softmax(-1)


def _reference(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """The explicit softmax with fp32 logits and probabilities: the oracle of all others."""
    k, v = inputs.per_query_head()
    return inputs.split(_probabilities(inputs, k).to(v.dtype) @ v)


def _sdpa(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """torch's scaled_dot_product_attention.

    With something carried, a GPU does both in one call. Its kernels want values as wide as queries,
    so that q and k are padded with zeros to the joint width, but for cuDNN's where it takes them as
    they are, and values to the width of q and k. On a CPU the fused kernel gains less than
    computing the probabilities once for both saves, or leaving out the keys that a window hides
    (:func:`_row_blocks`), and it has no gradients for a mask that learns. Narrower values are
    padded there where that pays off.
    """
    keys_learn = inputs.key_bias is not None and torch.is_grad_enabled()
    in_blocks = inputs.carried is not None or keys_learn or inputs.narrow(ROWS)
    if in_blocks and inputs.q.device.type == "cpu":
        return _row_blocks(inputs)
    q, (k, v) = inputs.q, inputs.per_query_head()
    scale = 1 / math.sqrt(q.shape[-1])
    T, S, D, padding = q.shape[2], k.shape[2], q.shape[-1], v.shape[-1] - q.shape[-1]
    bias = inputs.dense_bias()
    plain = bias is None and T == S and inputs.window is None
    # With a mask it was not tried.
    if padding > 0 and not (plain and cudnn.takes_wide_values(q.device, q.dtype, D, D + padding)):
        q, k = F.pad(q, (0, padding)), F.pad(k, (0, padding))
    if padding < 0 and (q.device.type != "cpu" or (plain and T >= CPU_PADS_FROM)):
        v = F.pad(v, (0, -padding))
    if plain:
        with cudnn.priority(q.device):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            return inputs.split(out[..., : D + padding])
    mask = inputs.mask()
    if bias is not None:
        mask = torch.where(mask, bias.to(q.dtype), float("-inf")).expand(*q.shape[:2], T, S)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return inputs.split(out[..., : D + padding])


def _row_blocks(inputs: Inputs, rows: int = ROWS) -> tuple[Tensor, Tensor | None]:
    """The explicit softmax for ``rows`` queries at a time, over only the keys that they may see."""
    k, v = replace(inputs, carried=None).per_query_head()
    averaged = [v]
    if inputs.carried is not None:
        averaged.append(inputs.carried.to(v.dtype).expand(*v.shape[:3], -1))
    q = inputs.q / math.sqrt(inputs.q.shape[-1])
    bias = replace(inputs, key_bias=None).dense_bias()
    T, S = q.shape[2], k.shape[2]
    places = torch.arange(S, device=q.device)
    averages: list[list[Tensor]] = [[] for _ in averaged]
    for first in range(0, T, rows):
        last = min(first + rows, T)
        seen = last + S - T
        keys: slice | list[int] = slice(seen)
        if inputs.window is None:
            visible = causal_mask(last - first, seen, q.device)
        else:
            keys = inputs.window.keys(first + S - T, seen, inputs.padding)
            visible = inputs.window.mask(places[first + S - T : seen], places[keys], inputs.padding)
        logits = q[:, :, first:last] @ k[:, :, keys].transpose(-1, -2)
        if bias is not None:
            logits = logits + bias.expand(*q.shape[:2], T, S)[:, :, first:last, keys]
        if inputs.key_bias is not None:
            logits = logits + inputs.at_keys(first, last)[..., keys]
        precise = torch.promote_types(logits.dtype, torch.float32)
        logits = logits.masked_fill_(~visible, float("-inf"))
        probabilities = logits.softmax(-1, precise).to(v.dtype)
        for parts, x in zip(averages, averaged, strict=True):
            parts.append(probabilities @ x[:, :, keys])
    values, *attended = (torch.cat(parts, 2) for parts in averages)
    return values, attended[0] if attended else None


def _flex(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """FlexAttention: a score_mod adds the bias; blocks above the diagonal are skipped.

    It is compiled for every size that it meets. So lengths are padded to a few: what is added is
    behind all real keys, where no real query looks.
    """
    length, (k, v) = inputs.q.shape[2], inputs.per_query_head()
    offset, more = k.shape[2] - length, flex.bucket(length) - length
    q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (inputs.q, k, v))
    bias, table = inputs.bias, inputs.by_distance
    T, S = q.shape[2], k.shape[2]
    if table is not None:
        table = F.pad(table[:, : S - more], (0, more))
    if bias is not None:
        bias = F.pad(bias.expand(-1, -1, T - more, S - more), (0, more, 0, more))
        bias = (
            bias.expand(-1, q.shape[1], T, S)
            if bias.shape[0] == 1
            else bias.expand(q.shape[0], q.shape[1], T, S)
        )
    one_batch = bias is not None and bias.shape[0] == 1
    if inputs.key_bias is not None:
        keys = F.pad(inputs.key_bias.expand(len(q), -1, -1), (0, more))
        high, low = causal.in_two(keys)
        own = high[:, :, offset:].detach()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if table is not None:
            score = score + table[h, (t + offset - s).clamp(min=0)]
        if bias is not None:
            score = score + (bias[0, h, t, s] if one_batch else bias[b, h, t, s])
        if inputs.key_bias is not None:
            score = score + ((high[b, h, s] - own[b, h, t]) + low[b, h, s])
        return score

    out = flex.function(q.device.type)(
        q,
        k,
        v,
        score_mod=score_mod if inputs.biased else None,
        block_mask=flex.causal_blocks(T, S, str(q.device), inputs.window),
        scale=1 / math.sqrt(q.shape[-1]),
    )
    return inputs.split(out[:, :, :length])


def _flash(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """flash-attn with native ALiBi; q and k are padded to the width of values and state."""
    from flash_attn import flash_attn_func

    scale = 1 / math.sqrt(inputs.q.shape[-1])
    k, v = (inputs.k, inputs.v) if inputs.carried is None else inputs.per_query_head()
    padding = v.shape[-1] - inputs.q.shape[-1]
    q, k = F.pad(inputs.q, (0, padding)), F.pad(k, (0, padding))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    slopes = None if inputs.slopes is None else inputs.slopes.float()
    before = -1 if inputs.window is None else inputs.window.size - 1
    out = flash_attn_func(
        q, k, v, softmax_scale=scale, causal=True, window_size=(before, -1), alibi_slopes=slopes
    )
    return inputs.split(out.transpose(1, 2))


def _triton(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """Our fused kernel: one q kᵀ, whose probabilities average both the values and the state."""
    carried = None if inputs.carried is None else inputs.carried.to(inputs.v.dtype).transpose(1, 2)
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    table = inputs.by_distance if inputs.slopes is None else None
    pieces = None if inputs.on_demand is None else inputs.on_demand.piecewise()
    keys = None if inputs.key_bias is None else inputs.key_bias.transpose(1, 2)
    out, attended = causal.fused_attention(
        q, k, v, carried, inputs.slopes, table, pieces, key_bias=keys
    )
    return out.transpose(1, 2), None if attended is None else attended.transpose(1, 2)


def _fla(inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention's kernels for PaTH and FoX, chosen only where they are named."""
    path = None if inputs.on_demand is None else inputs.on_demand.path
    return fla.attention(inputs.q, inputs.k, inputs.v, path, inputs.key_bias), None


def _never(inputs: Inputs) -> str | None:
    return None


def _flex_refuses(inputs: Inputs) -> str | None:
    biases = (inputs.bias, inputs.by_distance, inputs.key_bias)
    tensors = (inputs.q, inputs.k, inputs.v, inputs.carried, *biases)
    if (
        inputs.q.device.type == "cpu"
        and torch.is_grad_enabled()
        and any(x is not None and x.requires_grad for x in tensors)
    ):
        return "FlexAttention has no backward on a CPU"
    return None


# What is absent is looked for in every folder: too slow for every call of attention.
_find_spec = functools.cache(importlib.util.find_spec)


def _installed(package: str) -> bool:
    return _find_spec(package) is not None


def _flash_refuses(inputs: Inputs) -> str | None:
    width = inputs.v.shape[-1] + (0 if inputs.carried is None else inputs.carried.shape[-1])
    if not _installed("flash_attn"):
        return "flash-attn is not installed (docs/faq.md says how)"
    if inputs.q.shape[-1] > width:
        return "flash-attn needs values and state together as wide as the queries"
    if inputs.q.device.type != "cuda" or inputs.q.dtype not in (torch.float16, torch.bfloat16):
        return "flash-attn computes only in fp16 and bf16, on a GPU"
    if inputs.key_bias is not None or (inputs.biased and inputs.slopes is None):
        return "flash-attn knows no bias but ALiBi's slopes"
    if inputs.window is not None and inputs.window.sinks:
        return "flash-attn knows no attention sinks"
    return "flash-attn's heads are at most 256 wide" if width > 256 else None


def _triton_refuses(inputs: Inputs) -> str | None:
    if inputs.bias is not None or (inputs.on_demand is not None and inputs.on_demand.path):
        return "the Triton kernel knows no bias of single pairs"
    if inputs.window is not None:
        return "the Triton kernel knows no window"
    carried = None if inputs.carried is None else inputs.carried.transpose(1, 2)
    reason = causal.supports(
        inputs.q.transpose(1, 2), inputs.k.transpose(1, 2), inputs.v.transpose(1, 2), carried
    )
    return None if reason is None else reason.rstrip(".")


def _fla_refuses(inputs: Inputs) -> str | None:
    path = None if inputs.on_demand is None else inputs.on_demand.path
    known = (path is not None or inputs.on_demand is None) and (path or inputs.key_bias is not None)
    others = inputs.bias, inputs.by_distance, inputs.carried
    if not known or any(x is not None for x in others):
        return "flash-linear-attention serves only PaTH and FoX, in passes over whole sequences"
    if inputs.window is not None:
        return "flash-linear-attention knows no window here"
    return fla.refuses(inputs.q, inputs.k, inputs.v)


@dataclass(frozen=True)
class Backend:
    """How a backend computes, and why it refuses (None: it can)."""

    compute: Callable[[Inputs], tuple[Tensor, Tensor | None]]
    refuses: Callable[[Inputs], str | None]


BACKENDS = {
    "reference": Backend(_reference, _never),
    "sdpa": Backend(_sdpa, _never),
    "flex": Backend(_flex, _flex_refuses),
    "flash": Backend(_flash, _flash_refuses),
    "triton": Backend(_triton, _triton_refuses),
    "fla": Backend(_fla, _fla_refuses),
}
