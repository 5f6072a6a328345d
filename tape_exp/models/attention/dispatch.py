"""``attend``: the one attention primitive, causal softmax attention that also averages what
positions carry.

Shape suffixes as in :mod:`tape_exp.models.attention`.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.models.attention.backends import BACKENDS
from tape_exp.models.attention.choose import pick_backend, say
from tape_exp.models.attention.inputs import Inputs, OnDemand
from tape_exp.models.attention.window import Window
from tape_exp.settings.errors import ConfigError, one_of


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
        backend: a key of :data:`~tape_exp.models.attention.backends.BACKENDS`, or ``auto``: the
            fastest that is correct here, said once in the log.

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
    if inputs.in_rows is not None and backend in ("auto", "sdpa"):
        if backend == "auto":
            kind = f"bias, {inputs.q.device.type}, {inputs.q.dtype}"
            say(f"attention ({kind}): sdpa, the bias is made a block of rows at a time")
        return BACKENDS["sdpa"].compute(inputs)
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
