"""What generation writes; that cached decoding is full decoding is a check of every encoding."""

from dataclasses import replace

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.generation import generate, new_cache
from tests.conftest import MODELS, make_decoder

TOKENS = torch.randint(0, 14, (3, 20), generator=torch.Generator().manual_seed(0))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("name", ["rope", "tape"])
@pytest.mark.parametrize(
    "words",
    [
        ("model.scaling.method=dynamic",),
        (
            "model.scaling.method=longrope",
            "+model.scaling.short_factor=[1,1,1,1]",
            "+model.scaling.long_factor=[1,2,4,8]",
        ),
    ],
    ids=["dynamic", "longrope"],
)
def test_frequencies_by_length_are_those_of_the_whole_row(name, words, arch):
    """In a cache that will hold more than is trained, from the first token on; rows of other
    lengths beside them change nothing.
    """
    model = make_decoder(name, arch, *words, "model.scaling.original=12").eval()
    randomise(model)
    with torch.no_grad():
        full, cache = model(TOKENS), new_cache(model, 20, None, 3)
        parts = [model(part, cache=cache) for part in TOKENS.split([7, 1, 1, 11], 1)]
        assert (torch.cat(parts, 1) - full).abs().max() < 1e-4
        assert (model(TOKENS[:, :12]) - full[:, :12]).abs().max() > 1e-2
    prompts = [TOKENS[0, :5], TOKENS[1, :12], TOKENS[2, :1]]
    assert generate(model, prompts, 8) == [generate(model, [row], 8)[0] for row in prompts]


@pytest.mark.parametrize("name", ["tape", "fox"])
def test_greedy_generation_equals_full_decoding(name, arch):
    model = make_decoder(name, arch).eval()
    randomise(model)
    tokens = TOKENS[:1, :6]
    with torch.no_grad():
        for _ in range(10):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    assert generate(model, [TOKENS[0, :6]], 10)[0] == tokens[0, 6:].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_serves_a_layer_between_the_first_and_the_last(name, arch):
    """Whose state is neither the one that all heads share nor the one that nobody reads."""
    model = make_decoder(name, replace(arch, layers=3)).eval()
    with torch.no_grad():
        cache = new_cache(model, 20, None, 3, RowSampler(5))
        parts = [model(part, cache=cache) for part in TOKENS.split([7, 1, 1, 11], 1)]
        positions = cache.positions_BS.expand(3, -1)
        full = model(TOKENS, positions_BT=positions, sampler=RowSampler(5))
    assert (torch.cat(parts, 1) - full).abs().max() < 1e-4


def test_each_row_stops_at_its_own_eos(arch):
    model = make_decoder("rope", arch).eval()
    randomise(model)
    free = generate(model, list(TOKENS), 12)
    eos = free[0][3]
    stopped = generate(model, list(TOKENS), 12, eos=eos)
    for row, whole in zip(stopped, free, strict=True):
        assert row == (whole[: whole.index(eos)] if eos in whole else whole)


def test_sampling_follows_the_probabilities(arch):
    model = make_decoder("rope", arch).eval()
    randomise(model)
    prompt = TOKENS[0, :6]
    with torch.no_grad():
        expected = (model(prompt[None])[0, -1] / 0.8).softmax(-1)
    drawn = generate(model, [prompt] * 4000, 1, temperature=0.8, generator=generator())
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=14) / 4000
    assert (counts - expected).abs().max() < 0.03
