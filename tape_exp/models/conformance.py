"""What every positional encoding must do, as checks that its author runs: ``tape-exp check``.

Each check takes the section ``model`` of a config, makes a decoder of two layers with it, whose
positional parameters are random, and raises :class:`NonconformingError` where the encoding does not
keep to what a decoder, a cache or a kernel relies on. The tests of this project run them on every
YAML of ``conf/model``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.layers import kinds_of
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch

Model = dict[str, Any]  # the section of a config
LONG = 8192  # positions; bf16 tells 897 of them apart
CPU = torch.device("cpu")
# As of addition: rows of up to 48 tokens, of which training shows 24; ids 4 to 13 are digits.
ARCH = Arch(
    layers=2,
    width=32,
    heads=4,
    ffn=48,
    vocab=14,
    max_length=48,
    train_length=24,
    digits=tuple(range(4, 14)),
)


class NonconformingError(AssertionError):
    """An encoding does not do what every one must, in one sentence."""


def require(holds: Any, sentence: str) -> None:
    """Raise :class:`NonconformingError` unless ``holds``."""
    if not holds:
        raise NonconformingError(sentence)


def random_decoder(model: Model, arch: Arch = ARCH, std: float = 0.3, **options: Any) -> Decoder:
    """A decoder whose positional parameters are random and whose attention is far from uniform."""
    arch = fitting(model, arch)
    decoder = Decoder(arch, kinds_of(model, arch), options.pop("seed", 0), **options)
    randomise(decoder, std)
    return decoder


def fitting(model: Model, arch: Arch) -> Arch:
    """The sizes with a layer for each entry of a pattern."""
    return replace(arch, layers=max(arch.layers, len(model.get("layers", []))))


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


def future_tokens_do_not_matter(model: Model) -> None:
    """Changed tokens change no logits before them, in the reference and in torch's kernels."""
    tokens = rows(2, 24)
    changed = tokens.clone()
    changed[:, 15:] = (changed[:, 15:] + 3) % ARCH.vocab
    for backend in ("reference", "sdpa"):
        decoder = random_decoder(model, backend=backend)
        before, after = decoder(tokens, sampler=sampler()), decoder(changed, sampler=sampler())
        before, after = before.detach(), after.detach()
        gap = float((before - after)[:, :15].abs().max())
        require(
            torch.allclose(before[:, :15], after[:, :15], rtol=1e-5, atol=1e-5),
            f"later tokens change earlier logits by {gap:.2g} ({backend}).",
        )
        gap = float((before - after)[:, 15:].abs().max())
        require(gap > 1e-3, f"changed tokens do not change their own logits ({backend}).")


