"""What every positional encoding is promised and must do, as a table of situations that its author
runs: ``tape-exp check``.

Each situation makes small decoders from the section ``model`` of a config, whose positional
parameters are random, and compares their logits, or gradients, with those of the explicit softmax
in fp64 on each row alone. Rows are longer than every block, table and threshold: a section with a
number that is longer than a row is tried once more with a short one. One more situation is one more
function in :data:`SITUATIONS`.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder, run_block
from tape_exp.models.generation import new_cache
from tape_exp.models.layers import kinds_of
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, construct
from tape_exp.models.scores import BiasError, ByDistance, ByKey, Scores, full_precision
from tape_exp.models.sections import (
    ARCH,
    LONG,
    LONG_ARCH,
    Model,
    shortened,
    with_keys,
)
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

MANY = 8192  # positions; bf16 tells 897 of them apart
ROWS_OF_LENGTH = (LONG, 67, 3)
# What is allowed: of the largest logit; of a parameter's largest gradient, where a function with
# kinks, as CoPE's, may be on their other side in fp64; the mean error over the mean logit.
FP32 = 1e-4
GRADIENT = 5e-3
BF16 = 0.05


class NonconformingError(AssertionError):
    """An encoding does not do what every one must, in one sentence."""


class NotAskedError(Exception):
    """A situation that an encoding cannot be in, and why, in one sentence."""


@dataclass(frozen=True)
class Outcome:
    """How far an encoding is from the oracle and may be, None where nothing is measured; and a
    remark.
    """

    difference: float | None = None
    allowed: float | None = None
    remark: str = ""


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


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors. Raises :class:`NonconformingError` where there is
    none, since a number is not finite: no NaN is the larger of two numbers for Python.
    """
    difference = float((a - b).detach().abs().max())
    require(math.isfinite(difference), "a logit, a bias or a gradient is NaN or infinite.")
    return difference


def oracle(decoder: Decoder) -> Decoder:
    """The same decoder in fp64, with the explicit softmax; nothing of it is compiled."""
    exact = copy.deepcopy(decoder).double()
    exact._run = run_block
    for block in exact.blocks():
        block.backend = "explicit"
    return exact


def alone(decoder: Decoder, tokens: Sequence[Tensor], positions: Sequence[Tensor]) -> list[Tensor]:
    """The oracle's logits of each row, (T, V), without other rows, padding and cache."""
    exact = oracle(decoder)
    return [
        exact(row[None], positions_BT=place[None].double(), sampler=RowSampler(5, first=n))[0]
        for n, (row, place) in enumerate(zip(tokens, positions, strict=True))
    ]


def apart(computed: Sequence[Tensor], expected: Sequence[Tensor]) -> Outcome:
    """The largest difference of logits over the largest of them, which must be rounding."""
    largest = max(float(logits.detach().abs().max()) for logits in expected)
    difference = max(map(gap, computed, expected)) / largest
    require(difference < FP32, f"logits are {difference:.2g} of their size from the oracle's.")
    return Outcome(difference, FP32)


def one_row_each(decoder: Decoder, length: int = LONG) -> tuple[Tensor, list[Tensor]]:
    """Three whole rows of tokens, and the positions that the decoder gives each."""
    tokens = rows(3, length)
    positions = decoder.positions(3, length, tokens.device, RowSampler(5)).expand(3, -1)
    return tokens, [*positions]


# Each docstring is one line of the table in the docs.


