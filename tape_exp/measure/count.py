"""What a layer's training step computes and moves, operation by operation: ``python -m
tape_exp.measure.count``.

Nothing is computed: tensors are fake, and every operation that PyTorch would launch is counted with
its floating-point operations and the bytes that it reads and writes. A middle layer is what a model
of three layers has more than one of two. Attention, rotation, TAPE's maps and its update are taken
to be fused kernels. The times are bounds: they follow from the data sheet of a GPU and no kernel
reaches them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tape_exp.drawing.markdown import aligned
from tape_exp.machine.hardware import PEAK_FLOPS
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.encodings import ENCODINGS
from tape_exp.models import attention
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels import causal, maps, runtime
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.commands import command
from tape_exp.settings.schema import Arch

WIDTH, HEADS, INNER = 768, 12, 3072  # of the 155 M model
BATCH, LENGTH, VOCABULARY = 16, 1024, 32_000
COUNTED = ("nope", "rope", "tape")
GPU, BANDWIDTH = "H100", 3.35e12  # bytes a second
PHASES = ("forward", "backward")
PRECISE = 3  # products in bf16 to one of fp32 numbers beside 16-bit ones
# They launch nothing: they name, describe or make room.
FREE = ("aten.detach", "aten.empty", "aten.empty_like", "aten.new_empty", "aten._unsafe_view")


@dataclass
class Kind:
    """Sums over operations of a kind."""

    launches: int = 0
    bytes: int = 0
    flops: int = 0

    def __sub__(self, other: "Kind") -> "Kind":
        return Kind(
            self.launches - other.launches, self.bytes - other.bytes, self.flops - other.flops
        )


@dataclass
class Counts:
    """The operations of a phase: matrix products, attention, and all others."""

    products: Kind = field(default_factory=Kind)
    attention: Kind = field(default_factory=Kind)
    others: Kind = field(default_factory=Kind)

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.products - other.products,
            self.attention - other.attention,
            self.others - other.others,
        )

    @property
    def launches(self) -> int:
        """Of all kinds."""
        return self.products.launches + self.attention.launches + self.others.launches

    def of(self, operator: Any) -> Kind:
        """The kind that an operator belongs to, of whatever overload."""
        if operator in flop_registry:
            return self.products
        if str(operator).startswith("tape_exp.fused_attention"):
            return self.attention
        return self.others


class Counter(TorchDispatchMode):
    """Counts what runs below it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet, returned = func._overloadpacket, func._schema.returns
        is_view = any(x.alias_info is not None and not x.alias_info.is_write for x in returned)
        if is_view or str(packet) in FREE or str(packet).startswith("prim."):
            return out
        kind = self.counts.of(packet)
        if packet in flop_registry:
            kind.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        if str(packet) in OWN_FLOPS:
            kind.flops += PRECISE * OWN_FLOPS[str(packet)](*args)
        kind.launches += 1
        tensors = {id(x): x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)}
        kind.bytes += sum(map(moved, tensors.values()))
        return out


def maps_flops(x: Tensor, wx: Tensor, v: Tensor, *others: Any) -> int:
    """Of TAPE's maps or of their gradient: the numbers of a token times each unit of ψ, padded."""
    (inner, width), columns = wx.shape, v.shape[-1]
    return 2 * _tokens(x) * runtime.padded(inner) * (_tiled(width) + _tiled(columns))


def weights_flops(left: Tensor, right: Tensor, *others: Any) -> int:
    """Of the gradients of the maps' weights: a product of what both bring for every token."""
    return 2 * _tokens(left) * runtime.padded(left.shape[-1]) * _tiled(right.shape[-1])


def update_flops(E: Tensor, attended: Tensor | None, F: Tensor | None) -> int:
    """Of TAPE's update: P times Ẽ, and F times what comes of it, both padded."""
    heads, D = E.shape[2:]
    products = (attended is not None) + (F is not None)
    return 2 * _tokens(E) * runtime.padded(heads) ** 2 * D * products


def _tokens(x: Tensor) -> int:
    return x.shape[0] * x.shape[1]


