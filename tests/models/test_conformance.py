"""The checks of an encoding find the mistakes that they are there for."""

import sys
import types
from typing import ClassVar

import pytest
import torch
from torch import nn

from tape_exp.models import conformance
from tape_exp.models.biases import ByDistance, ByKey, ByPosition, Dense
from tape_exp.models.conformance import SITUATIONS, NonconformingError, outcome_of
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.selective_rope import SelectiveRoPE
from tape_exp.settings.errors import ConfigError
from tests.conftest import model_of

H = conformance.ARCH.heads
NEWLINE = 3


class Peeks(PositionEncoding):
    """A bias that depends on the last of the keys."""

    def bias(self, q, k, *_):
        last = k[:, -1].sum((1, 2))[:, None, None, None]
        return Dense(last * torch.arange(k.shape[1], dtype=k.dtype).expand(1, H, q.shape[1], -1))


class Idle(PositionEncoding):
    """A parameter that nothing reads."""

    def __init__(self, arch):
        super().__init__(arch)
        self.unused = nn.Parameter(torch.ones(arch.heads))


class Rounds(PositionEncoding):
    """A state in bf16."""

    def start(self, places):
        return places.positions[..., None].to(torch.bfloat16).float()


class Coarse(PositionEncoding):
    """A bias of distances that were bf16."""

    def bias(self, *_):
        return ByDistance(
            lambda d: -(d if d.dtype == torch.float64 else d.bfloat16()).expand(H, -1)
        )


class Leaks(PositionEncoding):
    """A bias that depends on the other rows."""

    def bias(self, q, k, *_):
        return ByKey(k.mean(0).sum(-1).expand(len(q), -1, -1))


class Halves(PositionEncoding):
    """A bias in bf16."""

    def bias(self, q, k, *_):
        return ByKey(k.bfloat16().sum(-1))


class Multiplies(PositionEncoding):
    """A bias whose matrix product an open autocast would compute in bf16."""

    def __init__(self, arch):
        super().__init__(arch)
        self.w = nn.Parameter(torch.ones(arch.heads, 1))

    def bias(self, *_):
        return ByDistance(lambda d: -(self.w.to(d.dtype) @ d[None].log1p()))


class Places(PositionEncoding):
    """A bias of positions that takes the places in the batch for them."""

    def bias(self, q, *_):
        def at(queries, keys):
            places = torch.arange(keys.shape[1], dtype=keys.dtype)
            return places[-queries.shape[1] :, None].expand(1, H, -1, 1) * places / 100

        return ByPosition(at)


class Columns(RoPE):
    """RoPE whose positions begin anew after each newline."""

    def start(self, places):
        newline = places.key_tokens == NEWLINE
        index = torch.arange(newline.shape[1])
        begins = torch.where(newline, index + 1, 0)
        begins = torch.cat([torch.zeros_like(begins[:, :1]), begins[:, :-1]], 1).cummax(1).values
        if places.padding is not None:
            begins = begins.maximum(places.padding[:, None])
        columns = (index - begins)[:, -places.tokens.shape[1] :]
        return self.rotations(columns.to(places.positions)[..., None])


class Unset(PositionEncoding):
    """A vector that nobody gives values."""

    def __init__(self, arch):
        super().__init__(arch)
        self.r = nn.Parameter(torch.empty(arch.heads))


class Table(PositionEncoding):
    """A table of positions that does not say how many it has."""

    def __init__(self, arch):
        super().__init__(arch)
        self.embedding = nn.Parameter(torch.empty(arch.train_length, arch.width))

    def embed(self, x, places):
        return x + self.embedding[places.positions.long()]


class Lasting(PositionEncoding):
    """Random values that are drawn again whenever weights are."""

    def init_weights(self, generator):
        nn.init.normal_(self.r)

    def __init__(self, arch):
        super().__init__(arch)
        self.r = nn.Parameter(torch.ones(arch.heads))

    def bias(self, *_):
        return ByDistance(lambda d: -self.r[:, None] * d)


class Forgets(SelectiveRoPE):
    """Angles that are summed over all tokens so far, which are said to be cached."""

    cacheable = True


class Divides(PositionEncoding):
    """A mean over earlier tokens, of which a row that begins with padding has none."""

    def bias(self, q, *given):
        count = (given[-1].key_tokens >= 0).cumsum(1)[..., None]
        return ByKey((count / count).expand(-1, -1, q.shape[2]))


class Draws(RoPE):
    """Random frequencies that are not among the weights."""

    def __init__(self, arch):
        super().__init__(arch)
        self.speed = torch.rand(())

    def start(self, places):
        return self.rotations(places.positions[..., None] * self.speed)