@torch.no_grad()
def whole_rows(model: Model) -> Outcome:
    """Rows in a batch, by each backend of a CPU; later tokens and other rows change nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without")  # slow on a CPU
        backends = ("auto", "explicit", "sdpa", "flex")
        outcomes = [_by_backend(model, backend) for backend in backends]
    return max(outcomes, key=lambda outcome: outcome.difference or 0)


def _by_backend(model: Model, backend: str) -> Outcome:
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
    """The real tokens of rows that are padded at the end."""
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


def _in_pieces(decoder: Decoder, tokens: Tensor, cache: Any, sizes: list[int]) -> Tensor:
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


def autocast_in_bf16(model: Model) -> Outcome:
    """Matrices multiply in bf16; states and biases are fp32, whichever backend asks for them."""
    return _in_bf16(model, torch.float32)


def weights_in_bf16(model: Model) -> Outcome:
    """Parameters are bf16 (``trainer.precision=bf16-true``); states and biases are fp32."""
    return _in_bf16(model, torch.bfloat16)


def _in_bf16(model: Model, weights: torch.dtype) -> Outcome:
    decoder = random_decoder(model, LONG_ARCH, std=0.1).to(weights).train()
    tokens, positions = one_row_each(decoder)
    narrow: set[str] = set()

    def watch(block: Any, scores: Scores, state: Tensor | None) -> None:
        if state is not None and as_state(state).element_size() < 4:
            narrow.add(f"the state is {state.dtype}")
        for bias in scores.biases:
            with full_precision(scores.q):
                values = bias.values if isinstance(bias, ByKey) else bias.pairs(scores)
            if values.element_size() < 4:
                narrow.add(f"a bias is {values.dtype}")

    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        decoder(tokens, sampler=RowSampler(5), watch=watch)
        logits = decoder(tokens, sampler=RowSampler(5))
    require(not narrow, f"{' and '.join(sorted(narrow))}; compute it in fp32.")
    wanted = (torch.bfloat16, (3, LONG, ARCH.vocab))
    shape = tuple(logits.shape)
    require((logits.dtype, shape) == wanted, f"logits are {logits.dtype} of the shape {shape}.")
    logits.float().square().mean().backward()
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None:
            finite = parameter.grad.isfinite().all()
            require(finite, f"the gradient of {name} is not finite.")
    with torch.no_grad():
        expected = torch.stack(alone(decoder, [*tokens], positions))
        error = float((logits - expected).abs().mean() / expected.abs().mean())
    require(error < BF16, f"logits are {error:.0%} from the oracle's.")
    return Outcome(error, BF16)


def gradients(model: Model) -> Outcome:
    """The gradient of every trained parameter, in training; none is zero."""
    return _gradients(random_decoder(model, LONG_ARCH, std=0.1))


def gradient_checkpointing(model: Model) -> Outcome:
    """The same where a block's activations are computed again in its backward pass."""
    decoder = random_decoder(model, LONG_ARCH, std=0.1)
    decoder.recompute = True
    return _gradients(decoder)


def compiled(model: Model) -> Outcome:
    """The same of blocks that torch.compile has traced into one graph each, with a named backend;
    tracing needs no compiler.
    """
    from torch._dynamo.exc import Unsupported  # takes a second

    torch.compiler.reset()  # else the blocks of other models count to its limit
    decoder = random_decoder(model, LONG_ARCH, std=0.1, backend="sdpa")
    try:
        decoder.compile(backend="eager", fullgraph=True)
        return _gradients(decoder)
    except Unsupported:
        decoder.compile(backend="eager")
        return replace(_gradients(decoder), remark="the graph breaks")


def _gradients(decoder: Decoder) -> Outcome:
    tokens, positions = one_row_each(decoder.train())
    mix = torch.randn(LONG, ARCH.vocab, generator=torch.Generator().manual_seed(3))
    decoder(tokens, sampler=RowSampler(5)).mul(mix).sum().backward()
    exact = oracle(decoder)
    exact.zero_grad()
    exact.recompute = False
    for n, (row, place) in enumerate(zip(tokens, positions, strict=True)):
        sampler = RowSampler(5, first=n)
        logits = exact(row[None], positions_BT=place[None].double(), sampler=sampler)
        logits.mul(mix).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
    worst = 0.0
    for (name, ours), theirs in zip(decoder.named_parameters(), exact.parameters(), strict=True):
        if not ours.requires_grad:
            continue
        require(
            ours.grad is not None and theirs.grad is not None,
            f"{name} takes no part; what only the first layer reads is a parameter embedding.",
        )
        assert ours.grad is not None
        assert theirs.grad is not None
        require(ours.grad.any(), f"the gradient of {name} is 0.")
        # What softmax cancels, such as a number for all pairs, has a gradient of rounding only.
        size = max(float(theirs.grad.abs().max()), 1e-3 * largest)
        difference = gap(ours.grad, theirs.grad) / size
        require(
            difference < GRADIENT,
            f"the gradient of {name} is {difference:.2g} of its size from the oracle's.",
        )
        worst = max(worst, difference)
    return Outcome(worst, GRADIENT)


def constructor_values(model: Model) -> Outcome:
    """What the constructor sets is what training begins with, whatever torch's global seed is."""
    kinds = kinds_of(model)
    with_init_weights: list[str] = []
    weights = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            weights.append(Decoder(ARCH, kinds).state_dict())
    changed = [name for name in weights[0] if not weights[0][name].equal(weights[1][name])]
    require(not changed, f"{changed[:1]} depends on torch's global generator; draw from the given.")
    decoder = Decoder(replace(ARCH, layers=len(kinds)), kinds)
    for layer, (block, kind) in enumerate(zip(decoder.blocks(), kinds, strict=True)):
        position = block.position
        if type(position).init_weights is not PositionEncoding.init_weights:
            with_init_weights.append(type(position).__name__)
            continue
        fresh = construct(kind.position, decoder.arch, 0, f"layers.{layer}.position")
        constructed = dict(fresh.named_parameters())
        for name, parameter in position.named_parameters():
            same = constructed[name].isnan().all() or constructed[name].equal(parameter)
            require(same, f"{name} does not begin as the constructor set it.")
    if not with_init_weights:
        return Outcome()
    return Outcome(remark=f"init_weights of {' and '.join({*with_init_weights})} sets them")


