"""Rows in batches, padded, cached and at any positions, beside each row alone.

Each docstring of a situation is one line of the table in the docs.
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance.oracle import (
    FP32,
    Outcome,
    alone,
    apart,
    gap,
    one_row_each,
    random_decoder,
    require,
    rows,
)
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import Cache, new_cache
from tape_exp.models.sections import ARCH, LONG, LONG_ARCH, Model, with_keys

ROWS_OF_LENGTH = (LONG, 67, 3)


@torch.no_grad()
def whole_rows(model: Model) -> Outcome:
    """Rows in a batch, by each backend of a CPU; later tokens and other rows change nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without")  # slow on a CPU
        backends = ("auto", "explicit", "sdpa", "flex")
        outcomes = [_by_backend(model, backend) for backend in backends]
    return max(outcomes, key=lambda outcome: outcome.difference or 0)


def _by_backend(model: Model, backend: str) -> Outcome:
    """Compare rows in a batch with each alone; change later tokens and compare the earlier ones."""
    decoder = random_decoder(model, LONG_ARCH, backend=backend).eval()
    tokens, positions = one_row_each(decoder)
    logits = decoder(tokens, sampler=RowSampler(5))
    changed = torch.cat([tokens[:, :100], (tokens[:, 100:] + 3) % ARCH.vocab], 1)
    before = gap(decoder(changed, sampler=RowSampler(5))[:, :100], logits[:, :100])
    require(before < FP32, f"later tokens change earlier logits by {before:.2g} ({backend}).")
    return apart([*logits], alone(decoder, [*tokens], positions))


@torch.no_grad()
def left_padding(model: Model) -> Outcome:
    """Rows of 160, 67 and 3 tokens in a batch that is padded at the beginning."""
    decoder = random_decoder(model, LONG_ARCH).eval()
    padding = LONG - torch.tensor(ROWS_OF_LENGTH)
    tokens = rows(3, LONG)
    cache = new_cache(decoder, LONG, padding, 3, RowSampler(5))
    logits = decoder(tokens, cache=cache)
    return _real_tokens(decoder, tokens, cache.positions_BS, logits, padding)


@torch.no_grad()
def right_padding(model: Model) -> Outcome:
    """Rows of 160, 67 and 3 tokens in a batch that is padded at the end."""
    decoder = random_decoder(model, LONG_ARCH).eval()
    tokens, positions = one_row_each(decoder)
    lengths = torch.tensor(ROWS_OF_LENGTH)
    logits = decoder(tokens, lengths_B=lengths, sampler=RowSampler(5))
    expected = alone(decoder, _beginnings(tokens), _beginnings(positions))
    return apart(_beginnings(logits), expected)


def _beginnings(rows: Iterable[Tensor]) -> list[Tensor]:
    """Return the real tokens of rows that are padded at the end."""
    return [row[:length] for row, length in zip(rows, ROWS_OF_LENGTH, strict=True)]


@torch.no_grad()
def cached(model: Model) -> Outcome:
    """Rows in pieces, and token by token, with keys and values in a cache."""
    decoder = random_decoder(model, LONG_ARCH).eval()
    tokens = rows(3, LONG)
    cache = new_cache(decoder, LONG, None, 3, RowSampler(5))
    logits = _in_pieces(decoder, tokens, cache, [90, 1, 1, 1, 60, *[1] * 7])
    return apart([*logits], alone(decoder, [*tokens], [*cache.positions_BS.expand(3, -1)]))


@torch.no_grad()
def cached_and_padded(model: Model) -> Outcome:
    """The same of rows that are padded at the beginning, as prompts in a batch are."""
    decoder = random_decoder(model, LONG_ARCH).eval()
    padding = 150 - torch.tensor([150, 60, 1])
    tokens = rows(3, LONG)
    cache = new_cache(decoder, LONG, padding, 3, RowSampler(5))
    logits = _in_pieces(decoder, tokens, cache, [150, 1, 1, 1, 4, 1, 1, 1])
    return _real_tokens(decoder, tokens, cache.positions_BS, logits, padding)


def _in_pieces(decoder: Decoder, tokens: Tensor, cache: Cache, sizes: list[int]) -> Tensor:
    """Return the logits of tokens that are given in pieces of these sizes."""
    return torch.cat([decoder(piece, cache=cache) for piece in tokens.split(sizes, 1)], 1)


def _real_tokens(
    decoder: Decoder, tokens: Tensor, positions: Tensor, logits: Tensor, padding: Tensor
) -> Outcome:
    """Compare what follows the padding of each row."""
    places = positions.expand(3, -1)
    starts = padding.tolist()
    expected = alone(
        decoder,
        [row[first:] for row, first in zip(tokens, starts, strict=True)],
        [row[first:] for row, first in zip(places, starts, strict=True)],
    )
    return apart([row[first:] for row, first in zip(logits, starts, strict=True)], expected)


@torch.no_grad()
def positions_given(model: Model) -> Outcome:
    """Positions with gaps, others for each row."""
    decoder = random_decoder(model, LONG_ARCH).eval()
    tokens = rows(3, LONG)
    draw = torch.rand(3, 192, generator=torch.Generator().manual_seed(2))
    places = draw.argsort(1)[:, :LONG].sort(1).values
    logits = decoder(tokens, positions_BT=places, sampler=RowSampler(5))
    return apart([*logits], alone(decoder, [*tokens], [*places]))


@torch.no_grad()
def grouped_queries(model: Model) -> Outcome:
    """Two query heads for each head of keys and values."""
    decoder = random_decoder(model, replace(LONG_ARCH, kv_heads=2)).eval()
    tokens, positions = one_row_each(decoder)
    logits = decoder(tokens, sampler=RowSampler(5))
    return apart([*logits], alone(decoder, [*tokens], positions))


@torch.no_grad()
def window_and_sinks(model: Model) -> Outcome:
    """A query sees 24 tokens and the first two, in padded rows too."""
    return left_padding(with_keys(model, window=24, sinks=2))


def sampled_positions(model: Model) -> Outcome:
    """Random positions in training, as RandPE has them."""
    decoder = random_decoder(with_keys(model, random_range=2.0), LONG_ARCH).train()
    tokens, positions = one_row_each(decoder)
    with torch.no_grad():
        logits = decoder(tokens, sampler=RowSampler(5))
        return apart([*logits], alone(decoder, [*tokens], positions))
