"""Encodings that are added to the input, and positions that are drawn at random, against loops that
follow their papers token by token.
"""

import math
import re

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.places import Places
from tape_exp.settings.schema import Arch
from tape_exp.tasks.sums import VOCABULARY
from tests.conftest import make_decoder, make_position

SUMS = ("12+9=03", "7+805=505<eos>")  # 21 + 9 = 30; 7 + 508 = 515, with a wrong answer
CPU = torch.device("cpu")


def tokens_of(text: str) -> list[int]:
    return [VOCABULARY.index(word) for word in re.findall("<.*?>|.", text)]


def rows(*texts: str) -> torch.Tensor:
    """Padded on the right, as the task does it."""
    longest = max(len(tokens_of(text)) for text in texts)
    return torch.tensor([tokens_of(t) + [0] * (longest - len(tokens_of(t))) for t in texts])


def places(tokens: list[int]) -> list[int]:
    """The place of each digit in its number, from 1, and 0 for all else."""
    found: list[int] = []
    for token in tokens:
        before = found[-1] if found else 0
        found.append(before + 1 if VOCABULARY[token].isdigit() else 0)
    return found


def sinusoid(position: float, C: int = 32) -> list[float]:
    return [
        0.02 * (math.cos if c % 2 else math.sin)(position / 10_000 ** ((c - c % 2) / C))
        for c in range(C)
    ]


def embedded(name: str, model, tokens: list[int], offset: int) -> torch.Tensor:
    """What is added to each token of a row, (T, C)."""
    if name == "sinusoidal":
        return torch.tensor([sinusoid(p) for p in range(len(tokens))], dtype=torch.float64)
    ids = list(range(len(tokens))) if name == "learned" else places(tokens)
    if name == "abacus":
        ids = [place + offset if place else 0 for place in ids]
    if name == "coupling":
        ids = [place + offset for place in ids]
    return torch.stack([model.layers[0].position.embedding[i] for i in ids])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["sinusoidal", "learned", "abacus", "coupling"])
def test_a_model_is_one_without_positions_on_other_embeddings(name, training, arch):
    """NoPE with a word for every token of every row, whose embedding holds what is added."""
    model = make_decoder(name, arch).double().train(training)
    randomise(model)
    tokens = rows(*SUMS)
    given = {"sampler": RowSampler(5)} if training else {}
    offsets = [0, 0]
    if name in ("abacus", "coupling") and training:
        drawn = RowSampler(5).integers(2, 1).flatten().tolist()
        offsets = [int(100 * number / 2**32) for number in drawn]
        assert offsets[0] != offsets[1]
    with torch.no_grad():
        positions = torch.arange(tokens.shape[1], dtype=torch.float64)[None]
        given |= {"positions_BT": positions} if name == "sinusoidal" else {}
        found = model(tokens, **given)
        nope = make_decoder("nope", Arch(**vars(arch) | {"vocab": tokens.numel()})).double()
        weights = {k: v for k, v in model.state_dict().items() if ".position." not in k}
        added = [
            embedded(name, model, row, offset)
            for row, offset in zip(tokens.tolist(), offsets, strict=True)
        ]
        words = model.embedding(tokens) + torch.stack(added)
        nope.head = model.head
        nope.load_state_dict(weights | {"embedding.weight": words.flatten(0, 1)})
        expected = nope(torch.arange(tokens.numel()).view(tokens.shape))
    assert (found - expected).abs().max() < 1e-12
    without = make_decoder("nope", arch).double()
    without.load_state_dict(weights)
    assert (found - without(tokens)).abs().max() > 1e-2


def ids_of(encoding, tokens: torch.Tensor, sampler: RowSampler | None = None) -> torch.Tensor:
    """The rows of the table that an encoding adds to its tokens, (B, T)."""
    with torch.no_grad():
        encoding.embedding.copy_(torch.arange(len(encoding.embedding))[:, None].float())
        positions = torch.arange(float(tokens.shape[1]))[None]
        places = Places(tokens, tokens, positions, sampler=sampler)
        return encoding.embed(torch.zeros(*tokens.shape, 32), places)[..., 0].long()


def test_offsets_are_those_of_the_row_and_reach_both_ends(arch):
    encoding = make_position("abacus", arch, "model.max_offset=3")
    found = ids_of(encoding, torch.full((400, 1), 4), RowSampler(5)).flatten() - 1
    assert torch.bincount(found).tolist() == pytest.approx([100] * 4, abs=30)
    later = ids_of(encoding, torch.full((390, 1), 4), RowSampler(5, first=10)).flatten() - 1
    assert torch.equal(later, found[10:])
    assert not (ids_of(encoding, torch.full((9, 1), 4)) - 1).any()


@pytest.mark.parametrize("name", ["alibi", "fire"])
def test_a_bias_on_random_positions_is_that_of_their_distances(name, arch):
    """In a model, against the plain one on the positions that were drawn."""
    model, plain = make_decoder(f"{name}_randpe", arch), make_decoder(name, arch)
    tokens = rows(*SUMS)
    positions = model.positions(2, tokens.shape[1], CPU, RowSampler(5))
    with torch.no_grad():
        found = model(tokens, sampler=RowSampler(5))
        assert torch.equal(found, plain(tokens, positions_BT=positions))
        assert not torch.allclose(found, plain(tokens), atol=1e-4)