def _tiled(columns: int) -> int:
    """Columns of a matrix as the programs of the maps multiply them."""
    return -(-columns // maps.WIDE) * maps.WIDE


# Of our own operators, from their arguments; the backward pass of the update makes both products
# again, and two gradients of each.
OWN_FLOPS: dict[str, Callable[..., int]] = {
    "tape_exp.maps": maps_flops,
    "tape_exp.maps_backward": maps_flops,
    "tape_exp.maps_weights": weights_flops,
    "tape_exp.update": lambda *x: update_flops(x[2], x[3], x[5]),
    "tape_exp.update_backward": lambda *x: 3 * update_flops(x[6], x[7], x[9]),
}


def moved(x: Tensor) -> int:
    """Bytes of a tensor; what is expanded is read once."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.count",
        description="Count the operations, bytes and launches of a layer's training step, and the "
        f"times below which an {GPU} cannot do them.",
    )
    parser.parse_args(arguments)
    print(
        f"A layer of width {WIDTH}, {BATCH} x {LENGTH} tokens, bf16 under autocast; bytes are a "
        "token's, per unit of width.\n"
    )
    head = ["", "launches", "products: GFLOP", "attention: GFLOP", "bytes", "others: bytes"]
    rows = [[*head, f"ms on an {GPU}, at least"]]
    for name in COUNTED:
        rows += [row(name, phase, counts) for phase, counts in layer(name).items()]
    print("\n".join(aligned(rows)))
    per_logit = loss_bytes() / (BATCH * LENGTH * VOCABULARY)
    print(f"\nThe loss, forward and backward: {per_logit:.0f} bytes a logit.")
    return 0


def row(name: str, phase: str, counts: Counts) -> list[str]:
    """The cells of a phase."""
    unit = BATCH * LENGTH * WIDTH
    flops = attention_flops(name, phase == "backward")
    computed = counts.products.flops + counts.others.flops + flops
    seconds = computed / PEAK_FLOPS[GPU] + counts.others.bytes / BANDWIDTH
    return [
        f"{name}, {phase}",
        str(counts.launches),
        f"{(counts.products.flops + counts.others.flops) / 1e9:.0f}",
        f"{flops / 1e9:.1f}",
        f"{counts.attention.bytes / unit:.0f}",
        f"{counts.others.bytes / unit:.0f}",
        f"{1e3 * seconds:.2f}",
    ]


def attention_flops(
    name: str, backward: bool, sizes: tuple[int, int, int, int] | None = None
) -> int:
    """Of causal attention: q kᵀ and p [v | E], and in one backward pass q kᵀ once more, dq, dk, dv
    and dE, dp, each half of T × T.

    Args:
        sizes: rows, T, width and that of a head; None: those that are counted here.
    """
    batch, T, width, d = sizes or (BATCH, LENGTH, WIDTH, WIDTH // HEADS)
    values = 2 * d if name == "tape" else d
    widths = 3 * d + 2 * values if backward else d + values
    return batch * width // d * T**2 * widths


def layer(name: str) -> dict[str, Counts]:
    """Phase -> the counts of a middle layer."""
    more, fewer = model(name, 3), model(name, 2)
    return {phase: more[phase] - fewer[phase] for phase in PHASES}


def model(name: str, layers: int) -> dict[str, Counts]:
    """Phase -> the counts of a small model's step; a logit has few words here."""
    decoder = small_model(name, layers)
    with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        with Counter() as forward, torch.autocast("cpu", torch.bfloat16):
            loss = decoder(tokens, sampler=RowSampler(0)).float().mean()
        with Counter() as backward:
            loss.backward()
    return {"forward": forward.counts, "backward": backward.counts}


@contextmanager
def stand_ins() -> Iterator[None]:
    """Fused kernels serve as on a GPU: attention by the backend ``counted``, rotation, update."""
    counted = {"counted": attention.Backend(one_kernel, lambda _: None)}
    with patch.dict(attention.BACKENDS, counted), patch.object(RoPE, "fuses", lambda *_: True):
        yield


def small_model(name: str, layers: int) -> Decoder:
    """A decoder of so many layers, for :func:`stand_ins`."""
    arch = Arch(layers, WIDTH, HEADS, INNER, vocab=16, max_length=LENGTH, train_length=LENGTH)
    return Decoder(arch, ENCODINGS[name], backend="counted")


def one_kernel(inputs: attention.Inputs) -> tuple[Tensor, Tensor | None]:
    """Our fused kernel, whose shapes are known without a GPU."""
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    carried = inputs.carried
    carried = None if carried is None else carried.to(v.dtype).transpose(1, 2)
    out, attended, _ = causal._attention(q, k, v, carried, None, None, [], q.shape[-1] ** -0.5)
    return out.transpose(1, 2), None if carried is None else attended.transpose(1, 2)


def loss_bytes() -> int:
    """Of the cross-entropy of bf16 logits, forward and backward."""
    with FakeTensorMode(), Counter() as counter:
        shape = (BATCH * LENGTH, VOCABULARY)
        logits = torch.empty(shape, dtype=torch.bfloat16).requires_grad_()
        labels = torch.empty(BATCH * LENGTH, dtype=torch.long)
        F.cross_entropy(logits.float(), labels).backward()
    return counter.counts.others.bytes


if __name__ == "__main__":
    sys.exit(main())
