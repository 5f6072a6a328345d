"""What every positional encoding must do, as checks that its author runs: ``tape-exp check``.

Each makes a decoder of two layers with random positional parameters from the section ``model`` of a
config, and raises :class:`NonconformingError`; a sentence that it returns is worth knowing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.layers import kinds_of
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.scores import ByDistance, ByKey, Scores
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


def logits_of(decoder: Decoder, tokens: Tensor, **options: Any) -> Tensor:
    """Logits (B, T, V); encodings that sample positions always draw the same."""
    return decoder(tokens, sampler=RowSampler(5), **options)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors."""
    return float((a - b).detach().abs().max())


def future_tokens_do_not_matter(model: Model) -> None:
    """Changed tokens change no logits before them, by the explicit softmax and by torch's kernels,
    which agree.
    """
    tokens, logits = rows(2, 24), []
    changed = torch.cat([tokens[:, :15], (tokens[:, 15:] + 3) % ARCH.vocab], 1)
    for backend in ("explicit", "sdpa"):
        decoder = random_decoder(model, backend=backend)
        before, after = (logits_of(decoder, x) for x in (tokens, changed))
        found = gap(before[:, :15], after[:, :15])
        require(found < 1e-4, f"later tokens change earlier logits by {found:.2g} ({backend}).")
        logits.append(before)
    apart = gap(*logits)
    require(apart < 1e-4, f"logits of explicit attention and of sdpa are {apart:.2g} apart.")


def every_parameter_learns(model: Model) -> None:
    """Logits (B, T, V) in fp32, under bf16 autocast and with weights in bf16, and a finite gradient
    for every parameter that is trained, other than 0 with weights in fp32.
    """
    fp32, bf16 = torch.float32, torch.bfloat16
    for weights, dtype in ((fp32, fp32), (fp32, bf16), (bf16, bf16)):
        decoder, when = random_decoder(model, std=0.1).to(weights), f"({weights} in {dtype})"
        with torch.autocast("cpu", torch.bfloat16, enabled=weights != dtype):
            logits = logits_of(decoder, rows(2, 24))
        told = f"logits are {logits.dtype} of the shape {tuple(logits.shape)} {when}."
        require(logits.dtype == dtype and logits.shape == (2, 24, ARCH.vocab), told)
        logits.float().square().mean().backward()
        for name, parameter in decoder.named_parameters():
            if parameter.requires_grad:
                grad = parameter.grad
                require(grad is not None, f"{name} takes no part in the logits.")
                assert grad is not None
                require(grad.isfinite().all(), f"the gradient of {name} is not finite {when}.")
                learns = weights == bf16 or grad.any()
                require(learns, f"the gradient of {name} is 0 {when}.")


def sixteen_bit_weights_keep_positions_in_fp32(model: Model) -> None:
    """With weights in bf16, as trainer.precision=bf16-true has them, states and biases are computed
    in fp32, and logits are near those of the same weights in fp32.
    """
    tokens, decoder = rows(2, 24), random_decoder(model, std=0.1).to(torch.bfloat16)
    kept: list[Tensor] = []

    def watch(block: Any, scores: Scores, state: Tensor | None) -> None:
        kept.extend([] if state is None else [state])
        for bias in scores.biases:
            kept.append(bias.values if isinstance(bias, ByKey) else scores.addend(bias))

    logits = logits_of(decoder, tokens, watch=watch).detach()
    found = ", ".join(sorted({str(x.dtype) for x in kept if x.element_size() < 4}))
    require(not found, f"a bias or the state is {found}; compute it in fp32.")
    expected = logits_of(decoder.float(), tokens).detach()
    error = float((logits - expected).abs().mean() / expected.abs().mean())
    require(error < 0.05, f"logits with weights in bf16 are {error:.0%} from those in fp32.")


@torch.no_grad()
def positions_stay_distinct(model: Model) -> None:
    """The initial state tells 8192 positions apart, and a bias by distance over as many is that of
    fp64.
    """
    decoder = random_decoder(model, replace(ARCH, max_length=LONG, train_length=LONG))
    places = torch.arange(LONG, dtype=torch.float32)[None]
    for encoding in decoder.encodings():
        if (state := encoding.start(places)) is not None:
            kept = state.reshape(LONG, -1).unique(dim=0).shape[0]
            require(kept == LONG, f"start tells {kept} of {LONG} positions apart.")
        heads = ARCH.key_heads if encoding.grouped_keys else ARCH.heads
        q, k = (torch.zeros(1, 4, n, ARCH.head_dim) for n in (ARCH.heads, heads))
        found = encoding.bias(q, k, torch.ones(1, 4, ARCH.width), places[:, :4])
        for bias in found if isinstance(found, list) else [found]:
            if isinstance(bias, ByDistance):
                table, exact = bias.at(places[0]), bias.at(places[0].double())
                error = gap(table, exact) / max(float(exact.abs().max()), 1e-9)
                require(error < 1e-3, f"bias is {error:.1g} of its size from that in fp64.")
                if bias.slopes is not None:
                    straight = table.equal(-bias.slopes[:, None] * places)
                    require(straight, "a bias by distance is not -slopes · distance.")


@torch.no_grad()
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


@torch.no_grad()
def cached_decoding_is_full_decoding(model: Model) -> None:
    """Logits of a row at once, in parts and token by token are equal to 1e-4. An encoding that
    needs all earlier tokens says ``cacheable = False``.
    """
    decoder, tokens = random_decoder(model).eval(), rows(3, 15)
    for chunks in ([5, 1, 1, 8], [1] * 15):
        cache = new_cache(decoder, 15, None, 3, RowSampler(5))
        full = decoder(tokens, positions_BT=cache.positions_BS)
        parts = [decoder(part, cache=cache) for part in tokens.split(chunks, 1)]
        apart = gap(torch.cat(parts, 1), full)
        require(apart < 1e-4, f"logits in parts of {chunks} are {apart:.2g} from those at once.")


@torch.no_grad()
def padded_rows_are_rows_alone(model: Model) -> None:
    """Other rows beside a row do not change its logits. Nor do shorter and longer ones change what
    generation writes after it, which is not asked of encodings that sample positions.
    """
    decoder, tokens = random_decoder(model).eval(), rows(3, 20)
    others = torch.cat([tokens[:1], (tokens[1:] + 3) % ARCH.vocab])
    found = gap(*(logits_of(decoder, x)[0] for x in (tokens, others)))
    require(found < 1e-4, f"other rows change logits by {found:.2g}.")
    if decoder.random is None:
        prompts = [tokens[0, :5], tokens[1, :12], tokens[2, :1]]
        together = generate(decoder, prompts, 8)
        alone = [generate(decoder, [prompt], 8)[0] for prompt in prompts]
        require(together == alone, "a row is continued differently where others are beside it.")


_EACH: list[Callable[[Model], str | None]] = [future_tokens_do_not_matter, every_parameter_learns]
_EACH += [sixteen_bit_weights_keep_positions_in_fp32, positions_stay_distinct, shifted_positions]
_EACH += [cached_decoding_is_full_decoding, padded_rows_are_rows_alone]
CHECKS = {check.__name__: check for check in _EACH}
