"""Propositions 1 and 2 of the TAPE paper, measured for every variant of TAPE and both initial
states, in fp64.

Shape suffixes: B batch, T tokens, H heads, D head dimension, C width. E is (B, T, H, M, L, R), as
in :class:`~tape_exp.models.positions.tape_tensor.TensorTAPE`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from tape_exp.machine.seeding import generator_for
from tape_exp.models.decoder import Decoder
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.folders import CONF
from tape_exp.settings.schema import Arch
from tape_exp.tasks.stability import random_copy
from tape_exp.theory import PROPERTIES
from tape_exp.theory.topology import Masked

ARCH = Arch(layers=3, width=32, heads=2, ffn=32, vocab=14, max_length=48, train_length=16)


@dataclass(frozen=True)
class Case:
    """A variant and what it begins from.

    Args:
        variant: the name of its YAML.
        initial: ``rope`` or ``fourier``.
        node: what builds it.
        general: what builds the same map as a :class:`TensorTAPE`, on whose E any O(R) can act.
    """

    variant: str
    initial: str
    node: dict[str, Any]
    general: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.variant}-{self.initial}"


def cases() -> list[Case]:
    """Return a case for every YAML of TAPE, and from each with L = 2 also Fourier features with R =
    4, if new.
    """
    variants = []
    starts = []
    tensor = f"{TensorTAPE.__module__}.{TensorTAPE.__name__}"
    defaults: dict[str, Any] = _node("tape_tensor")
    for path in sorted((CONF / "model").glob("[!.]*.yaml")):
        node = _node(path.stem)
        if "random_range" in node or "unit" in node:  # of the same class; of this layout alone
            continue
        if node.get("_target_") in (f"{TAPE.__module__}.{TAPE.__name__}", tensor):
            general = {**defaults, **node, "_target_": tensor}
            variants.append(Case(path.stem, general["initial"], node, general))
            if general["L"] == 2 and general["scaling"]["method"] == "none":
                fourier = {**general, "initial": "fourier", "R": 4}
                starts.append(Case(path.stem, "fourier", fourier, fourier))
    for case in starts:
        if not any(_same(case, other) for other in variants):
            variants.append(case)
    return variants


def _node(name: str) -> dict[str, Any]:
    node: Any = OmegaConf.to_container(compose_config([f"model={name}"]).model, resolve=True)
    return node


def _same(one: Case, other: Case) -> bool:
    return {**one.general, "name": ""} == {**other.general, "name": ""}


def measure(
    case: Case, seeds: int = 3, shifts: tuple[float, ...] = (0.37, -11.3, 1000.5)
) -> dict[str, float]:
    """Return the worst relative error of each of PROPERTIES, over random weights, states and
    shifts.
    """
    worst = dict.fromkeys(PROPERTIES, 0.0)
    for seed in range(seeds):
        errors = layer_errors(case, seed) | {
            "shift": max(shift_error(case, seed, shift) for shift in shifts)
        }
        worst = {name: max(worst[name], error) for name, error in errors.items()}
    return worst


def layer_errors(case: Case, seed: int, T: int = 9) -> dict[str, float]:
    """Return how far one layer's f and g are from equations (perm_equiv) and (ortho_equiv) on a
    random state and causal M.

    - ``permutation``: f(PX, PE, PMPᵀ) = P f(X, E, M), g likewise;
    - ``rotation``: f(X, ER, M) = f(X, E, M), g(X, ER, M) = g(X, E, M) R for one R ∈ O(R),
      reflections among them;
    - ``rotations``: the same with an R_m of its own for every block m, which the equations do not
      ask for and a shift of RoPE or of Fourier features needs.

    Each is the larger of both maps' errors.
    """
    encoding = _random(case, seed)
    generator = generator_for(seed, "propositions", T)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    R = encoding.R
    M = encoding.M
    E = draw(1, T, ARCH.heads, M, encoding.L, R)
    qkv = draw(3, 1, T, ARCH.heads, ARCH.head_dim)
    x = draw(1, T, ARCH.width)
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    order = torch.randperm(T, generator=generator)
    rotations = torch.linalg.qr(draw(M, R, R))[0]
    if R == 1:  # O(1) is {1, -1}
        rotations = draw(M, 1, 1).sign()
        rotations[0] = -1

    f, g = f_and_g(encoding, E, qkv, x, mask)
    f_P, g_P = f_and_g(encoding, E[:, order], qkv[:, :, order], x[:, order], mask[order][:, order])
    errors = {"permutation": max(relative(f_P, f[:, order]), relative(g_P, g[:, order]))}
    for name, turn in (("rotation", rotations[0]), ("rotations", rotations)):
        f_R, g_R = f_and_g(encoding, E @ turn, qkv, x, mask)
        errors[name] = max(relative(f_R, f), relative(g_R, g @ turn))
    return errors


def f_and_g(
    encoding: TensorTAPE, E: Tensor, qkv_3BTHD: Tensor, x_BTC: Tensor, mask_TT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a layer's attended values (what of f sees positions) and its next E, under any M."""
    q, k, v = qkv_3BTHD
    places = Places.at(x_BTC[..., 0])  # which none of these reads
    turned = encoding.rotate(q, k, x_BTC, E, places)
    values, averaged = Masked(mask_TT).attend(*turned, v, encoding.carry(E, places))
    return values, encoding.update(E, averaged, LayerOutputs(x_BTC, x_BTC, x_BTC), places)


def shift_error(case: Case, seed: int, shift: float, T: int = 16) -> float:
    """Return the change of a decoder's logits, relative to the largest, with positions ``shift``
    later.
    """
    decoder = Decoder(ARCH, lambda arch: build(case.node, "model", arch=arch), seed)
    decoder = random_copy(decoder, seed, std=0.3).double()
    tokens = torch.randint(0, ARCH.vocab, (2, T), generator=generator_for(seed, "shift tokens"))
    positions = torch.arange(T, dtype=torch.float64)[None]
    with torch.no_grad():
        # Small initial weights would leave attention uniform, whatever the positions.
        for block in decoder.blocks():
            block.q.weight.mul_(20)
            block.k.weight.mul_(20)
        return relative(
            decoder(tokens, positions_BT=positions + shift), decoder(tokens, positions_BT=positions)
        )


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference over the largest absolute value."""
    return float((actual - expected).abs().max() / expected.abs().max())


def _random(case: Case, seed: int) -> TensorTAPE:
    """Return the encoding with random parameters: as initialised its update does nothing."""
    encoding = build(case.general, "model", arch=ARCH).double().requires_grad_(False)
    with torch.no_grad():
        for name, parameter in encoding.named_parameters():
            generator = generator_for(seed, "propositions", name)
            parameter.copy_(
                0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return encoding
