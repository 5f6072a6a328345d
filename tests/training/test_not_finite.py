"""Where a number that is not finite is first seen."""

import pytest
import torch

from tape_exp.training.not_finite import first_seen
from tests.conftest import make_decoder


def spoil_parameter(decoder):
    decoder.layers[1].q.weight.data[0, 0] = torch.nan


def spoil_attention(decoder):
    decoder.layers[0].attend = lambda scores, v, *_: (torch.full_like(v, torch.nan), None)


def overflow(decoder):
    decoder.layers[1].up.weight.data.fill_(3e38)


@pytest.mark.parametrize(
    ("spoil", "loss", "place"),
    [
        (spoil_parameter, torch.sum, "in the parameter layers.1.q.weight (layer 2, with RoPE)"),
        (spoil_attention, torch.sum, "in what layers.0.o (layer 1, with RoPE) is given"),
        (overflow, torch.sum, "in what layers.1.up (layer 2, with RoPE) gives"),
        (lambda _: None, lambda x: (0 * x.sum()).sqrt(), "in the gradient of the parameter head.w"),
        (lambda _: None, torch.sum, ""),
    ],
)
def test_the_first_place_that_is_not_finite_is_named(spoil, loss, place, arch):
    decoder = make_decoder("rope", arch)
    spoil(decoder)
    tokens = torch.zeros((1, 4), dtype=torch.long)
    found = first_seen(decoder, lambda: loss(decoder(tokens)))
    assert found.startswith(place)
    assert bool(found) == bool(place)
