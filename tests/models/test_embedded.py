"""Encodings that are added to the input, and positions that are drawn at random, against loops that
follow their papers token by token.
"""

import math
import re

import pytest
import torch

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder, token_nll
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.positions.abacus import Abacus
from tape_exp.models.positions.alibi import alibi_slopes
from tape_exp.models.positions.fire import FIRE
from tape_exp.models.positions.learned import Learned
from tape_exp.models.positions.randpe import RandomPositions, RandPE
from tape_exp.settings.construct import constructor, takes
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.tasks.arithmetic import VOCABULARY
from tape_exp.tasks.stability import shift_rows
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
    return torch.stack([model.layers[0].position.table[i] for i in ids])


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


def test_only_the_first_layer_has_a_table(arch):
    model = make_decoder("learned", arch)
    assert [n for n in model.state_dict() if "position" in n] == ["layers.0.position.table"]
    assert model.positional_count() == 48 * 32
    assert model.layers[0].position.table.std().item() == pytest.approx(0.02, rel=0.1)


def test_sinusoids_see_distances_in_their_products(arch):
    encoding = make_position("sinusoidal", arch)
    E = encoding.embed(torch.arange(40, dtype=torch.float64)[None])[0]
    products = E @ E.T
    assert torch.allclose(products[3:, 3:], products[:-3, :-3], atol=1e-14)
    assert products[0, 0].item() == pytest.approx(0.02**2 * 16)


@pytest.mark.parametrize("name", ["abacus", "coupling"])
def test_ids_of_a_sum(name, arch):
    encoding = make_position(name, arch).eval()
    one, other = encoding.position_ids(rows("12+9=03", "7+805=5")).tolist()
    assert one == [1, 2, 0, 1, 0, 1, 2]
    assert other == [1, 0, 1, 2, 3, 0, 1]
    encoding.train()
    shifted = encoding.position_ids(rows("12+9=03"), RowSampler(5))
    k = int(shifted[0, 0]) - 1
    separators = k if name == "coupling" else 0
    expected = [k + 1, k + 2, separators, k + 1, separators, k + 1, k + 2]
    assert (k > 0, shifted[0].tolist()) == (True, expected)


def test_offsets_are_those_of_the_row_and_reach_both_ends(arch):
    encoding = make_position("abacus", arch, "model.max_offset=3")
    found = encoding.position_ids(torch.full((400, 1), 4), RowSampler(5)).flatten() - 1
    assert torch.bincount(found).tolist() == pytest.approx([100] * 4, abs=30)
    later = encoding.position_ids(torch.full((390, 1), 4), RowSampler(5, first=10)).flatten() - 1
    assert torch.equal(later, found[10:])
    assert not (encoding.position_ids(torch.full((9, 1), 4)) - 1).any()


@pytest.mark.parametrize("name", ["abacus", "coupling"])
def test_a_number_goes_on_through_the_steps_of_a_cache(name, arch):
    """Rows padded on the left, in training with the offset of their number, and any chunks."""
    model = make_decoder(name, arch)
    randomise(model)
    texts = ["2+8=", "12345+6=7"]
    whole = [text + "34+50" for text in texts]
    width = len(whole[1])
    padded = torch.tensor([tokens_of(text.rjust(width, "5")) for text in whole])
    with torch.no_grad():
        cache = new_cache(model, width, torch.tensor([5, 0]), 2, RowSampler(5))
        parts = [model(part, cache=cache) for part in padded.split([6, 1, 1, 3, 3], 1)]
        for row, skip in enumerate((5, 0)):
            alone = model(padded[row : row + 1, skip:], sampler=RowSampler(5, first=row))
            assert (torch.cat(parts, 1)[row, skip:] - alone[0]).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["learned", "abacus"])
def test_losses_and_chosen_logits_are_those_of_all_logits(name, arch):
    model, tokens, labels = make_decoder(name, arch), rows(*SUMS), rows(*SUMS).flip(1)
    randomise(model)
    with torch.no_grad():
        logits = model(tokens, sampler=RowSampler(5))
        nll = model(tokens, labels_BT=labels, sampler=RowSampler(5))
        some = model(tokens, logits_at=torch.tensor([3, 15]), sampler=RowSampler(5))
    expected = token_nll(logits, torch.nn.Identity(), labels)
    assert torch.allclose(nll, expected, atol=1e-6)
    assert torch.allclose(some, logits.flatten(0, 1)[[3, 15]], atol=1e-6)