def as_state(state: Any) -> Tensor:
    """What ``start`` or ``update`` gave, which must be one tensor."""
    require(
        isinstance(state, Tensor),
        f"a state is a {type(state).__name__}; it is one tensor: stack or concatenate its parts.",
    )
    tensor: Tensor = state
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@torch.no_grad()
def many_positions(model: Model) -> Outcome:
    """The first state tells 8192 positions apart, or all of a table's; a bias of as many distances
    is that of fp64.
    """
    decoder = random_decoder(model, replace(ARCH, max_length=MANY, train_length=MANY))
    many = min(MANY, decoder.reach or MANY)
    places = Places.at(torch.arange(many, dtype=torch.float32)[None], consecutive=True)
    few = Places.at(places.positions[:, :4], consecutive=True)
    worst = 0.0
    for encoding in decoder.encodings():
        state = encoding.start(places)
        if state is not None:
            different = as_state(state).reshape(many, -1).unique(dim=0).shape[0]
            require(different == many, f"start tells {different} of {many} positions apart.")
        heads = ARCH.key_heads if encoding.grouped_keys else ARCH.heads
        q = torch.zeros(1, 4, ARCH.heads, ARCH.head_dim)
        k = torch.zeros(1, 4, heads, ARCH.head_dim)
        biases = encoding.bias(q, k, torch.ones(1, 4, ARCH.width), encoding.start(few), few)
        for bias in biases if isinstance(biases, list) else [biases]:
            if isinstance(bias, ByDistance):
                table = bias.at(places.positions[0])
                exact = bias.at(places.positions[0].double())
                error = gap(table, exact) / max(float(exact.abs().max()), 1e-9)
                require(error < FP32, f"bias is {error:.1g} of its size from that in fp64.")
                worst = max(worst, error)
                if bias.slopes is not None:
                    straight = table.equal(-bias.slopes[:, None] * places.positions)
                    require(straight, "a bias by distance is not -slopes · distance.")
    return Outcome(worst, FP32)


@torch.no_grad()
def reloaded(model: Model) -> Outcome:
    """Weights are all that a run keeps: a model of another seed that loads them is the same one."""
    decoders = [random_decoder(model, seed=seed).eval() for seed in (1, 2)]
    decoders[1].load_state_dict(decoders[0].state_dict())
    logits = [decoder(rows(2, 24), sampler=RowSampler(5)) for decoder in decoders]
    difference = gap(*logits) / float(logits[0].abs().max())
    require(
        difference < FP32,
        f"logits change by {difference:.2g} of their size; what a constructor draws is kept in a "
        "parameter or by register_buffer.",
    )
    return Outcome(difference, FP32)


@torch.no_grad()
def shifted_positions(model: Model) -> Outcome:
    """Whether logits change when all positions are shifted, in fp64: a remark, never a failure."""
    decoder = random_decoder(model).double()
    tokens = rows(2, 24)
    positions = torch.arange(24, dtype=torch.float64)[None]
    offsets = (3.0, 17.25, 1000.5) if decoder.reach is None else (3.0, 17.0, 24.0)
    base = decoder(tokens, positions_BT=positions)
    change = max(gap(decoder(tokens, positions_BT=positions + x), base) for x in offsets)
    what = "distances only" if change < 1e-9 else "the positions themselves"
    return Outcome(change, remark=f"logits depend on {what}")


_EACH: tuple[Callable[[Model], Outcome], ...] = (
    whole_rows,
    left_padding,
    right_padding,
    cached,
    cached_and_padded,
    positions_given,
    grouped_queries,
    window_and_sinks,
    sampled_positions,
    autocast_in_bf16,
    weights_in_bf16,
    gradients,
    gradient_checkpointing,
    compiled,
    constructor_values,
    reloaded,
    many_positions,
    shifted_positions,
)
SITUATIONS = {situation.__name__: situation for situation in _EACH}
AS_GIVEN = ("compiled", "constructor_values", "reloaded", "many_positions", "shifted_positions")


def outcome_of(situation: str, model: Model) -> Outcome:
    """Put an encoding in a situation, also beyond its thresholds; the worse outcome. Raises
    :class:`NonconformingError` where it fails, and :class:`NotAskedError` where the encoding
    refuses the situation in a sentence of its own.
    """
    short, changed = shortened(model)
    models = [model, short] if changed and situation not in AS_GIVEN else [model]
    try:
        outcomes = [SITUATIONS[situation](section) for section in models]
    except BiasError as error:
        raise NonconformingError(str(error)) from error
    except ConfigError as refused:
        random_decoder(model, LONG_ARCH)(rows(1, 2), sampler=RowSampler(5))  # must be possible
        raise NotAskedError(str(refused)) from refused
    except IndexError as error:
        raise NonconformingError(
            f"{error}: a table of positions says how many it has, self.reach, and padding among "
            "places.tokens is -1."
        ) from error
    return max(outcomes, key=lambda outcome: outcome.difference or 0)
