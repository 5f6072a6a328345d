"""What autograd keeps of a model for its backward pass, traced on tensors without storage.

A model computes short rows of two batches as it would on a GPU, with fused kernels where they
serve, and every storage that is kept is counted once, under the block that keeps it first. What is
kept is a polynomial of the rows and the length of a batch: shared by all rows or of each, for each
token or for each pair of tokens.
"""

import copy
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import attention
from tape_exp.models.attention.inputs import Inputs, OnDemand
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels.causal import WIDEST
from tape_exp.models.positions.rope import RoPE

UNIT = 128  # tokens, of which encodings take blocks
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Bytes:
    """Of one block: for each token of each row, and for each pair of tokens of each row; and the
    same of what all rows share.
    """

    token: float = 0
    pair: float = 0
    shared_token: float = 0
    shared_pair: float = 0

    def of(self, rows: int, length: int) -> float:
        """Of what grows with the length."""
        return (rows * self.token + self.shared_token) * length

    def of_pairs(self, rows: int, queries: int, length: int) -> float:
        """Of what grows with its square; of so many queries with all keys."""
        return (rows * self.pair + self.shared_pair) * queries * length


@dataclass(frozen=True)
class Kept:
    """Of a whole model.

    Args:
        blocks: what each keeps; last what the model keeps after them.
        inputs: what each gets, and nothing else keeps.
    """

    blocks: list[Bytes]
    inputs: list[Bytes]


def kept(decoder: Decoder, precision: str, length: int) -> Kept:
    """What a decoder, which may be on the meta device, keeps in a precision of the trainer.

    Args:
        length: of the rows. The polynomial of shorter ones is that of ``length`` too, but for what
            a block keeps that makes a bias for some queries at a time only of longer rows; of pairs
            it is then what these blocks make, and do not keep.
    """
    model = copy.deepcopy(decoder)
    alike = shorten(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        make_fake(model, precision)
        found = fitted(model, precision, lengths_of(decoder, 2))
        if in_blocks(decoder, length):
            first = next(n for n in itertools.count(2) if in_blocks(decoder, n * UNIT))
            lengths = lengths_of(decoder, first)[:2]
            both = zip(*(traced(model, precision, 1, n)[0] for n in lengths), strict=True)
            tokens = [(more - fewer) / (lengths[1] - lengths[0]) for fewer, more in both]
            blocks = [
                replace(each, token=token, shared_token=0)
                for each, token in zip(found.blocks, tokens, strict=True)
            ]
            found = Kept(blocks, found.inputs)
    blocks = [found.blocks[n] for n in alike]
    return Kept([*blocks, found.blocks[-1]], [found.inputs[n] for n in alike])


def shorten(model: Decoder) -> list[int]:
    """Leave only the first three and the last layer where all between first and last are alike.
    The second is no example of those after it: its state is that of the first, which rows share.

    Returns:
        For each layer the number of the one that stands for it.
    """
    first, *middle, last = blocks = model.blocks()
    alike = {
        tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in block.named_parameters())
        for block in middle
    }
    if len(model.kinds) > 1 or len(middle) < 3 or len(alike) > 1:
        return list(range(len(blocks)))
    model.layers = nn.ModuleList([first, *middle[:2], last])
    return [0, 1, *(2 for _ in middle[1:]), 3]


def queries_at_once(block: Block, length: int) -> int:
    """For how many of a row's queries at a time a layer computes its bias; all of them where it
    keeps what it computed until the backward pass.
    """
    in_blocks = block.backend in ("auto", "sdpa") and block.ssmax is None
    return block.position.rows_at_once(length) if in_blocks else length


def in_blocks(decoder: Decoder, length: int) -> bool:
    """Whether any layer does so."""
    return any(queries_at_once(block, length) < length for block in decoder.blocks())


