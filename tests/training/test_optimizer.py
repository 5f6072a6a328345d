"""AdamW's groups and rates: what decays, and a rate of the positional encoding's own."""

import dataclasses

import pytest
import torch

from tape_exp.settings.compose import compose_config
from tape_exp.settings.schema import Optim
from tape_exp.tasks.arithmetic import Arithmetic
from tape_exp.training.module import LanguageModule
from tape_exp.training.optimizer import decays, rate_factor
from tests.conftest import MODELS
from tests.conftest import make_decoder as decoder_of

OPTIM = Optim(batch=4, max_steps=100, lr=1e-3, warmup=0.1, decay=0.5, weight_decay=0.02)


def optimizer_of(arch, optim, model="tape"):
    """(module, optimizer, schedule) of a model in training."""
    task = Arithmetic(arch, optim, 0, 2, 3)
    module = LanguageModule(decoder_of(model, task.arch), task, compose_config([]))
    made = module.configure_optimizers()
    return module, made["optimizer"], made["lr_scheduler"]["scheduler"]


def names(module, group) -> set[str]:
    known = {id(p): name for name, p in module.named_parameters()}
    return {known[id(p)] for p in group["params"]}


def test_positional_parameters_have_a_multiple_of_the_rate_at_every_step(arch):
    optim = dataclasses.replace(OPTIM, position_lr=5.0)
    module, optimizer, schedule = optimizer_of(arch, optim)
    for step in range(100):
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx(
            [1e-3 * rate_factor(step, optim)] * 2 + [5e-3 * rate_factor(step, optim)]
        )
        optimizer.step()
        schedule.step()
    shared, positional = optimizer.param_groups[:2], optimizer.param_groups[2:]
    assert all(".position." in name for group in positional for name in names(module, group))
    assert not any(".position." in name for group in shared for name in names(module, group))
    everything = set().union(*(names(module, group) for group in optimizer.param_groups))
    assert everything == {name for name, p in module.named_parameters() if p.requires_grad}


def test_a_factor_of_one_leaves_the_two_groups_of_older_checkpoints(arch):
    """Matrices, then the rest, each in the model's order: AdamW's state goes by their numbers."""
    module, optimizer, _ = optimizer_of(arch, OPTIM)
    trainable = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim > 1]
    others = [p for p in trainable if p.ndim <= 1]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.02, 0.0]
    for group, expected in zip(optimizer.param_groups, (matrices, others), strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in expected]
    older = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3,
    )
    optimizer.load_state_dict(older.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_matrices_decay_and_numbers_of_heads_do_not(name, arch):
    decoder = decoder_of(name, arch)
    parameters = dict(decoder.named_parameters())
    kept = {name for name in parameters if not decays(decoder, name)}
    assert kept == {name for name in parameters if parameters[name].ndim < 2}
    assert not kept & {"embedding.weight", "head.weight", "layers.0.q.weight"}


def test_a_column_of_numbers_does_not_decay():
    """(H, 1) of an encoding, but not the (hidden, 1) matrix of a linear map, as FIRE has one."""
    module = torch.nn.Module()
    module.r = torch.nn.Parameter(torch.ones(4, 1))
    module.inner = torch.nn.Linear(1, 4)
    assert [decays(module, name) for name in ("r", "inner.weight", "inner.bias")] == [
        False,
        True,
        False,
    ]


def test_rates_rise_stay_and_fall():
    rates = [
        rate_factor(step, dataclasses.replace(OPTIM, final_lr=0.2))
        for step in (0, 9, 10, 50, 75, 100)
    ]
    assert rates == pytest.approx([1 / 11, 10 / 11, 1, 1, 0.6, 0.2])
