"""Batched generation, greedy or sampled; each row stops at its own EOS. And its cache: keys, values
and the position state of all tokens, of every layer.

Shape suffixes: B batch, T new tokens, S cached tokens with the new ones, V vocabulary.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tape_exp.machine.processes import sum_over_processes
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.head import LastLogits

if TYPE_CHECKING:
    from tape_exp.models.decoder import Decoder


ASKED_EVERY = 8  # tokens, whether any row still runs, on a GPU


class Cache:
    """Up to ``capacity`` tokens a row and what layers keep of them, in buffers that are filled from
    the left.

    Rows may begin with padding, which is hidden from their queries; positions, (1 or B, capacity),
    count from the first real token. They are fixed when the cache is made: random ones are the same
    at all steps. The buffers for keys and values of so many layers that are ``alike`` are made at
    once: one by one, between what layers compute, they would leave gaps in memory.
    """

    is_compileable = False  # which ``generate`` of transformers asks

    def __init__(
        self,
        positions_BS: Tensor,
        padding_B: Tensor | None,
        sampler: RowSampler | None,
        alike: int = 1,
    ) -> None:
        self.positions_BS = positions_BS
        self.padding_B = padding_B
        self.sampler = sampler
        self.alike = alike
        self.capacity = positions_BS.shape[1]
        self.length = 0  # tokens of finished forward passes
        self._buffers: dict[tuple[int, str], Tensor] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens in the cache, by the name that transformers has for it."""
        return self.length

    def append(self, tokens_BT: Tensor) -> Tensor:
        """Append the next tokens and return all so far, (B, S)."""
        end = self.length + tokens_BT.shape[1]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit in a cache of {self.capacity}.")
        return self.extend(-1, {"tokens": tokens_BT})["tokens"]

    def extend(self, layer: int, new: dict[str, Tensor]) -> dict[str, Tensor]:
        """Append a layer's new tensors (B or 1, T, …) and return all so far, (B or 1, S, …)."""
        tensors = {}
        for name, x in new.items():
            if (layer, name) not in self._buffers:
                self._make_buffers(layer, name, x)
            buffer = self._buffers[layer, name]
            end = self.length + x.shape[1]
            buffer[:, self.length : end] = x
            tensors[name] = buffer[:, :end]
        return tensors

    def _make_buffers(self, layer: int, name: str, x: Tensor) -> None:
        """Make empty buffers (B or 1, capacity, …) for this layer, and for keys and values also for
        those after it that are alike. The tokens of a head lie one after the other, as attention
        reads them. What is carried has another shape in the first layer, where all heads share it.
        """
        if x.ndim < 4:
            self._buffers[layer, name] = x.new_empty(x.shape[0], self.capacity, *x.shape[2:])
            return
        rows, _, heads, width = x.shape
        # Autograd takes what one layer writes into memory that another reads for a change of both.
        together = name in ("k", "v") and not torch.is_grad_enabled()
        count = max(self.alike - layer, 1) if together else 1
        made = x.new_empty(count, rows, heads, self.capacity, width)
        for number in range(count):
            self._buffers[layer + number, name] = made[number].transpose(1, 2)


def new_cache(
    decoder: "Decoder",
    capacity: int,
    padding_B: Tensor | None,
    rows: int,
    sampler: RowSampler | None = None,
) -> Cache:
    """Return an empty cache, with the positions that the decoder's encoding gives to each row."""
    device = decoder.head.weight.device
    positions_BS = decoder.positions(rows, capacity, device, sampler)
    if padding_B is not None:
        # Row b's first real token, at index padding_B[b], takes the first position; padding repeats
        # it, hidden anyway.
        index = (torch.arange(capacity, device=device) - padding_B[:, None]).clamp(min=0)
        positions_BS = positions_BS.expand(rows, -1).gather(1, index)
    alike = decoder.arch.layers if len(decoder.kinds) == 1 else 1
    return Cache(positions_BS, padding_B, sampler, alike)


@torch.inference_mode()
def generate(
    decoder: "Decoder",
    prompts: Sequence[Sequence[int] | Tensor],
    new_tokens: int,
    eos: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    sampler: RowSampler | None = None,
) -> list[list[int]]:
    """Continue each prompt by up to ``new_tokens`` tokens, without EOS and what would follow it.

    Args:
        eos: each stops its row; None lets all run on.
        temperature: 0 takes the most likely token; above, samples from softmax(logits /
            temperature) by ``generator``.
    """
    device = decoder.head.weight.device
    ends = torch.tensor([] if eos is None else eos, dtype=torch.long, device=device).flatten()
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    if not len(prompts) or int(lengths.min()) < 1:
        raise ValueError("generation needs at least one prompt, and no empty one.")
    longest = int(lengths.max())
    padding = longest - lengths
    rows = [torch.as_tensor(prompt, device=device) for prompt in prompts]
    tokens = pad_sequence(rows, batch_first=True, padding_side="left").long()
    hidden = padding if int(padding.max()) else None
    cache = new_cache(decoder, longest + new_tokens, hidden, len(prompts), sampler)
    written = decode(decoder, tokens, cache, new_tokens, ends, temperature, generator)
    if not written:
        return [[] for _ in prompts]
    stops = {*ends.tolist()}
    answers: list[list[int]] = torch.cat(written, 1).tolist()
    return [list(takewhile(lambda token: token not in stops, answer)) for answer in answers]


def decode(
    decoder: "Decoder",
    tokens_BT: Tensor,
    cache: Cache,
    new_tokens: int,
    ends: Tensor | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Return up to ``new_tokens`` tokens (B, 1) after those in the cache and ``tokens_BT``, until
    every row has one of ``ends``; on a GPU up to :data:`ASKED_EVERY` more, since asking waits for
    it.
    """
    from torch.distributed.fsdp import FSDPModule

    device = tokens_BT.device
    running = torch.ones(len(tokens_BT), dtype=torch.bool, device=device)
    interval = 1 if device.type == "cpu" else ASKED_EVERY
    written: list[Tensor] = []
    while len(written) < new_tokens:
        logits_BV = decoder(tokens_BT, cache=cache, output=LastLogits())[:, -1]
        if temperature == 0:
            tokens_BT = logits_BV.argmax(-1, keepdim=True)
        else:
            probabilities = (logits_BV.float() / temperature).softmax(-1)
            probabilities = probabilities.to(generator.device if generator else device)
            tokens_BT = torch.multinomial(probabilities, 1, generator=generator).to(device)
        written.append(tokens_BT)
        if ends is None or not len(ends):
            continue
        running &= ~torch.isin(tokens_BT[:, 0], ends)
        if len(written) % interval:
            continue
        going_on = running.any()
        if isinstance(decoder, FSDPModule):  # whose passes all processes make together
            going_on = sum_over_processes(going_on.int()) > 0
        if not going_on:
            break
    return written
