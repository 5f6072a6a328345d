"""What cached decoding keeps of every layer: keys, values and the position state of all tokens, and
what the encoding itself needs of them.

Shape suffixes: B batch, T new tokens, S cached tokens with the new ones, H heads, D head dimension,
C carried width.
"""

from collections import defaultdict

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler


class Cache:
    """Keys and their biases, values and carried states of up to ``capacity`` tokens a row, in
    buffers that are filled from the left; and ``past``, what a layer's encoding reads and leaves in
    ``features`` and ``accumulated``, which does not grow with the tokens.

    Rows may begin with padding: the first ``padding_B[b]`` tokens of row b are hidden from its
    queries, and its positions count from the first real token. Positions are fixed when the cache
    is made, so that an encoding that samples them (RandPE) sees the same ones at every step. Ids
    that depend on the tokens (abacus, coupling) are made of all tokens so far, with the same
    ``sampler`` at every step.

    Args:
        positions_BS: positions of all tokens that the rows may hold, (1 or B, capacity).
        padding_B: padding of each row; None where there is none.
        sampler: for encodings that sample ids.
    """

    def __init__(
        self,
        positions_BS: Tensor,
        padding_B: Tensor | None = None,
        sampler: RowSampler | None = None,
    ) -> None:
        self.positions_BS = positions_BS
        self.capacity = positions_BS.shape[1]
        self.padding_B = padding_B
        self.sampler = sampler
        self.length = 0  # tokens of finished forward passes
        self.past: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)  # of each layer
        self._buffers: list[dict[str, Tensor]] = []
        self._tokens_BS: Tensor | None = None

    def next_positions(self, T: int) -> Tensor:
        """Positions of the next T tokens. Raises ValueError where they do not fit."""
        if self.length + T > self.capacity:
            raise ValueError(f"{self.length + T} tokens do not fit in a cache of {self.capacity}.")
        return self.positions_BS[:, self.length : self.length + T]

    def read(self, tokens_BT: Tensor) -> Tensor:
        """Append the next tokens and return all so far, (B, S), -1 where they are padding."""
        B, T = tokens_BT.shape
        end = self.length + T
        if self._tokens_BS is None:
            self._tokens_BS = tokens_BT.new_empty(B, self.capacity)
        if (real_BT := self.real(T)) is not None:
            tokens_BT = tokens_BT.masked_fill(~real_BT, -1)
        self._tokens_BS[:, self.length : end] = tokens_BT
        return self._tokens_BS[:, :end]

    def extend(self, layer: int, new: dict[str, Tensor]) -> dict[str, Tensor]:
        """Append a layer's new tensors (B or 1, T, H or 1, …) and return all so far, (…, S, …)."""
        T = next(iter(new.values())).shape[1]
        end = self.length + T
        if layer == len(self._buffers):
            self._buffers.append(
                {k: x.new_empty(x.shape[0], self.capacity, *x.shape[2:]) for k, x in new.items()}
            )
        for key, tensor in new.items():
            self._buffers[layer][key][:, self.length : end] = tensor
        return {key: buffer[:, :end] for key, buffer in self._buffers[layer].items()}

    def real(self, T: int) -> Tensor | None:
        """(B, T): which of the next T tokens are no padding; None where no row has any."""
        if self.padding_B is None:
            return None
        places = torch.arange(self.length, self.length + T, device=self.padding_B.device)
        return places >= self.padding_B[:, None]