def test_a_table_ends_in_a_sentence(arch):
    wanted = r"model\.length=40 is .* learned, .* 48 tokens; model\.length=48 would do"
    with pytest.raises(ConfigError, match=wanted):
        make_position("learned", arch, "model.length=40")
    model = make_decoder("learned", arch).eval()
    assert len(generate(model, [[4] * 40], 8)[0]) == 8
    with pytest.raises(ConfigError, match=r"model\.length=49 would do"):
        generate(model, [[4] * 40], 9)
    longer = make_decoder("learned", arch, "model.length=49").eval()
    assert len(generate(longer, [[4] * 40], 9)[0]) == 9
    tokens = torch.full((1, 40), 4)
    for first, told in (
        (9, r"position 48 is asked for; model\.length=49"),
        (-1, "position -1 "),
    ):
        with pytest.raises(ConfigError, match=rf"model\.length=48 is .*0 to 47, and {told}"):
            model(tokens, positions_BT=torch.arange(first, first + 40)[None])
    with pytest.raises(ConfigError, match=r"model\.length=50 would do"):
        shift_rows(model, tokens, 4, [1], shift=10)


@pytest.mark.parametrize("name", ["abacus", "coupling"])
def test_a_task_without_digits_is_told_apart(name):
    with pytest.raises(ConfigError, match=r"which tokens are digits.* task=arithmetic does"):
        make_position(name, Arch(layers=1, width=8, heads=2, ffn=8))


def test_alibi_and_fire_on_random_positions_are_those_on_the_positions_of_randpe(arch):
    drawn = make_position("randpe", arch).positions(2, 9, CPU, RowSampler(5))
    for name in ("alibi", "fire"):
        encoding, plain = make_position(f"{name}_randpe", arch), make_position(name, arch)
        encoding.init_weights(torch.Generator().manual_seed(0))
        plain.init_weights(torch.Generator().manual_seed(0))
        positions = encoding.positions(2, 9, CPU, RowSampler(5))
        assert torch.equal(positions, drawn)
        bias = encoding.bias(positions, positions)
        assert torch.equal(bias, plain.bias(positions, positions))
        if name == "alibi":
            step = float(drawn[1, 7] - drawn[1, 4])
            assert bias[1, :, 7, 4].tolist() == pytest.approx([-step * r for r in alibi_slopes(4)])
        assert not torch.equal(bias[0], bias[1])


def test_a_draw_leaves_out_some_of_the_positions_that_the_encoding_gives(arch):
    """Step by step: the places of the smallest of so many numbers as there are positions."""
    encoding = make_position("randpe", arch)
    numbers = RowSampler(5).integers(3, 96).tolist()
    expected = [sorted(sorted(range(96), key=row.__getitem__)[:9]) for row in numbers]
    assert encoding.positions(3, 9, CPU, RowSampler(5)).tolist() == expected


def test_an_encoding_on_random_positions_has_the_keys_of_both(arch):
    fire = make_position("fire_randpe", arch, "model.hidden=5", "model.range_factor=3")
    assert (fire.inner.out_features, fire.range) == (5, 144)
    rope = make_position("randpe", arch, "+model.scaling.method=linear", "model.theta=9")
    assert (rope.scaling.method, rope.theta, rope.range) == ("linear", 9, 96)
    assert list(constructor(RandPE)[0]) == ["arch", "theta", "scaling", "range_factor"]
    assert takes(RandPE, "scaling")
    assert not takes(RandPE, "settings")
    with pytest.raises(ConfigError, match=r"model\.hiden is not known\. Did you mean 'hidden'"):
        make_position("fire_randpe", arch, "+model.hiden=5")
    with pytest.raises(ConfigError, match=r"model\.range_factor=many: "):
        make_position("fire_randpe", arch, "model.range_factor=many")


class RandomLearned(RandomPositions, Learned):
    """As a user would write it."""


class AbacusFIRE(Abacus, FIRE):
    """As a user would write it."""


def test_abacus_goes_with_a_relative_encoding(arch):
    assert list(constructor(AbacusFIRE)[0]) == ["arch", "hidden", "c", "threshold", "max_offset"]
    model = Decoder(arch, lambda a: AbacusFIRE(a, max_offset=7, hidden=5)).eval()
    encodings = [block.position for block in model.blocks()]
    assert encodings[0].table.std().item() == pytest.approx(0.02, rel=0.1)
    assert encodings[1].inner.out_features == 5
    randomise(model)
    tokens = rows(*SUMS)
    with torch.no_grad():
        full, cache = model(tokens), new_cache(model, tokens.shape[1], None, 2)
        parts = [model(part, cache=cache) for part in tokens.split(3, 1)]
        assert (torch.cat(parts, 1) - full).abs().max() < 1e-4
        encodings[0].table.zero_()
        assert (model(tokens) - full).abs().max() > 1e-2
        for encoding in encodings:
            encoding.outer.weight.zero_()
        nope = make_decoder("nope", arch)
        nope.load_state_dict({k: v for k, v in model.state_dict().items() if "position" not in k})
        assert (model(tokens) - nope(tokens)).abs().max() < 1e-5, "a constant bias changes nothing"


def test_a_table_on_random_positions_must_hold_them_all(arch):
    with pytest.raises(ConfigError, match=r"model\.length=96 would do"):
        RandomLearned(arch).positions(2, 9, CPU, RowSampler(5))
    encoding = RandomLearned(arch, length=96)
    assert int(encoding.positions(50, 9, CPU, RowSampler(5)).max()) == 95
