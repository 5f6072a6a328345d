"""What the module does besides the loss: what is drawn and dropped, and lengths of a multiple."""

from types import SimpleNamespace

import pytest
import torch

from tape_exp.machine import processes
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import randomise
from tape_exp.models.head import TokenNll
from tape_exp.settings.compose import compose_config
from tape_exp.settings.schema import Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training.module import LanguageModule
from tape_exp.training.on_device import OnDevice
from tests.conftest import MODELS, make_decoder

OPTIM = Optim(batch=4, max_steps=100, lr=1e-3)


def module_of(model, arch, *overrides):
    task = Arithmetic(arch, OPTIM, 0, 2, 3)
    decoder = make_decoder(model, task.arch, *overrides)
    randomise(decoder, std=0.1)
    return LanguageModule(decoder, task, compose_config([]))


@pytest.mark.slow
def test_dropped_values_depend_on_the_seed_and_the_rows_alone(arch):
    """So that a run that goes on drops what it would have dropped, and no two devices the same."""
    module = module_of("rope", arch)
    module.decoder.layers[0].register_module("drop", torch.nn.Dropout(0.5))
    seen = {}
    for seed, first in ((0, 0), (0, 4), (1, 0), (0, 0)):
        cfg = compose_config([f"seed={seed}"])
        again = LanguageModule(module.decoder, module.task, cfg)
        again._trainer = SimpleNamespace(
            global_step=0, accumulate_grad_batches=1, world_size=1, loggers=[]
        )
        batch = module.task.train_batch(0, 4)
        again.training_step(batch | {"first": first, "loss_tokens": torch.tensor(8)}, 0)
        found = torch.rand(3).tolist()
        assert seen.setdefault((seed, first), found) == found
    assert len({tuple(found) for found in seen.values()}) == 3
    torch.manual_seed(9)
    before = torch.random.get_rng_state()
    plain = module_of("rope", arch)
    plain._trainer = again._trainer
    plain.training_step(batch | {"first": 0, "loss_tokens": torch.tensor(8)}, 0)
    assert torch.equal(torch.random.get_rng_state(), before), "where nothing is dropped"


DYNAMIC = ("model.scaling.method=dynamic", "model.scaling.original=11")


def test_training_draws_the_positions_of_its_seed_and_rows(arch, monkeypatch):
    module, seen = module_of("randpe", arch), []

    def forward(tokens, sampler, **_):
        seen.append(sampler)
        return torch.zeros(())

    monkeypatch.setattr(module.decoder, "forward", forward)
    trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1, global_step=0)
    monkeypatch.setattr(LanguageModule, "trainer", trainer)
    monkeypatch.setattr(LanguageModule, "global_step", 0)
    batch = {"first": 7, "inputs": None, "labels": None, "loss_tokens": torch.ones(())}
    module.training_step(batch, 0)
    expected = RowSampler(module.cfg.seed, "positions", first=7)
    assert torch.equal(seen[0].integers(3, 5), expected.integers(3, 5))


def test_validation_samples_the_same_positions_on_any_number_of_devices(arch, monkeypatch):
    module = module_of("randpe", arch)

    def forward(tokens, sampler, **_):
        seen.append(sampler.key)

    monkeypatch.setattr(module.decoder, "forward", forward)
    monkeypatch.setattr(module, "_state_gauges", lambda batch: {})
    monkeypatch.setattr(module, "_loss_sum", lambda *_: torch.zeros(()))
    monkeypatch.setattr(module.task, "validation_metrics", lambda *_: {})
    keys = {}
    for world in (1, 2):
        seen = []
        for rank in range(world):
            place = rank, world
            monkeypatch.setattr(processes, "rank_and_world", lambda place=place: place)
            module.on_validation_epoch_start()
            for number in range(4 // world):  # of this process's batches
                module.validation_step(module.task.validation_batches()[0], number)
        keys[world] = {*seen}
    assert len(keys[1]) == 4
    assert keys[2] == keys[1]


@pytest.mark.parametrize(
    ("name", "overrides"), [*((name, ()) for name in MODELS), ("rope", DYNAMIC)]
)
def test_lengths_of_a_multiple_change_no_logits(name, overrides, arch):
    """Which a GPU is given, so that it meets few lengths."""
    module, lengths = module_of(name, arch, *overrides), []
    tokens = torch.randint(0, 14, (2, 11), generator=torch.Generator().manual_seed(0))
    expected = OnDevice(module.decoder, torch.device("cpu"))(tokens, sampler=RowSampler(5))
    module.decoder.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    padded = OnDevice(module.decoder, torch.device("cpu"), 16)
    found = padded(tokens, sampler=RowSampler(5))
    assert found.shape == expected.shape == (2, 11, 14)
    assert torch.allclose(found, expected, atol=1e-5)
    samples = module.decoder.random is not None
    table_ends = module.decoder.reach is not None  # after 12
    assert lengths == [11 if samples or table_ends or overrides else 16]
    scored = padded(tokens, output=TokenNll(tokens), sampler=RowSampler(5))
    assert scored.shape == (2, 11)
    assert lengths[-1] == 11, "what is scored place by place keeps its places"