def every_parameter_learns(model: Model) -> None:
    """Logits (B, T, V) in fp32 and under bf16 autocast, and a finite gradient other than 0 for
    every parameter that is trained.
    """
    tokens = rows(2, 24)
    for dtype in (torch.float32, torch.bfloat16):
        decoder = random_decoder(model, std=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = decoder(tokens, sampler=sampler())
            shape = tuple(logits.shape)
            require(shape == (2, 24, ARCH.vocab), f"logits have the shape {shape}.")
            require(
                logits.dtype == dtype, f"logits are {logits.dtype} where they should be {dtype}."
            )
            logits.float().square().mean().backward()
        for name, parameter in decoder.named_parameters():
            if parameter.requires_grad:
                grad = parameter.grad
                require(grad is not None, f"{name} takes no part in the logits ({dtype}).")
                assert grad is not None
                require(grad.isfinite().all(), f"the gradient of {name} is not finite ({dtype}).")
                require(grad.abs().sum() > 0, f"the gradient of {name} is 0 ({dtype}).")


def sixteen_bit_weights_keep_positions_in_fp32(model: Model) -> None:
    """With weights in bf16, as trainer.precision=bf16-true has them, states and biases are computed
    in fp32, and logits are near those of the same weights in fp32.
    """
    tokens, decoder = rows(2, 24), random_decoder(model, std=0.1).to(torch.bfloat16)
    kept: list[tuple[Tensor, set[torch.dtype]]] = []
    of_biases = {torch.float32, torch.float64}

    def watch(block: Any, q_BTHD: Any, k_BSKD: Any, given: Any, state: Any) -> None:
        kept.extend((x, of_biases) for x in given.values() if isinstance(x, Tensor))
        if state is not None:
            kept.append((state, {torch.float32}))

    logits = decoder(tokens, sampler=sampler(), watch=watch)
    logits.float().square().mean().backward()
    logits = logits.detach()
    require(logits.dtype == torch.bfloat16, f"logits are {logits.dtype} with weights in bf16.")
    found = ", ".join(sorted({str(x.dtype) for x, right in kept if x.dtype not in right}))
    require(not found, f"a bias or the state is {found}; compute it in fp32.")
    for name, parameter in decoder.named_parameters():
        if parameter.requires_grad:
            finite = parameter.grad is not None and parameter.grad.isfinite().all()
            require(finite, f"the gradient of {name} is not finite with weights in bf16.")
    expected = decoder.float()(tokens, sampler=sampler()).detach()
    gap = float((logits - expected).abs().mean() / expected.abs().mean())
    require(gap < 0.05, f"logits with weights in bf16 are {gap:.0%} from those in fp32.")


def positions_stay_distinct_under_autocast(model: Model) -> None:
    """8192 positions remain so many in ``positions`` and in the initial state, and the bias of the
    last of them is that of fp64.
    """
    for encoding in first_values(model, replace(ARCH, max_length=LONG, train_length=LONG)):
        _stays_distinct(encoding)


class ReturnedTypes(TorchDispatchMode):
    """Collects the types of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What the operation returns."""
        returned = func(*args, **(kwargs or {}))
        every = returned if isinstance(returned, tuple | list) else [returned]
        self.found |= {x.dtype for x in every if isinstance(x, Tensor)}
        return returned


def _stays_distinct(encoding: PositionEncoding) -> None:
    encoding.requires_grad_(False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        positions = encoding.positions(1, LONG, CPU, sampler())
        state = encoding.initial_state(positions)
        with ReturnedTypes() as returned:
            bias = encoding.bias(positions[:, -1:], positions)
    for name, found in (("positions", positions), ("the initial state", state), ("bias", bias)):
        require(
            found is None or found.dtype == torch.float32, f"{name}: not in fp32 under autocast."
        )
    halves = ", ".join(sorted(map(str, returned.found & {torch.bfloat16, torch.float16})))
    require(not halves, f"bias computes in {halves} on its way: distances beyond 256 are rounded.")
    kept = positions.unique().numel()
    require(kept == LONG, f"positions tells {kept} of {LONG} apart.")
    if state is not None:
        kept = state.reshape(LONG, -1).unique(dim=0).shape[0]
        require(kept == LONG, f"the initial state tells {kept} of {LONG} positions apart.")
    if bias is not None:
        require(bias.isfinite().all(), f"bias is not finite over {LONG} positions.")
        exact = encoding.double().bias(positions[:, -1:].double(), positions.double())
        assert exact is not None
        gap = float((bias - exact).detach().abs().max() / exact.abs().max().clamp(min=1e-9))
        require(gap < 1e-3, f"bias is {gap:.1g} of its size from that in fp64: computed in bf16?")


def absolute_positions_says_what_is_true(model: Model) -> None:
    """The class attribute says whether logits change when all positions are shifted, which is
    measured in fp64.
    """
    decoder = random_decoder(model).double()
    tokens, positions = rows(2, 24), torch.arange(24, dtype=torch.float64)[None]
    encodings = [block.position for block in decoder.blocks()]
    in_a_table = any(one.reach is not None for one in encodings)
    offsets = (3.0, 17.0, 24.0) if in_a_table else (3.0, 17.25, 1000.5)
    base = decoder(tokens, positions_BT=positions)
    shifted = [decoder(tokens, positions_BT=positions + offset) - base for offset in offsets]
    change = max(float(difference.detach().abs().max()) for difference in shifted)
    if any(one.absolute_positions for one in encodings):
        require(
            change > 1e-3,
            f"absolute_positions is True, but shifts change logits by {change:.1g} only.",
        )
    else:
        require(
            change < 1e-9, f"absolute_positions is False, but shifts change logits by {change:.2g}."
        )


def consecutive_says_what_is_true(model: Model) -> None:
    """The class attribute says whether positions are 0 … T-1; a bias by distance is the whole bias,
    and its slopes are its own.
    """
    for encoding in first_values(model, ARCH):
        _says_what_is_true(encoding)


def _says_what_is_true(encoding: PositionEncoding) -> None:
    positions = encoding.positions(2, 24, CPU, sampler())
    counted = torch.equal(positions, torch.arange(24.0)[None])
    require(
        counted == encoding.consecutive,
        f"consecutive is {encoding.consecutive}; positions begins {positions[0, :4].tolist()}.",
    )
    by_distance, slopes = encoding.bias_by_distance(24, CPU), encoding.slopes()
    if by_distance is None:
        require(slopes is None, "slopes() has slopes, but bias_by_distance() has no bias.")
        return
    own = type(encoding).contextual_bias is PositionEncoding.contextual_bias
    require(
        own, "an encoding with bias_by_distance has a contextual_bias, which would be left out."
    )
    full = encoding.bias(torch.arange(24.0)[None], torch.arange(24.0)[None])
    require(full is not None, "bias_by_distance has a bias, but bias has none.")
    assert full is not None
    gap = float((full[0, :, -1].flip(-1) - by_distance).detach().abs().max())
    require(gap < 1e-4, f"bias_by_distance and bias are {gap:.2g} apart.")
    if slopes is not None:
        line = -slopes[:, None] * torch.arange(24.0)
        require(torch.equal(by_distance, line), "bias_by_distance is not -slopes() times distance.")


def cached_decoding_is_full_decoding(model: Model) -> None:
    """Logits of a row at once, in parts and token by token are equal to 1e-4."""
    decoder, tokens = random_decoder(model).eval(), rows(3, 20)
    for chunks in ([20], [7, 1, 1, 11], [1] * 20):
        with torch.no_grad():
            cache = new_cache(decoder, 20, None, 3, sampler())
            full = decoder(tokens, positions_BT=cache.positions_BS)
            parts = [decoder(part, cache=cache) for part in tokens.split(chunks, 1)]
        gap = float((torch.cat(parts, 1) - full).abs().max())
        require(gap < 1e-4, f"logits in parts of {chunks} are {gap:.2g} from those at once.")
        require(full.abs().max() > 0.1, "all logits are near 0, so that none could differ.")


def padded_rows_are_rows_alone(model: Model) -> None:
    """Other rows beside a row do not change its logits. Nor do shorter and longer ones change what
    generation writes after it, which is not asked of encodings that sample positions.
    """
    decoder, tokens = random_decoder(model).eval(), rows(3, 20)
    others = tokens.clone()
    others[1:] = (others[1:] + 3) % ARCH.vocab
    with torch.no_grad():
        before, after = decoder(tokens, sampler=sampler()), decoder(others, sampler=sampler())
    gap = float((before - after)[0].abs().max())
    same = torch.allclose(before[0], after[0], rtol=1e-5, atol=1e-5)
    require(same, f"other rows change logits by {gap:.2g}.")
    if not all(block.position.consecutive for block in decoder.blocks()):
        return
    prompts = [tokens[0, :5], tokens[1, :12], tokens[2, :1]]
    together = generate(decoder, prompts, 8)
    alone = [generate(decoder, [prompt], 8)[0] for prompt in prompts]
    require(together == alone, "a row is continued differently where other rows are beside it.")
    require(len({*map(tuple, together)}) > 1, "rows that differ are all continued alike.")


def first_values(model: Model, arch: Arch) -> Iterator[PositionEncoding]:
    """An encoding of each kind of layer, with its first values."""
    arch = fitting(model, arch)
    for kind in kinds_of(model, arch):
        encoding = kind.position(arch)
        encoding.init_weights(torch.Generator().manual_seed(5))
        yield encoding


CHECKS: dict[str, Callable[[Model], None]] = {
    check.__name__: check
    for check in (
        future_tokens_do_not_matter,
        every_parameter_learns,
        sixteen_bit_weights_keep_positions_in_fp32,
        positions_stay_distinct_under_autocast,
        absolute_positions_says_what_is_true,
        consecutive_says_what_is_true,
        cached_decoding_is_full_decoding,
        padded_rows_are_rows_alone,
    )
}
