"""The checks of an encoding find the mistakes that they are there for."""

import sys
import types

import pytest
import torch
from torch import nn

from tape_exp.models import conformance
from tape_exp.models.conformance import CHECKS, NonconformingError
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.selective_rope import SelectiveRoPE
from tape_exp.models.scores import ByDistance, ByKey, Dense
from tests.conftest import model_of

H = conformance.ARCH.heads


class Peeks(PositionEncoding):
    """A bias that depends on the last of the keys."""

    def bias(self, q, k, x, positions):
        last = k[:, -1].sum((1, 2))[:, None, None, None]
        return Dense(last * torch.arange(k.shape[1], dtype=k.dtype).expand(1, H, q.shape[1], -1))


class Idle(PositionEncoding):
    """A parameter that nothing reads."""

    def __init__(self, arch):
        super().__init__(arch)
        self.unused = nn.Parameter(torch.ones(arch.heads))


class Rounds(PositionEncoding):
    """A state in bf16."""

    def start(self, positions):
        return positions[..., None].to(torch.bfloat16).float()


class Coarse(PositionEncoding):
    """A bias of distances that were bf16."""

    def bias(self, q, k, x, positions):
        return ByDistance(
            lambda d: -(d if d.dtype == torch.float64 else d.bfloat16()).expand(H, -1)
        )


class Leaks(PositionEncoding):
    """A bias that depends on the other rows."""

    def bias(self, q, k, x, positions):
        return ByKey(k.mean(0).sum(-1).expand(len(q), -1, -1))


class Halves(PositionEncoding):
    """A bias in bf16."""

    def bias(self, q, k, x, positions):
        return ByKey(k.bfloat16().sum(-1))


class Forgets(SelectiveRoPE):
    """Angles that are summed over all tokens so far, which are said to be cached."""

    cacheable = True


MISTAKES = [
    (Peeks, "future_tokens_do_not_matter", "later tokens change earlier logits"),
    (Idle, "every_parameter_learns", "takes no part"),
    (Rounds, "positions_stay_distinct", "of 8192 positions apart"),
    (Coarse, "positions_stay_distinct", "of its size from that in fp64"),
    (Halves, "sixteen_bit_weights_keep_positions_in_fp32", "is torch.bfloat16"),
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


@pytest.mark.parametrize(
    ("name", "told"), [("rope", "distances only"), ("fire", "the positions themselves")]
)
def test_what_a_shift_changes_is_said(name, told):
    assert told in CHECKS["shifted_positions"](model_of(name))
