"""The decoder: Llama's arithmetic, and the same backbone for every positional encoding."""

from dataclasses import replace

import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import LogitsAt, TokenNll
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.schema import Arch
from tests.conftest import DIGITS, MODELS, make_decoder


def test_155_m_backbone_has_the_papers_size():
    with torch.device("meta"):
        model = make_decoder("rope", Arch(layers=12, width=768, heads=12, ffn=3072, vocab=32_000))
    assert model.parameter_count() == 162_417_408
    assert model.parameter_count() / 2**20 == pytest.approx(154.89, abs=0.01)


class Reads(PositionEncoding):
    """What a task says of its digits is read where it is needed, and kept nowhere."""

    def embed(self, x, places):
        self.seen = self.arch.digits
        return x


class Declares(Reads):
    knows_digits = True


@pytest.mark.parametrize(("encoding", "told"), [(Reads, ()), (Declares, DIGITS)])
def test_only_what_declares_it_is_told_which_tokens_are_digits(encoding, told, arch):
    model = Decoder(replace(arch, digits=DIGITS), encoding)
    model(torch.zeros(1, 3, dtype=torch.long))
    assert model.encodings()[0].seen == told
    assert model.knows_digits() == (told == DIGITS)


@pytest.mark.long
@pytest.mark.parametrize("name", [m for m in MODELS if m != "rope"])
def test_every_model_begins_with_the_same_backbone(name, arch):
    rope, other = make_decoder("rope", arch).state_dict(), make_decoder(name, arch).state_dict()
    assert all(torch.equal(value, other[key]) for key, value in rope.items())


@pytest.mark.parametrize("frozen", [False, True])
def test_flops_count_matches_torchs_own_counter(frozen, arch):
    """Torch counts the products of a training step; ours leaves out half of the attention, which
    causality does not need. A frozen matrix saves that of its gradient.
    """
    from torch.utils.flop_counter import FlopCounterMode

    model = make_decoder("rope", arch, backend="explicit")
    model.layers[1].up.weight.requires_grad = not frozen
    tokens = torch.zeros(1, 32, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    ours = model.flops_per_token(32) * 32
    attention = 6 * arch.layers * arch.width * 32 * 32
    norms = 6 * 32 * arch.width * (2 * arch.layers + 1)  # RMSNorm weights are no matrix products
    assert counter.get_total_flops() == ours + attention - norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scored_labels_are_the_cross_entropy_of_the_logits(dtype, arch):
    """In pieces: more tokens than one piece holds, labels that do not count, logits far from zero,
    autocast.
    """
    model = make_decoder("rope", arch)
    randomise(model)
    tokens = torch.randint(0, arch.vocab, (9, 48), generator=torch.Generator().manual_seed(0))
    labels = tokens.roll(-1, 1)
    labels[::2, 5:9] = -100
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        found = model(tokens, output=TokenNll(labels))
        logits = model(tokens).float()
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100
    )
    assert found.dtype == torch.float32
    assert (found - expected.view(labels.shape)).abs().max() < (
        1e-5 if dtype == torch.float32 else 2e-2
    )
    assert (found[::2, 5:9] == 0).all()


def test_logits_of_chosen_tokens_are_those_of_all(arch):
    model = make_decoder("tape", arch)
    randomise(model)
    tokens = torch.randint(0, arch.vocab, (3, 10), generator=torch.Generator().manual_seed(0))
    places = torch.tensor([0, 9, 10, 25])
    with torch.no_grad():
        assert torch.allclose(
            model(tokens, output=LogitsAt(places)), model(tokens).flatten(0, 1)[places], atol=1e-6
        )
