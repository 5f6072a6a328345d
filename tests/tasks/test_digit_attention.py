"""Where the digits of an answer look: attention made by hand, and that of real decoders."""

import math

import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.trace import trace
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.tasks.diagnostics.digit_attention import (
    address_metrics,
    address_names,
    digit_attention,
    gaze,
)
from tape_exp.tasks.sums import EQUALS, PLUS
from tape_exp.training.on_device import OnDevice
from tests.conftest import make_decoder, silent

ARCH = Arch(layers=2, width=32, heads=4, ffn=32)
N = 3  # digits of each operand: 0 1 2 +3 4 5 6 =7, and the answer from 8 on


def by_hand(*looks):
    """Attention of one row of 11 tokens whose query for digit t has equal mass on ``looks[t]``;
    all other queries look at the first key.
    """
    attention = torch.zeros(11, 11)
    attention[:, 0] = 1
    for t, keys in enumerate(looks):
        attention[7 + t] = 0
        attention[7 + t, list(keys)] = 1 / len(keys)
    return attention


HEADS = {
    "both aligned digits": (by_hand({0, 4}, {1, 5}, {2, 6}), 1, 0, 2),
    "those of the first operand": (by_hand({0}, {1}, {2}), 1, 0, 1),
    "one digit too far": (by_hand({1, 5}, {2, 6}, {1, 5}), 0, 1, 2),
    # Beside digit 0 of B is + (3), and beside digit 2 of A too: no neighbours.
    "the plus": (by_hand({3}, {3}, {3}), 0, 0, 1),
    "the first digit of A": (by_hand({0}, {0}, {0}), 1 / 3, 1 / 3, 1),
    "all digits": (by_hand(*[{0, 1, 2, 4, 5, 6}] * 3), 1 / 3, 4 / 9, 6),
    "itself": (by_hand({7}, {8}, {9}), 0, 0, 1),
}


def test_attention_made_by_hand_is_measured_as_it_was_made():
    attention = torch.stack([head for head, *_ in HEADS.values()])
    found = gaze(attention.expand(2, -1, -1, -1), N)
    for measured, (_, *expected) in zip(found, HEADS.values(), strict=True):
        assert measured.tolist() == pytest.approx(expected, abs=1e-5)


def test_rows_and_digits_are_averaged():
    one, other = by_hand({0, 4}, {1, 5}, {2, 6}), by_hand({1}, {3}, {3})
    found = gaze(torch.stack([one, other])[:, None], N)[0]
    assert found.tolist() == pytest.approx([1 / 2, 1 / 6, 3 / 2])


@pytest.mark.parametrize("name", ["rope", "fire", "nope", "tape"])
def test_every_encoding_is_asked_alike(name):
    """Against a loop over the symbols of each row, on the probabilities of the trace."""
    task = Arithmetic(ARCH, Optim(batch=8, max_steps=2, lr=1e-3), 0, 3, 4, samples_per_cell=5)
    decoder = make_decoder(name, task.arch).eval()
    randomise(decoder)
    tokens = task.grid_batch([(N, N)])["inputs"]
    found = digit_attention(decoder, tokens, N)
    for layer, traced in trace(decoder, tokens).items():
        total = torch.zeros(4, 3)
        for row, symbols in enumerate(tokens.tolist()):
            plus, equals = symbols.index(PLUS), symbols.index(EQUALS)
            for t in range(N):
                p = traced.attention[row, :, equals + t]
                digits = [t, plus + 1 + t]
                beside = [t - 1, t + 1, plus + t, plus + 2 + t]
                beside = [key for key in beside if key in {*range(plus), *range(plus + 1, equals)}]
                keys = [math.exp(-sum(x * math.log(x) for x in h if x > 0)) for h in p.tolist()]
                of_keys = torch.tensor(keys)
                total += torch.stack([p[:, digits].sum(1), p[:, beside].sum(1), of_keys], 1)
        assert torch.allclose(found[layer], total / (N * len(tokens)), atol=1e-5)


def test_the_head_is_chosen_at_the_trained_length_and_followed_to_the_next():
    trained = {
        1: torch.tensor([[0.2, 0, 1], [0.5, 0, 2]]),
        2: torch.tensor([[0.9, 0, 3], [0, 1, 4]]),
    }
    longer = {
        1: torch.tensor([[1, 0, 5], [0.4, 0.3, 6]]),
        2: torch.tensor([[0.1, 0.8, 7], [1, 0, 8]]),
    }
    found = address_metrics({"id": trained, "next": longer})
    expected = {"id/aligned@1": 50, "id/keys@1": 2, "next/aligned@1": 40, "next/neighbours@1": 30}
    expected |= {"id/aligned": 90, "next/aligned": 10, "next/neighbours": 80, "next/keys": 7}
    for name, value in expected.items():
        assert found[f"address/{name}"] == pytest.approx(value)
    assert found.keys() == {*address_names(["id", "next"], 2)}


@pytest.mark.parametrize(("longest", "lengths"), [(3, ["id"]), (4, ["id", "next"])])
def test_addition_measures_the_longest_trained_sums_and_those_beyond(longest, lengths):
    task = Arithmetic(ARCH, Optim(batch=8, max_steps=2, lr=1e-3), 0, 3, longest, samples_per_cell=4)
    decoder = make_decoder("rope", task.arch).eval().requires_grad_(False)
    metrics = task.evaluate(OnDevice(decoder, torch.device("cpu")), silent).metrics
    own = {name for name in metrics if name.startswith("address/")}
    assert own == {*address_names(lengths, 2)}
    assert own <= {*task.metric_names()}