def lengths_of(decoder: Decoder, first: int) -> list[int]:
    """Three lengths from ``first`` units on that are equally far apart, within the reach."""
    unit = UNIT if decoder.reach is None else min(UNIT, max(decoder.reach // 4, 1))
    return [n * unit for n in range(first, first + 3)]


def fitted(model: Decoder, precision: str, lengths: list[int]) -> Kept:
    """The polynomials of a model without storage."""
    found = {(rows, n): traced(model, precision, rows, n) for rows in (1, 2) for n in lengths}
    own, inputs = (
        [through({size: counts[part][number] for size, counts in found.items()}, lengths)
         for number in range(len(model.blocks()) + 1 - part)]
        for part in (0, 1)
    )  # fmt: skip
    return Kept(own, inputs)


def make_fake(model: Decoder, precision: str) -> None:
    """Give a model tensors of a CPU without storage, and blocks that attend by :func:`attend`."""
    made: dict[int, Tensor] = {}  # matrices may be tied
    for module in model.modules():
        owned: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in owned:
            for name, x in tensors.items():
                if x is None:
                    continue
                half = precision == "bf16-true" and x.is_floating_point()
                empty = torch.empty(x.shape, dtype=torch.bfloat16 if half else x.dtype)
                if isinstance(x, nn.Parameter):
                    empty = nn.Parameter(empty, requires_grad=x.requires_grad)
                tensors[name] = made.setdefault(id(x), empty)
    model.recompute = False
    for block in model.blocks():
        if block.attend is None:
            block.attend = attend
    model.train()


class Count(TorchDispatchMode):
    """Bytes by block, of storages that were not met before and are no copies of a parameter."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        # By address: a storage that is held has its address to itself.
        self.own = {p.untyped_storage()._cdata: p.untyped_storage() for p in model.parameters()}
        self.seen: dict[int, torch.UntypedStorage] = {}
        self.bytes = [0] * (len(model.blocks()) + 1)

    def add(self, block: int, x: Tensor) -> Tensor:
        """Count a tensor's storage."""
        storage = x.untyped_storage()
        if storage._cdata not in self.seen and storage._cdata not in self.own:
            self.seen[storage._cdata] = storage
            self.bytes[block] += storage.nbytes()
        return x

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        copies = func is torch.ops.aten._to_copy.default  # as autocast does
        if copies and args[0].untyped_storage()._cdata in self.own:
            self.own[out.untyped_storage()._cdata] = out.untyped_storage()
        return out


def traced(model: Decoder, precision: str, rows: int, length: int) -> tuple[list[int], list[int]]:
    """Bytes that each block and what follows keep, and bytes of each block's inputs."""
    blocks = model.blocks()
    saved, given = Count(model), Count(model)
    place = 0

    def enter(number: int, _: nn.Module, arguments: Any) -> None:
        nonlocal place
        place = number
        for x in tree_leaves(arguments[:2]):
            if isinstance(x, Tensor):
                given.add(number, x)

    def leave(number: int, *_: Any) -> None:
        nonlocal place
        place = number + 1

    autocast = AUTOCAST.get(precision)
    with ExitStack() as stack:
        for number, block in enumerate(blocks):
            for handle in (
                block.register_forward_pre_hook(partial(enter, number)),
                block.register_forward_hook(partial(leave, number)),
            ):
                stack.callback(handle.remove)
        stack.enter_context(fused_positions())
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(lambda x: saved.add(place, x), lambda x: x)
        )
        stack.enter_context(torch.autocast("cpu", autocast) if autocast else nullcontext())
        stack.enter_context(saved)
        model(torch.zeros(rows, length, dtype=torch.long), sampler=RowSampler(0))
    return saved.bytes, given.bytes[:-1]


@contextmanager
def fused_positions() -> Iterator[None]:
    """Rotation and update by fused kernels, as on a GPU."""
    with patch.object(RoPE, "fuses", lambda self, *_: self.fused):
        yield


def through(values: dict[tuple[int, int], int], lengths: list[int]) -> Bytes:
    """The polynomial through the bytes by (rows, length), without what does not grow."""
    unit = lengths[1] - lengths[0]
    by_rows = []
    for rows in (1, 2):
        first, second, third = (values[rows, n] for n in lengths)
        pair = (third - 2 * second + first) / (2 * unit**2)
        by_rows.append(((second - first) / unit - pair * (lengths[0] + lengths[1]), pair))
    (one, pair), (two, pairs) = by_rows
    return Bytes(two - one, pairs - pair, 2 * one - two, 2 * pair - pairs)


def attend(
    q_BTHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    *,
    backend: str = "auto",
    carried: Tensor | None = None,
    window: Any = None,
    scale: Tensor | None = None,
    **biases: Any,
) -> tuple[Tensor, Tensor | None]:
    """What fused attention on a GPU keeps, instead of :func:`tape_exp.models.attention.attend`:
    what it reads and gives, and each bias in the form in which it reads it.
    """
    names = ("bias", "by_distance", "slopes", "key_bias")
    bias, by_distance, slopes, key_bias = (biases.get(name) for name in names)
    if isinstance(bias, OnDemand) and bias.rows is not None and scale is None:
        words = {"bias": bias, "key_bias": key_bias, "carried": carried, "window": window}
        return attention.attend(q_BTHD, k_BSKD, v_BSKD, backend="sdpa", **words)
    half = q_BTHD.dtype != torch.float32
    ours = half and backend in ("auto", "triton") and window is None and q_BTHD.shape[-1] <= WIDEST
    flexible = (half and backend in ("auto", "triton", "flex")) or (backend == "flash" and slopes)
    carried = None if carried is None else carried.to(v_BSKD.dtype)
    read: list[Tensor | None] = []
    dense = scale is not None
    if isinstance(bias, OnDemand):
        if backend == "fla" and bias.path is not None:
            read += bias.path
        elif ours and not dense and (pieces := bias.piecewise()) is not None:
            read += pieces
        else:
            dense = True
    dense = dense or isinstance(bias, Tensor)
    if not flexible and (by_distance is not None or key_bias is not None):
        dense = True
    if dense:
        q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BSKD, v_BSKD))
        lazy = bias if isinstance(bias, OnDemand) else None
        given = None if isinstance(bias, OnDemand) else bias
        keys = None if key_bias is None else key_bias.transpose(1, 2)
        inputs = Inputs(q, k, v, None, given, by_distance, slopes, None, lazy, keys)
        if scale is not None:
            inputs = inputs.scaled(scale.transpose(1, 2))
            q_BTHD = inputs.q.transpose(1, 2)
        if (whole := inputs.with_pairs().dense_bias()) is not None:
            hidden = torch.where(inputs.mask(), whole.to(q_BTHD.dtype), float("-inf"))
            read.append(hidden)
    else:
        read += [by_distance, key_bias]
    out, averaged = Fused.apply(q_BTHD, k_BSKD, v_BSKD, carried, *read)
    return out, averaged


class Fused(torch.autograd.Function):
    """Attention without storage, which keeps what a fused kernel's backward pass reads."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, carried: Tensor | None, *biases: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The values and what is carried, of query heads."""
        B, T, H = q.shape[:3]
        out = v.new_empty(B, T, H, v.shape[-1])
        averaged = None if carried is None else v.new_empty(B, T, H, carried.shape[-1])
        log_sums = q.new_empty(B, H, T, dtype=torch.float32)
        ctx.save_for_backward(q, k, v, carried, *biases, out, averaged, log_sums)
        return out, averaged

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Nothing is differentiated."""
        raise NotImplementedError
