"""What cached decoding keeps of every layer: keys, values and the position state of all tokens.

Shape suffixes: B batch, T new tokens, S cached tokens with the new ones.
"""

from torch import Tensor

from tape_exp.machine.seeding import RowSampler


class Cache:
    """Up to ``capacity`` tokens a row and what layers keep of them, in buffers that are filled from
    the left.

    Rows may begin with padding, which is hidden from their queries; positions count from the first
    real token. They are fixed when the cache is made: random ones are the same at all steps.

    Args:
        positions_BS: of all tokens that the rows may hold, (1 or B, capacity).
        padding_B: tokens of padding that each row begins with; None: none.
        sampler: for encodings that draw.
    """

    is_compileable = False  # which ``generate`` of transformers asks

    def __init__(
        self,
        positions_BS: Tensor,
        padding_B: Tensor | None = None,
        sampler: RowSampler | None = None,
    ) -> None:
        self.positions_BS, self.padding_B, self.sampler = positions_BS, padding_B, sampler
        self.capacity = positions_BS.shape[1]
        self.length = 0  # tokens of finished forward passes
        self._buffers: dict[tuple[int, str], Tensor] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens in the cache, by the name that transformers has for it."""
        return self.length

    def append(self, tokens_BT: Tensor) -> Tensor:
        """Append the next tokens and return all so far, (B, S).

        Raises:
            ValueError: they do not fit.
        """
        if (end := self.length + tokens_BT.shape[1]) > self.capacity:
            raise ValueError(f"{end} tokens do not fit in a cache of {self.capacity}.")
        return self.extend(-1, {"tokens": tokens_BT})["tokens"]

    def extend(self, layer: int, new: dict[str, Tensor]) -> dict[str, Tensor]:
        """Append a layer's new tensors (B or 1, T, …) and return all so far, (B or 1, S, …)."""
        found = {}
        for name, x in new.items():
            if (buffer := self._buffers.get((layer, name))) is None:
                buffer = x.new_empty(x.shape[0], self.capacity, *x.shape[2:])
                self._buffers[layer, name] = buffer
            end = self.length + x.shape[1]
            buffer[:, self.length : end] = x
            found[name] = buffer[:, :end]
        return found
