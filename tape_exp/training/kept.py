"""What autograd keeps of a model for its backward pass, traced on tensors without storage.

A model computes as it would on a GPU, with fused kernels where they serve, and every storage that
is kept is counted once, under the block that keeps it first.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import attention, peft
from tape_exp.models.attention.inputs import Inputs, OnDemand
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels import runtime
from tape_exp.models.kernels.causal import WIDEST
from tape_exp.models.positions.rope import RoPE

UNIT = 128  # tokens, of which encodings take blocks


@dataclass(frozen=True)
class Kept:
    """Bytes of each block in a pass of some rows.

    Args:
        blocks: what it keeps; last what the model keeps after all of them.
        pairs: what of this is of pairs of tokens.
        passing: of pairs of tokens that it makes for some queries at a time, again in the backward
            pass, and does not keep: of these queries, with the gradients.
        inputs: what it gets, and no block before it.
    """

    blocks: list[float]
    pairs: list[float]
    passing: list[float]
    inputs: list[float]


def kept(decoder: Decoder, precision: str, rows: int, length: int) -> Kept:
    """What a decoder, which may be on the meta device, keeps of so many rows and tokens, in a
    precision of the trainer.

    What doubles with the length is of tokens, what quadruples of pairs.
    """
    model = copy.deepcopy(decoder)
    alike = shorten(model)
    blocks, sparse = model.blocks(), any(block.attend for block in model.blocks())
    at_once = [queries_at_once(block, length) for block in blocks]
    with FakeTensorMode(allow_non_fake_inputs=True):
        make_fake(model, precision)
        whole = length
        while any(queries_at_once(block, whole) < whole for block in blocks):
            whole //= 2  # the longest, but for a factor of two, of which all pairs are kept
        own, inputs = traced(model, precision, rows, whole)
        half = whole // 2
        less = own if sparse or not half else traced(model, precision, rows, half)[0]
        scale = length / whole
        each = [
            max(more / whole - fewer / half, 0) / (whole - half) * whole * length if half else 0.0
            for more, fewer in zip(own[:-1], less, strict=False)
        ]  # of ``whole`` queries and ``length`` keys; none where attention is within groups
        if whole < length:
            own = lengthened(model, precision, rows, length, 2 * whole)
            inputs = [round(scale * given) for given in inputs]
    pairs = [0.0 if n < length else size for n, size in zip(at_once, each, strict=True)]
    passing = [2 * size * n / whole if n < length else 0.0
               for n, size in zip(at_once, each, strict=True)]  # fmt: skip
    return Kept(
        [*(own[n] for n in alike), own[-1]],
        [pairs[n] for n in alike],
        [passing[n] for n in alike],
        [inputs[n] for n in alike],
    )


def lengthened(model: Decoder, precision: str, rows: int, length: int, reach: int) -> list[int]:
    """What is kept of rows that are taken some queries at a time, from two that are short.

    Args:
        reach: a length of which none is taken whole.
    """
    if length <= reach + UNIT:
        return traced(model, precision, rows, length)[0]
    fewer, more = (traced(model, precision, rows, n)[0] for n in (reach, reach + UNIT))
    steps = (length - reach) / UNIT
    return [round(low + steps * (high - low)) for low, high in zip(fewer, more, strict=True)]


def shorten(model: Decoder) -> list[int]:
    """Leave only the first three and the last layer where all between first and last are alike.
    The second is no example of those after it: its state is that of the first, which rows share.

    Returns:
        For each layer the number of the one that stands for it.
    """
    blocks = model.blocks()
    middle = blocks[1:-1]
    alike = {
        tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in block.named_parameters())
        for block in middle
    }
    if len(model.kinds) > 1 or len(middle) < 3 or len(alike) > 1:
        return list(range(len(blocks)))
    model.layers = nn.ModuleList([blocks[0], *middle[:2], blocks[-1]])
    return [0, 1, *(2 for _ in middle[1:]), 3]


def queries_at_once(block: Block, length: int) -> int:
    """For how many of a row's queries at a time a layer computes its bias; all of them where it
    keeps what it computed until the backward pass.
    """
    in_blocks = block.backend in ("auto", "sdpa") and block.ssmax is None
    return block.position.rows_at_once(length) if in_blocks else length


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

    mixed = precision == "bf16-mixed"
    with ExitStack() as stack:
        for number, block in enumerate(blocks):
            for handle in (
                block.register_forward_pre_hook(partial(enter, number)),
                block.register_forward_hook(partial(leave, number)),
            ):
                stack.callback(handle.remove)
        stack.enter_context(as_on_a_gpu())
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(lambda x: saved.add(place, x), lambda x: x)
        )
        stack.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=mixed))
        stack.enter_context(saved)
        model(torch.zeros(rows, length, dtype=torch.long), sampler=RowSampler(0))
    return saved.bytes, given.bytes[:-1]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Rotation and update by the fused kernels where these take the shapes; sparse attention by
    :func:`attend`.
    """

    def fuses(self: RoPE, what: str, supports: Any, *tensors: Any) -> bool:
        return self.fused and supports(*tensors) is None

    with (
        patch.object(RoPE, "fuses", fuses),
        patch.object(runtime, "cannot_run", lambda _: None),
        patch.object(peft, "attend", attend),
    ):
        yield


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
    bias = biases.get("bias")
    by_rows = isinstance(bias, OnDemand) and bias.rows is not None and scale is None
    if by_rows and backend in ("auto", "sdpa"):
        words = {"carried": carried, "window": window, **biases}
        return attention.attend(q_BTHD, k_BSKD, v_BSKD, backend="sdpa", **words)
    carried = None if carried is None else carried.to(v_BSKD.dtype)
    read = None if scale is not None else read_as_they_are(q_BTHD, backend, window, **biases)
    if read is None:
        q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BSKD, v_BSKD))
        q, read = of_pairs(q, k, v, scale, **biases)
        q_BTHD = q.transpose(1, 2)
    out, averaged = Fused.apply(q_BTHD, k_BSKD, v_BSKD, carried, *read)
    return out, averaged


