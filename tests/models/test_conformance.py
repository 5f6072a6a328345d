"""The checks of an encoding find the mistakes that they are there for."""

import sys
import types

import pytest
import torch
from torch import nn

from tape_exp.models import conformance
from tape_exp.models.conformance import CHECKS, NonconformingError
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tests.conftest import model_of


class Peeks(PositionEncoding):
    """A bias that depends on the last of the keys."""

    def features(self, x_BTC, state, past):
        return {"x": x_BTC}

    def contextual_bias(self, q_BTHD, k_BSKD, features, bias):
        last = k_BSKD[:, -1].sum((1, 2))
        shape = (-1, q_BTHD.shape[2], q_BTHD.shape[1], k_BSKD.shape[1])
        return last.view(-1, 1, 1, 1).expand(shape) * torch.arange(k_BSKD.shape[1])


class Idle(PositionEncoding):
    """A parameter that nothing reads."""

    def __init__(self, arch):
        super().__init__(arch)
        self.unused = nn.Parameter(torch.ones(arch.heads))


class Rounds(PositionEncoding):
    """Positions in bf16."""

    def positions(self, batch, length, device, sampler=None):
        return torch.arange(length, device=device).to(torch.bfloat16).float()[None]


class Distances(PositionEncoding):
    """A bias of rounded distances, which looks like fp32."""

    def bias(self, q_positions, k_positions):
        near = (q_positions[..., :, None] - k_positions[..., None, :])[:, None]
        near = near if near.dtype == torch.float64 else (near / 32).round() * 32
        return -near.expand(-1, conformance.ARCH.heads, -1, -1)


class Coarse(PositionEncoding):
    """A bias of distances that were bf16, in whatever type it is asked for."""

    def bias(self, q_positions, k_positions):
        near = (q_positions[..., :, None] - k_positions[..., None, :])[:, None]
        return -near.to(torch.bfloat16).to(near.dtype).expand(-1, conformance.ARCH.heads, -1, -1)


class Leaks(PositionEncoding):
    """A bias that depends on the other rows."""

    def contextual_bias(self, q_BTHD, k_BSKD, features, bias):
        shape = (len(q_BTHD), q_BTHD.shape[2], q_BTHD.shape[1], k_BSKD.shape[1])
        return k_BSKD.mean(0).sum((1, 2)).expand(shape)

    def features(self, x_BTC, state, past):
        return {"x": x_BTC}


class Halves(PositionEncoding):
    """A bias in bf16."""

    def bias(self, q_positions, k_positions):
        distance = (q_positions[..., :, None] - k_positions[..., None, :])[:, None]
        return -distance.to(torch.bfloat16).expand(-1, conformance.ARCH.heads, -1, -1)


class Denies(PositionEncoding):
    """A bias by absolute position, which it does not own up to."""

    def bias(self, q_positions, k_positions):
        by_key = (k_positions[:, None, None] * 0.1).sin() * q_positions[:, None, :, None]
        return by_key.expand(-1, conformance.ARCH.heads, -1, -1)


class Claims(RoPE):
    """Relative, but says the opposite."""

    absolute_positions = True


class Shifts(PositionEncoding):
    """Positions that begin at 1, which it does not say."""

    def positions(self, batch, length, device, sampler=None):
        return torch.arange(1.0, length + 1, device=device)[None]


class Forgets(RoPE):
    """A cache in which keys are turned twice."""

    changes_keys = True

    def later_keys(self, k_BSKD, features):
        return k_BSKD * 0.5


MISTAKES = [
    (Peeks, "future_tokens_do_not_matter", "later tokens change earlier logits"),
    (Idle, "every_parameter_learns", "takes no part"),
    (Rounds, "positions_stay_distinct_under_autocast", "of 8192 apart"),
    (Coarse, "positions_stay_distinct_under_autocast", "bias computes in torch.bfloat16"),
    (Halves, "sixteen_bit_weights_keep_positions_in_fp32", "is torch.bfloat16"),
    (Denies, "absolute_positions_says_what_is_true", "is False, but shifts change"),
    (Claims, "absolute_positions_says_what_is_true", "is True, but shifts change"),
    (Shifts, "consecutive_says_what_is_true", "positions begins"),
    (Distances, "positions_stay_distinct_under_autocast", "from that in fp64"),
    (Leaks, "padded_rows_are_rows_alone", "other rows change logits by"),
    (Forgets, "cached_decoding_is_full_decoding", "from those at once"),
]


@pytest.fixture
def section(monkeypatch):
    """The section ``model`` of a class of this file, as if a package had brought it."""
    module = types.ModuleType("mistaken.encodings")
    for cls, *_ in MISTAKES:
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
        CHECKS[check](section(cls))


def test_rows_that_disturb_each_other_are_found(section, monkeypatch):
    written = iter([[[1], [2], [3]], [[1]], [[2]], [[4]]])
    monkeypatch.setattr(conformance, "generate", lambda *_: next(written))
    with pytest.raises(NonconformingError, match="other rows are beside it"):
        CHECKS["padded_rows_are_rows_alone"](section(Shifts))


@pytest.mark.parametrize("name", ["[rope,rope,nope]", "[tape,nope]"])
@pytest.mark.parametrize("check", CHECKS)
def test_patterns_of_any_length_are_checked(name, check):
    CHECKS[check](model_of(name))


def test_every_check_is_tried_with_a_mistake():
    tried = {check for _, check, _ in MISTAKES} | {"padded_rows_are_rows_alone"}
    assert tried == set(CHECKS)