class Parts(PositionEncoding):
    """A state of two tensors."""

    def start(self, places):
        return places.positions.cos(), places.positions.sin()


class Bare(PositionEncoding):
    """A bias that is a tensor."""

    def bias(self, q, *given):
        return -given[-1].key_positions


class Flat(PositionEncoding):
    """A bias whose rows would be taken for heads."""

    def bias(self, q, *given):
        places = given[-1]
        return Dense(places.key_positions[:, None] - places.positions[:, :, None])


class Few(PositionEncoding):
    """A bias of keys for two of four heads."""

    def bias(self, q, k, *_):
        return ByKey(k[:, :, :2].sum(-1))


class FewDistances(PositionEncoding):
    """The same of distances."""

    def bias(self, *_):
        return ByDistance(lambda d: -d.expand(2, -1))


class Shared(PositionEncoding):
    """Biases that all heads share, one of them all rows too."""

    def bias(self, q, k, x, state, places):
        def at(queries, keys):
            return -(queries[:, None, :, None] - keys[:, None, None]).abs().sqrt()

        return [
            ByKey(k.mean((2, 3))[..., None]),
            ByDistance(lambda d: -d[None] / 8),
            ByPosition(at),
            Dense(q.new_zeros(1, 1, q.shape[1], k.shape[1])),
        ]


class Asks(PositionEncoding):
    """A bias by token, which padding has none of."""

    def __init__(self, arch):
        super().__init__(arch)
        self.table = nn.Embedding(arch.vocab, arch.heads)

    def bias(self, *given):
        return ByKey(self.table(given[-1].key_tokens))


class Careful(PositionEncoding):
    """What may look like a mistake and is none: fp64 numbers, a table that says how long it is, a
    limit that is not any number.
    """

    reach = 300

    def __init__(self, arch, limit: int = 512):
        super().__init__(arch)
        assert limit > arch.max_length or arch.max_length == conformance.MANY
        slopes = torch.linspace(0.1, 1, arch.heads, dtype=torch.float64)
        self.slopes = nn.Parameter(slopes[:, None])
        self.register_buffer("table", torch.randn(self.reach, 1))

    def start(self, places):
        return places.positions[..., None] + self.table[places.positions.long()].tanh() / 3

    def rotate(self, q, k, x, state, places):
        return q * state.cos()[:, :, None], k

    def bias(self, *_):
        return ByDistance(lambda d: -self.slopes * d)


class Turns(PositionEncoding):
    """RoPE as many write it: tables in buffers, of complex numbers and of frequencies."""

    def __init__(self, arch):
        super().__init__(arch)
        speed = 1e4 ** -(torch.arange(0, arch.head_dim, 2) / arch.head_dim)
        angles = torch.arange(2048)[:, None] * speed
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("speed", speed, persistent=False)


MISTAKES = [
    (Divides, "left_padding", "NaN or infinite"),
    (Draws, "reloaded", "is kept in a parameter or by register_buffer"),
    (Parts, "many_positions", "a state is a tuple; it is one tensor"),
    (Parts, "autocast_in_bf16", "a state is a tuple; it is one tensor"),
    (Bare, "whole_rows", "Bare.bias gave a Tensor; it gives ByDistance"),
    (Flat, "whole_rows", r"Dense takes a bias of the shape \(1 or B, 1 or H, T, S\), not"),
    (Few, "whole_rows", r"ByKey takes .* \(1 or B, S, 1 or H\), not .* here B = 3, S = 160, H = 4"),
    (FewDistances, "whole_rows", r"ByDistance takes a bias of the shape \(1 or H, N\), not \(2, "),
    (Asks, "left_padding", "padding among places.tokens is -1"),
    (Peeks, "whole_rows", "later tokens change earlier logits"),
    (Idle, "gradients", "takes no part"),
    (Rounds, "many_positions", "of 8192 positions apart"),
    (Coarse, "many_positions", "of its size from that in fp64"),
    (Halves, "weights_in_bf16", "is torch.bfloat16"),
    (Leaks, "right_padding", "from the oracle's"),
    (Forgets, "cached", "from the oracle's"),
    (Places, "left_padding", "from the oracle's"),
    (Table, "whole_rows", "says how many it has, self.reach"),
    (Lasting, "constructor_values", "depends on torch's global generator"),
]


def noting(name):
    """A method that notes what it is given, and does as NoPE."""

    def noted(self, *given):
        if name == "update":
            tensors = [*vars(given[2]).values()]  # of LayerOutputs
        else:
            tensors = [x for x in given if isinstance(x, torch.Tensor)]
        Noted.given.setdefault(name, set()).update(x.dtype for x in tensors)
        Noted.given[name].add(torch.is_autocast_enabled("cpu"))
        return getattr(PositionEncoding, name)(self, *given)

    return noted


