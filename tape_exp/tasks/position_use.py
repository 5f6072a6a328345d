"""What the positional state of a trained model is, and what the model needs of its updates.

In TAPE a block of the state of layer l is one complex number, E_l = E_1 c with c = r e^{iφ} for
each token, head and block of two channels. The gain r makes logits larger or smaller, as a
temperature does; φ turns the position. Here parts of the update, or of c, are left out.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import LastLogits
from tape_exp.models.places import Places
from tape_exp.models.positions.base import Rotated
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.models.scores import Scores
from tape_exp.models.trace import rotation_matrices
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Model

# Parts of the update that are left out, as `without` names them: nothing, P, W2, or both
RESETS: dict[str, tuple[str, ...]] = {
    "intact": (),
    "no_attention": ("attention",),
    "no_feed_forward": ("feed_forward",),
    "no_update": ("attention", "feed_forward"),
}
# What c, (B, T, H, M), is replaced by, given its mean over tokens, (H, M): see `mean_factor`
FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gain": lambda c, mean: c.abs() + 0j,
    "turn": lambda c, mean: c.sgn(),
    "turn_mean_gain": lambda c, mean: c.sgn() * mean.abs(),
    "static": lambda c, mean: mean.expand_as(c),
}
INTERVENTIONS = (*RESETS, *FACTORS)
Contexts = dict[str, Callable[[], AbstractContextManager]]
Rows = Iterable[tuple[Tensor, Tensor]]  # tokens, (B, T), and which of them are no padding


def updates_positions(decoder: Decoder) -> bool:
    """Whether the layers hand on a state that they update: TAPE and its variants."""
    return any(isinstance(block.position, TAPE) for block in decoder.blocks())


def has_factors(block: Block) -> bool:
    """Whether the state of a layer is one complex number for each block: TAPE and the variants of
    it that are not of the general layout.
    """
    return isinstance(block.position, TAPE) and not isinstance(block.position, TensorTAPE)


def interventions(model: Model, decoder: Decoder, rows: Rows) -> Contexts:
    """What :data:`INTERVENTIONS` names, as far as the decoder has it: contexts in which the same
    weights compute something else. Means over tokens are those of ``rows``.
    """
    contexts: Contexts = {}
    for name, terms in RESETS.items():
        contexts[name] = partial(without, decoder, terms)
    if any(map(has_factors, decoder.blocks())):
        means = mean_factors(model, rows)
        for name in FACTORS:
            contexts[name] = partial(with_factors, decoder, name, means)
    return contexts


@contextmanager
def without(decoder: Decoder, terms: tuple[str, ...]) -> Iterator[None]:
    """Compute with the same weights as if those of the named ``terms`` were zero.

    ``attention``: P = 0, nothing that attention averages, or that accumulates over tokens, enters
    the state. ``feed_forward``: W2 = 0. No weight is touched.
    """
    resets: dict[str, Any] = {}
    if "attention" in terms:
        resets |= {"attention": False, "reflects": False}
    if "feed_forward" in terms:
        resets["feed_forward"] = False
    with ExitStack() as stack:
        for block, (name, value) in itertools.product(decoder.blocks(), resets.items()):
            stack.enter_context(patch.object(block.position, name, value, create=True))
        yield


@contextmanager
def with_factors(decoder: Decoder, name: str, means: Mapping[int, Tensor]) -> Iterator[None]:
    """Multiply queries and keys in every layer by E_1 c' in place of E_l = E_1 c:

    - ``gain``: c' = r, the positions of the first layer, scaled by the context;
    - ``turn``: c' = e^{iφ}, turned by the context and of their first size;
    - ``turn_mean_gain``: e^{iφ} times the mean of r over tokens;
    - ``static``: the mean of c over tokens, the same for every token of every text.

    The state that layers update and hand on is still E_l. ``means`` are of each layer, from 0.
    """
    initial: dict[int, Tensor] = {}

    def turning(block: Block) -> Callable[..., Rotated]:
        rotate = block.position.rotate

        def changed(q: Tensor, k: Tensor, x: Tensor, state: Tensor, places: Places) -> Rotated:
            E = complex_numbers(state)
            if block.is_first_of_kind:
                initial[block.kind] = E
            first = initial[block.kind]
            changed_E = first * FACTORS[name](E / first, means[block.layer])
            return rotate(q, k, x, torch.view_as_real(changed_E).movedim(-1, -2), places)

        return changed

    with ExitStack() as stack:
        for block in filter(has_factors, decoder.blocks()):
            stack.enter_context(patch.object(block.position, "rotate", turning(block)))
        yield


def mean_factor(log_r: Tensor, directions: Tensor) -> Tensor:
    """The mean of c over tokens from those of log r and e^{iφ}: their geometric mean in size, and
    the direction of the mean of their directions.
    """
    return log_r.exp() * directions.sgn()


@torch.no_grad()
def mean_factors(model: Model, rows: Rows) -> dict[int, Tensor]:
    """The mean of c over all tokens of ``rows``, by layer, from 0: (H, M), with 1 for H where all
    heads agree.
    """
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    count = 0
    for tokens, counts in rows:
        count += int(counts.sum())
        for layer, c_NHM in factors(model, tokens, counts).items():
            log_r, direction = sums.get(layer, (0, 0))
            sums[layer] = log_r + logarithm(c_NHM).sum(0), direction + c_NHM.sgn().sum(0)
    return {layer: mean_factor(a / count, b / count) for layer, (a, b) in sums.items()}


def factors(model: Model, tokens: Tensor, counts: Tensor) -> dict[int, Tensor]:
    """c of each layer, from 0, as its attention sees it: (N, H, M), of the N tokens that count."""
    initial: dict[int, Tensor] = {}
    by_layer = {}

    def watch(block: Block, scores: Scores, state: Tensor) -> None:
        if not has_factors(block):
            return
        E = complex_numbers(state).expand(len(tokens), -1, -1, -1)[counts.to(state.device)]
        by_layer[block.layer] = E / initial.setdefault(block.kind, E)

    model(tokens, watch=watch, output=LastLogits(), sampler=RowSampler(0, "attention maps"))
    return by_layer


@torch.no_grad()
def factor_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """How far gain and turn of TAPE's state differ from token to token; nothing of others.

    ``state/log_gain@<layer>``: how far log r is from its mean over tokens, the mean over tokens,
    heads and blocks; ``state/phase@<layer>``: the same for φ, in radians, on the circle. A mean
    over tokens is taken off since a common r is a temperature, and a common φ cancels in q·k.
    ``state/log_gain_by_block@<m>`` and ``state/phase_by_block@<m>`` are of the last layer, by
    block, from the fastest frequency, 1, to the slowest. ``counts`` is as in :func:`state_metrics`.
    """
    metrics: dict[str, float] = {}
    by_layer = factors(model, tokens, counts)
    for layer, c_NHM in by_layer.items():
        log_r = logarithm(c_NHM)
        direction = c_NHM.sgn()
        apart = {
            "log_gain": log_r - log_r.mean(0),
            "phase": (direction * direction.mean(0).sgn().conj()).angle(),
        }
        for name, deviation_NHM in apart.items():
            metrics[f"state/{name}@{layer + 1}"] = float(deviation_NHM.abs().mean())
            if layer == max(by_layer):
                by_block = deviation_NHM.abs().mean((0, 1))
                numbers = enumerate(by_block.tolist(), 1)
                metrics |= {f"state/{name}_by_block@{m}": value for m, value in numbers}
    return metrics


def state_names(arch: Arch) -> list[str]:
    """What :func:`state_metrics` calls its numbers."""
    return _by_number(("size", "turn"), arch.layers)


def factor_names(arch: Arch) -> list[str]:
    """What :func:`factor_metrics` calls its numbers."""
    by_block = _by_number(("log_gain_by_block", "phase_by_block"), arch.head_dim // 2)
    return _by_number(("log_gain", "phase"), arch.layers) + by_block


def _by_number(kinds: Sequence[str], count: int) -> list[str]:
    """``state/size@1``, ``state/size@2``, …"""
    numbers = range(1, count + 1)
    return [f"state/{kind}@{number}" for kind, number in itertools.product(kinds, numbers)]


def complex_numbers(state: Tensor) -> Tensor:
    """E as complex numbers, (B, T, H, M)."""
    return torch.complex(*state.unbind(-2))


def logarithm(c: Tensor) -> Tensor:
    """log r, finite where r is 0."""
    return c.abs().clamp(min=torch.finfo(c.real.dtype).tiny).log()


@torch.no_grad()
def state_metrics(model: Model, tokens: Tensor, counts: Tensor) -> dict[str, float]:
    """What each layer's attention sees of the state of TAPE, next to what the first layer of its
    kind sees; nothing of layers of other kinds.

    ``state/size@<layer>``: the mean norm of a block of E, over that of the first layer.
    ``state/turn@<layer>``: the mean angle between a block of E and that of the first layer, in
    radians: where a block is one complex number, by how much its phase has changed. RoPE would have
    1 and 0. ``counts`` says which of the tokens, (B, T), are no padding.
    """
    first: dict[int, Tensor] = {}
    metrics = {}

    def watch(block: Block, scores: Scores, state: Tensor | None) -> None:
        if not isinstance(block.position, TAPE):
            return
        matrices = rotation_matrices(block.position, state)
        assert matrices is not None
        B, H, T, _ = scores.q.shape
        E = matrices[0].expand(B, T, H, -1, -1, -1).flatten(4).double()
        E = E[counts.to(E.device)]
        initial = first.setdefault(block.kind, E)
        size = E.norm(dim=-1).mean() / initial.norm(dim=-1).mean()
        metrics[f"state/size@{block.layer + 1}"] = float(size)
        metrics[f"state/turn@{block.layer + 1}"] = float(angle(E, initial).mean())

    model(tokens, watch=watch, output=LastLogits(), sampler=RowSampler(0, "attention maps"))
    return metrics


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between vectors, exactly 0 where they agree, which an arc cosine is not."""
    a, b = (torch.nn.functional.normalize(x, dim=-1) for x in (a, b))
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))
