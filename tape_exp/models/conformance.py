"""What every positional encoding must do, as checks that its author runs: ``tape-exp check``.

Each check takes the section ``model`` of a config, makes a decoder of two layers with random
positional parameters, and raises :class:`NonconformingError` where the encoding breaks what a
decoder, a cache or a kernel relies on; a sentence that it returns is worth knowing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.attention import Bias, ByDistance, ByPosition, Dense, Scores
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.layers import kinds_of
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch

Model = dict[str, Any]  # the section of a config
LONG = 8192  # positions; bf16 tells 897 of them apart
# As of addition: rows of up to 48 tokens, of which training shows 24; ids 4 to 13 are digits. Two
# query heads share each key head.
ARCH = Arch(2, 32, 4, 48, 14, max_length=48, train_length=24, kv_heads=2, digits=(*range(4, 14),))


class NonconformingError(AssertionError):
    """An encoding does not do what every one must, in one sentence."""


def require(holds: Any, sentence: str) -> None:
    """Raise :class:`NonconformingError` unless ``holds``."""
    if not holds:
        raise NonconformingError(sentence)


def random_decoder(model: Model, arch: Arch = ARCH, std: float = 0.3, **options: Any) -> Decoder:
    """A decoder whose positional parameters are random and whose attention is far from uniform."""
    layers = max(arch.layers, len(model.get("layers", [])))  # one for each entry of a pattern
    decoder = Decoder(replace(arch, layers=layers), kinds_of(model), **options)
    randomise(decoder, std)
    return decoder


def randomise(model: nn.Module, std: float = 0.3, seed: int = 1) -> None:
    """Give every positional parameter a random value, so that zero-initialised parts take part, and
    the other matrices a size at which attention is far from uniform.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and ".position." not in name:
                module.weight.mul_(10)
            if isinstance(module, PositionEncoding):
                for parameter in module.parameters():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(std * noise.to(parameter))


def rows(count: int, length: int) -> Tensor:
    """Rows of random tokens (count, length)."""
    return torch.randint(0, ARCH.vocab, (count, length), generator=torch.Generator().manual_seed(0))


