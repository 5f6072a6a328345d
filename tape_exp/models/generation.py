"""Batched generation with a cache, greedy or sampled; each row stops at its own EOS."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tape_exp.machine.processes import sum_over_processes
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.cache import Cache
from tape_exp.models.decoder import Decoder


@torch.inference_mode()
def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int] | Tensor],
    new_tokens: int,
    eos: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    sampler: RowSampler | None = None,
) -> list[list[int]]:
    """Continue each prompt by up to ``new_tokens`` tokens, without EOS and what would follow it.

    Args:
        decoder: the model; its device is used.
        prompts: token ids, of any lengths above zero.
        new_tokens: the longest continuation.
        eos: each stops its row; None lets all run on.
        temperature: 0 takes the most likely token; above, samples from softmax(logits /
            temperature).
        generator: for sampling tokens.
        sampler: for encodings that sample positions.
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

    written: list[Tensor] = []
    running = torch.ones(len(prompts), dtype=torch.bool, device=device)
    for _ in range(new_tokens):
        logits_BV = decoder(tokens, cache=cache, last_only=True)[:, -1]
        tokens = _choose(logits_BV, temperature, generator)
        written.append(tokens)
        if len(ends):
            running &= ~torch.isin(tokens[:, 0], ends)
            going_on = running.any()
            if sharded(decoder):
                going_on = sum_over_processes(going_on.int()) > 0
            if not going_on:
                break
    found: list[list[int]] = torch.cat(written, 1).tolist() if written else [[] for _ in prompts]
    stops = {*ends.tolist()}
    return [[*takewhile(lambda token: token not in stops, row)] for row in found]


def sharded(decoder: Decoder) -> bool:
    """Whether every process must make each pass of the others too, to gather the weights."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(decoder, FSDPModule)


def new_cache(
    decoder: Decoder,
    capacity: int,
    padding_B: Tensor | None,
    rows: int,
    sampler: RowSampler | None = None,
) -> Cache:
    """An empty cache, with the positions that the decoder's encoding gives to each row."""
    device = decoder.head.weight.device
    positions_BS = decoder.positions(rows, capacity, device, sampler)
    if padding_B is not None:
        # Row b's first real token, at index padding_B[b], takes the first position; padding repeats
        # it, hidden anyway.
        index = (torch.arange(capacity, device=device) - padding_B[:, None]).clamp(min=0)
        positions_BS = positions_BS.expand(rows, -1).gather(1, index)
    return Cache(positions_BS, padding_B, sampler)


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """The next token of every row: (B, 1)."""
    if temperature == 0:
        return logits_BV.argmax(-1, keepdim=True)
    device = generator.device if generator else logits_BV.device
    probabilities = (logits_BV.float() / temperature).softmax(-1).to(device)
    return torch.multinomial(probabilities, 1, generator=generator).to(logits_BV.device)