class Noted(PositionEncoding):
    given: ClassVar = {}
    embed, rotate, bias, update = map(noting, ("embed", "rotate", "bias", "update"))


OTHERS = [Shared, Noted, Multiplies, Unset, Columns, Careful, Turns]


@pytest.fixture
def section(monkeypatch):
    """The section ``model`` of a class of this file, as if a package had brought it."""
    module = types.ModuleType("mistaken.encodings")
    for cls in (*(mistake[0] for mistake in MISTAKES), *OTHERS):
        monkeypatch.setattr(cls, "__module__", "mistaken.encodings")
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "mistaken", types.ModuleType("mistaken"))
    monkeypatch.setitem(sys.modules, "mistaken.encodings", module)
    return lambda cls: {"name": "mistaken", "_target_": f"mistaken.encodings.{cls.__name__}"}


@pytest.mark.parametrize(
    ("cls", "check", "told"), MISTAKES, ids=lambda x: getattr(x, "__name__", None)
)
def test_a_mistake_is_found(section, cls, check, told):
    with pytest.raises(NonconformingError, match=told):
        outcome_of(check, section(cls))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_encoding_may_place_tokens_by_what_they_are(section, situation):
    """Rows and columns of a text: ``start`` sees the tokens, also those that are cached."""
    if situation == "many_positions":  # it tells columns apart, which are few
        return
    outcome = outcome_of(situation, section(Columns))
    assert outcome.allowed is None or outcome.difference < outcome.allowed


def test_a_token_counts_from_the_line_that_it_is_in(section):
    decoder = conformance.random_decoder(section(Columns)).eval()
    tokens = torch.tensor([[5, 6, NEWLINE, 7, 8, NEWLINE, 9]])
    expected = random_rope(decoder)(tokens, positions_BT=torch.tensor([[0, 1, 2, 0, 1, 2, 0]]))
    assert torch.equal(decoder(tokens), expected)


def random_rope(decoder):
    """RoPE with the same weights."""
    rope = conformance.random_decoder(model_of("rope"))
    rope.load_state_dict(decoder.state_dict())
    return rope.eval()


def test_a_bias_is_computed_in_fp32_whenever_it_is(section):
    """Also one that is made of a matrix product, inside of autocast and long after ``bias``."""
    outcome = outcome_of("autocast_in_bf16", section(Multiplies))
    assert outcome.difference < outcome.allowed


@pytest.mark.parametrize("situation", ["autocast_in_bf16", "weights_in_bf16"])
def test_every_method_is_given_at_least_fp32(section, situation):
    Noted.given = {}
    outcome_of(situation, section(Noted))
    wide = {torch.float32, torch.float64, False}  # fp64: the oracle's
    assert Noted.given == dict.fromkeys(("embed", "rotate", "bias", "update"), wide)


@pytest.mark.parametrize("situation", ["whole_rows", "cached", "window_and_sinks", "gradients"])
def test_heads_may_share_a_bias(section, situation):
    """Also where a kernel looks it up for each head."""
    outcome = outcome_of(situation, section(Shared))
    assert outcome.difference < outcome.allowed


@pytest.mark.parametrize("situation", ["whole_rows", "gradients", "many_positions", "reloaded"])
def test_what_is_no_mistake_passes(section, situation):
    outcome = outcome_of(situation, section(Careful))
    assert outcome.difference < outcome.allowed


def test_buffers_keep_their_precision(section):
    """Frequencies of 16 bits, or complex numbers without their imaginary part, would be others."""
    decoder = conformance.random_decoder(section(Turns))
    wide = {name: buffer.clone() for name, buffer in decoder.named_buffers()}
    decoder.to(torch.bfloat16)
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}
    assert len(wide) == 4
    for name, buffer in decoder.named_buffers():
        assert torch.equal(buffer, wide[name])
    speeds = [x for name, x in decoder.double().named_buffers() if "speed" in name]
    assert {x.dtype for x in speeds} == {torch.float64}


def test_a_parameter_without_values_is_refused(section):
    with pytest.raises(ConfigError, match="Unset leaves its parameter r without values"):
        conformance.random_decoder(section(Unset))


@pytest.mark.parametrize(
    ("name", "told"), [("rope", "distances only"), ("fire", "the positions themselves")]
)
def test_what_a_shift_changes_is_said(name, told):
    assert told in outcome_of("shifted_positions", model_of(name)).remark