def sampler() -> RowSampler:
    """Of encodings that sample positions, always alike."""
    return RowSampler(5)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors."""
    return float((a - b).detach().abs().max())


def future_tokens_do_not_matter(model: Model) -> None:
    """Changed tokens change no logits before them, by the explicit softmax and by torch's kernels,
    which agree.
    """
    tokens, early, late = rows(2, 24), slice(0, 15), slice(15, None)
    changed = torch.cat([tokens[:, early], (tokens[:, late] + 3) % ARCH.vocab], 1)
    logits = []
    for backend in ("explicit", "sdpa"):
        decoder = random_decoder(model, backend=backend)
        before, after = (decoder(x, sampler=sampler()) for x in (tokens, changed))
        same = torch.allclose(before[:, early], after[:, early], rtol=1e-5, atol=1e-5)
        found = gap(before[:, early], after[:, early])
        require(same, f"later tokens change earlier logits by {found:.2g} ({backend}).")
        own = gap(before[:, late], after[:, late])
        require(own > 1e-3, f"changed tokens do not change their own logits ({backend}).")
        logits.append(before)
    apart = gap(*logits)
    require(apart < 1e-4, f"logits of explicit attention and of sdpa are {apart:.2g} apart.")


def every_parameter_learns(model: Model) -> None:
    """Logits (B, T, V) in fp32 and under bf16 autocast, and a finite gradient other than 0 for
    every parameter that is trained.
    """
    for dtype in (torch.float32, torch.bfloat16):
        decoder = random_decoder(model, std=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = decoder(rows(2, 24), sampler=sampler())
        shape = tuple(logits.shape)
        require(shape == (2, 24, ARCH.vocab), f"logits have the shape {shape}.")
        require(logits.dtype == dtype, f"logits are {logits.dtype} where they should be {dtype}.")
        finite_gradients(decoder, logits, f"({dtype})")
        for name, parameter in decoder.named_parameters():
            learns = parameter.grad is None or parameter.grad.abs().sum() > 0
            require(learns, f"the gradient of {name} is 0 ({dtype}).")


def finite_gradients(decoder: Decoder, logits: Tensor, when: str) -> None:
    """Require one for every parameter that is trained."""
    logits.float().square().mean().backward()
    for name, parameter in decoder.named_parameters():
        if parameter.requires_grad:
            require(parameter.grad is not None, f"{name} takes no part in the logits {when}.")
            finite = parameter.grad is not None and parameter.grad.isfinite().all()
            require(finite, f"the gradient of {name} is not finite {when}.")


def sixteen_bit_weights_keep_positions_in_fp32(model: Model) -> None:
    """With weights in bf16, as trainer.precision=bf16-true has them, states and biases are computed
    in fp32, and logits are near those of the same weights in fp32.
    """
    tokens, decoder = rows(2, 24), random_decoder(model, std=0.1).to(torch.bfloat16)
    kept: list[Tensor] = []

    def watch(block: Any, scores: Scores, state: Tensor | None) -> None:
        kept.extend([] if state is None else [state])
        kept.extend(numbers(bias, scores.k.shape[2]) for bias in scores.biases)

    logits = decoder(tokens, sampler=sampler(), watch=watch)
    require(logits.dtype == torch.bfloat16, f"logits are {logits.dtype} with weights in bf16.")
    found = ", ".join(sorted({str(x.dtype) for x in kept if x.element_size() < 4}))
    require(not found, f"a bias or the state is {found}; compute it in fp32.")
    finite_gradients(decoder, logits, "with weights in bf16")
    expected = decoder.float()(tokens, sampler=sampler()).detach()
    error = float((logits.detach() - expected).abs().mean() / expected.abs().mean())
    require(error < 0.05, f"logits with weights in bf16 are {error:.0%} from those in fp32.")


def positions_stay_distinct(model: Model) -> None:
    """The initial state tells 8192 positions apart, and a bias by distance over as many is that of
    fp64.
    """
    decoder = random_decoder(model, replace(ARCH, max_length=LONG, train_length=LONG))
    places = torch.arange(LONG, dtype=torch.float32)[None]
    for encoding in decoder.encodings():
        encoding.requires_grad_(False)
        if (state := encoding.start(places)) is not None:
            kept = state.reshape(LONG, -1).unique(dim=0).shape[0]
            require(kept == LONG, f"start tells {kept} of {LONG} positions apart.")
        heads = ARCH.key_heads if encoding.grouped_keys else ARCH.heads
        q, k = (torch.zeros(1, 4, n, ARCH.head_dim) for n in (ARCH.heads, heads))
        biases = encoding.bias(q, k, torch.ones(1, 4, ARCH.width), places[:, :4])
        for bias in biases if isinstance(biases, list) else [biases]:
            if not isinstance(bias, ByDistance):
                continue
            table, exact = bias.at(places[0]), bias.at(places[0].double())
            shape = tuple(table.shape)
            require(shape == (ARCH.heads, LONG), f"a bias by distance has the shape {shape}.")
            require(table.isfinite().all(), f"bias is not finite over {LONG} positions.")
            error = gap(table, exact) / max(float(exact.abs().max()), 1e-9)
            require(error < 1e-3, f"bias is {error:.1g} of its size from that in fp64.")
            if bias.slopes is not None:
                straight = torch.equal(table, -bias.slopes[:, None] * places[0])
                require(straight, "a bias by distance is not -slopes · distance.")


def shifted_positions(model: Model) -> str:
    """Say whether logits change when all positions are shifted, which is measured in fp64."""
    decoder = random_decoder(model).double()
    tokens, positions = rows(2, 24), torch.arange(24, dtype=torch.float64)[None]
    offsets = (3.0, 17.25, 1000.5) if decoder.reach is None else (3.0, 17.0, 24.0)
    base = decoder(tokens, positions_BT=positions)
    change = max(gap(decoder(tokens, positions_BT=positions + x), base) for x in offsets)
    if change > 1e-9:
        return f"logits depend on the positions themselves: shifts change them by {change:.1g}"
    return "logits depend on distances only"


def numbers(bias: Bias, keys: int) -> Tensor:
    """The tensor that a bias is made of, of a row of so many keys."""
    places = torch.arange(keys, dtype=torch.float32)
    if isinstance(bias, ByDistance):
        return bias.at(places)
    if isinstance(bias, ByPosition):
        return bias.at(places[None], places[None])
    return bias.pairs if isinstance(bias, Dense) else bias.values


@torch.no_grad()
def cached_decoding_is_full_decoding(model: Model) -> None:
    """Logits of a row at once, in parts and token by token are equal to 1e-4."""
    decoder, tokens = random_decoder(model).eval(), rows(3, 15)
    for chunks in ([5, 1, 1, 8], [1] * 15):
        cache = new_cache(decoder, 15, None, 3, sampler())
        full = decoder(tokens, positions_BT=cache.positions_BS)
        parts = [decoder(part, cache=cache) for part in tokens.split(chunks, 1)]
        apart = gap(torch.cat(parts, 1), full)
        require(apart < 1e-4, f"logits in parts of {chunks} are {apart:.2g} from those at once.")
        require(full.abs().max() > 0.1, "all logits are near 0, so that none could differ.")


@torch.no_grad()
def padded_rows_are_rows_alone(model: Model) -> None:
    """Other rows beside a row do not change its logits. Nor do shorter and longer ones change what
    generation writes after it, which is not asked of encodings that sample positions.
    """
    decoder, tokens = random_decoder(model).eval(), rows(3, 20)
    others = torch.cat([tokens[:1], (tokens[1:] + 3) % ARCH.vocab])
    before, after = (decoder(x, sampler=sampler())[0] for x in (tokens, others))
    same = torch.allclose(before, after, rtol=1e-5, atol=1e-5)
    require(same, f"other rows change logits by {gap(before, after):.2g}.")
    if decoder.random is not None:
        return
    prompts = [tokens[0, :5], tokens[1, :12], tokens[2, :1]]
    together = generate(decoder, prompts, 8)
    alone = [generate(decoder, [prompt], 8)[0] for prompt in prompts]
    require(together == alone, "a row is continued differently where other rows are beside it.")
    require(len({*map(tuple, together)}) > 1, "rows that differ are all continued alike.")


_ALL: tuple[Callable[[Model], str | None], ...] = (
    future_tokens_do_not_matter,
    every_parameter_learns,
    sixteen_bit_weights_keep_positions_in_fp32,
    positions_stay_distinct,
    shifted_positions,
    cached_decoding_is_full_decoding,
    padded_rows_are_rows_alone,
)
CHECKS = {check.__name__: check for check in _ALL}
