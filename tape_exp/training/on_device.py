"""A decoder as tasks call it: they make tokens anywhere, and it computes on its device."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.machine.hardware import to_device_async
from tape_exp.models.decoder import Decoder

MULTIPLE = 16  # of tokens, on a GPU


@dataclass(frozen=True)
class OnDevice:
    """A decoder as ``Task.evaluate`` calls it: tokens and labels may be on any device.

    Lengths become multiples of ``multiple`` (None: :data:`MULTIPLE` on a GPU, whose kernels are
    planned anew for each length), by tokens at the end that no other token sees. A row keeps its
    length where positions are sampled or scaled by it, where it would be longer than a table of
    positions, and where it is scored place by place.
    """

    decoder: Decoder
    device: torch.device
    multiple: int | None = None

    def __call__(self, tokens: Tensor, **options: Any) -> Tensor:
        """Call the decoder on the device, and return what it returns."""
        for name, value in options.items():
            if isinstance(value, Tensor):
                options[name] = to_device_async(value, self.device)
        decoder = self.decoder
        tokens = to_device_async(tokens, self.device)
        length = tokens.shape[1]
        multiple = self.multiple or (MULTIPLE if self.device.type == "cuda" else 1)
        padding = -length % multiple
        too_long = decoder.reach is not None and length + padding > decoder.reach
        by_length = decoder.reads_length or decoder.random is not None
        scored = bool(options.keys() - {"sampler"})
        if padding == 0 or too_long or by_length or scored:
            return decoder(tokens, **options)
        return decoder(F.pad(tokens, (0, padding)), **options)[:, :length]