def read_as_they_are(
    q: Tensor,
    backend: str,
    window: Any,
    bias: Tensor | OnDemand | None = None,
    by_distance: Tensor | None = None,
    slopes: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> list[Tensor | None] | None:
    """The biases in the form in which a kernel adds them itself; None where none does."""
    half = q.dtype != torch.float32
    flexible = half and backend in ("auto", "triton", "flex", "fla")
    flexible = flexible or (backend == "flash" and slopes is not None)
    if not flexible and (by_distance is not None or key_bias is not None):
        return None
    if isinstance(bias, OnDemand):
        if backend == "fla" and bias.path is not None:
            return [*bias.path, key_bias]
        ours = half and backend in ("auto", "triton") and window is None and q.shape[-1] <= WIDEST
        pieces = bias.piecewise() if ours else None
        return None if pieces is None else [*pieces]
    return [by_distance, key_bias] if bias is None else None


def of_pairs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor | None,
    bias: Tensor | OnDemand | None = None,
    by_distance: Tensor | None = None,
    slopes: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """The scaled queries, and the biases as one tensor of all pairs with what is hidden, if any."""
    lazy = bias if isinstance(bias, OnDemand) else None
    given = None if isinstance(bias, OnDemand) else bias
    keys = None if key_bias is None else key_bias.transpose(1, 2)
    inputs = Inputs(q, k, v, None, given, by_distance, slopes, None, lazy, keys)
    if scale is not None:
        inputs = inputs.scaled(scale.transpose(1, 2))
    whole = inputs.with_pairs().dense_bias()
    if whole is None:
        return inputs.q, []
    return inputs.q, [torch.where(inputs.mask(), whole.to(q.dtype), float("-inf"))]


class Fused(torch.autograd.Function):
    """Attention without storage, which keeps what a fused kernel's backward pass reads, and has
    none itself.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, carried: Tensor | None, *biases: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The values and what is carried, of query heads: zeros, which a layer that reads them can
        count with where they have storage.
        """
        B, T, H = q.shape[:3]
        out = v.new_zeros(B, T, H, v.shape[-1])
        averaged = None if carried is None else v.new_zeros(B, T, H, carried.shape[-1])
        log_sums = q.new_empty(B, H, T, dtype=torch.float32)
        ctx.save_for_backward(q, k, v, carried, *biases, out, averaged, log_sums)
        return out, averaged
