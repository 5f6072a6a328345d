"""AdamW and its schedule: which parameters decay, and their learning rates at every step."""

import math
from typing import Any

import torch
from torch import nn

from tape_exp.models.peft import trained
from tape_exp.settings.schema import Optim


def make_optimizer(module: nn.Module, optim: Optim) -> dict[str, Any]:
    """Make AdamW and its schedule, as Lightning wants them, for the trained parameters.

    Matrices decay: linear maps, embeddings, tables. Norms, biases and numbers of heads do not (see
    :func:`decays`).
    """
    optimizer = torch.optim.AdamW(
        parameter_groups(module, optim), lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, optim))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def parameter_groups(module: nn.Module, optim: Optim) -> list[dict[str, Any]]:
    """Divide the trained parameters into those that decay and those that do not.

    Where ``optim.position_lr`` is not 1, the positional encoding's parameters are two further
    groups, whose rate it multiplies.
    """
    parts: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for factor in (1.0, optim.position_lr):
        for decay in (True, False):
            parts[factor, decay] = []
    for name, parameter in trained(module):
        factor = optim.position_lr if ".position." in name else 1.0
        parts[factor, decays(module, name)].append(parameter)
    groups = []
    for (factor, decay), parameters in parts.items():
        if parameters or factor == 1:  # of checkpoints the first two groups are always there
            weight_decay = optim.weight_decay if decay else 0.0
            lr = optim.lr * factor
            groups.append({"params": parameters, "weight_decay": weight_decay, "lr": lr})
    return groups


def decays(model: nn.Module, name: str) -> bool:
    """Say whether weight decay reaches a parameter: whether it is a matrix, and not a number for
    each head in a column, (H, 1), as an author of an encoding may write it.
    """
    module = model.get_submodule(name.rpartition(".")[0])
    parameter = model.get_parameter(name)
    if isinstance(module, nn.Linear | nn.Embedding):
        return parameter.ndim > 1
    return parameter.ndim > 1 and parameter.shape[-1] > 1


def rate_factor(step: int, optim: Optim) -> float:
    """Return the learning rate of ``step + 1`` over ``optim.lr``: linear warm-up, plateau, decay.

    >>> optim = Optim(batch=1, max_steps=100, lr=1.0, warmup=0.0, decay=0.5, final_lr=0.2)
    >>> [round(rate_factor(step, optim), 2) for step in (0, 50, 75, 100)]
    [1.0, 1.0, 0.6, 0.2]
    """
    warmup = optim.warmup * optim.max_steps
    decay = optim.decay * optim.max_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    decay_steps = step - (optim.max_steps - decay)
    if decay_steps <= 0:
        return 1.0
    done = min(decay_steps / decay, 1.0)
    left = 0.5 * (1 + math.cos(math.pi * done)) if optim.decay_shape == "cosine" else 1 - done
    return optim.final_lr + (1 - optim.final_lr) * left


def number_by_place(state: dict[str, Any], optimizer: Any, module: nn.Module) -> None:
    """Number the parameters of AdamW's saved ``state`` by their place in the model, in place.

    AdamW numbers them by groups. Lightning's FSDP reads and writes their numbers in the order of
    the model, and so do all checkpoints: a run may resume with another strategy.
    """
    places = {parameter: place for place, parameter in enumerate(module.parameters())}
    by_group = []
    for group in optimizer.param_groups:
        by_group += [places[parameter] for parameter in group["params"]]
    state["state"] = {by_group[number]: moments for number, moments in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [by_group[number] for number in group["params"]]
