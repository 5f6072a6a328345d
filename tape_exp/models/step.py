"""A training step of a small decoder, to be timed."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import Kinds
from tape_exp.settings.schema import Arch


def step_case(
    arch: Arch,
    make: Kinds,
    batch: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    backend: str = "auto",
    compiled: bool = False,
    updates_last: bool = False,
) -> Callable[[], None]:
    """A whole training step as a case of
    :func:`~tape_exp.models.timing.round_robin`: forward, loss, backward, clipping, fused AdamW.

    Args:
        arch: sizes of the decoder.
        make: its positional encoding, or the kinds of its layers.
        batch, length: rows and tokens of the input.
        dtype: of the autocast; fp32: none.
        device: where it runs.
        backend: of attention.
        compiled: by torch.compile, the model and the loss, as ``trainer.compile`` does.
        updates_last: whether the last layer also updates the position state, which nobody reads.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(arch.vocab, (batch, length + 1), generator=generator).to(device)
    model = Decoder(arch, make, backend=backend).to(device)
    model.blocks()[-1].updates_state = updates_last
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    loss = cross_entropy
    if compiled:
        model.compile()
        loss = torch.compile(cross_entropy)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = model(tokens[:, :-1], sampler=RowSampler(0))
        loss(logits, tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean of -log softmax at the labels, in fp32."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten())
