"""FlexAttention, compiled for each of few sizes."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tape_exp.models.window import Window
from tape_exp.settings.errors import ConfigError

SIZES = 64  # that it is compiled for: batches, buckets of lengths, kinds of bias


def bucket(length: int) -> int:
    """The length that a row is padded to: a multiple of 128, beyond 1024 of an eighth of the power
    of two above, so that at most a quarter is added and there are few lengths.
    """
    unit = max(128, (1 << (length - 1).bit_length()) // 8)
    return -(-length // unit) * unit


@functools.cache
def function(device: str) -> Callable[..., Any]:
    """Compiled on a GPU, where eager FlexAttention would hold all scores: one graph or an error."""
    from torch.nn.attention.flex_attention import flex_attention

    if device != "cuda":
        return flex_attention
    import torch._dynamo

    # By default a ninth size would be computed eagerly, with no word about it.
    limit = max(torch._dynamo.config.recompile_limit, SIZES)
    torch._dynamo.config.recompile_limit = limit
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def or_refuse(*arguments: Any, **options: Any) -> Any:
        try:
            return compiled(*arguments, **options)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise ConfigError(
                f"trainer.attention=flex has met more than {limit} different sizes, and would hold "
                "all scores for another; trainer.attention=sdpa takes every size."
            ) from error

    return or_refuse


@functools.lru_cache(maxsize=32)
def causal_blocks(T: int, S: int, device: str, window: Window | None = None) -> Any:
    """The blocks of (T, S) in which query t looks at keys up to t + S - T, of a window only at
    those that it shows: others are skipped.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        distance = t + S - T - s
        return distance >= 0 if window is None else window.shows(distance, s)

    return create_block_mask(seen, None, None, T, S, device=device)
