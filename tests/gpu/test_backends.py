"""Whether every backend of attention, and every fused kernel of positions, computes what the
reference does, for every encoding: logits and the gradient of every parameter (`make gpu`).

A small model is run in bf16 under autocast and compared with the explicit softmax in fp32 from the
same weights. What the reference itself loses in bf16 is measured alike, and a backend may lose
twice as much. Kernels of positions are compared in fp32, and TAPE's products of 16-bit numbers,
whose precision is between, with fp64.
"""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import DIGITS, ENCODINGS, encoding
from tape_exp.machine.seeding import RowSampler
from tape_exp.models import attention
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels import maps, update
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

ROWS, LENGTH = 2, 200  # no multiple of a tile
LOST = 2  # times the reference's own error in bf16, which a backend may lose
LEAST = {"logits": 0.02}  # that a relative error may be, whatever the reference loses
LEAST_OF_GRADIENT = 0.05
OF_FP32 = 1e-3  # of fused positions
OF_PRODUCTS = 2**-12  # of fp32 numbers beside 16-bit ones: 2^-16 each; one bf16 product has 2^-9
CPU = torch.device("cpu")
GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cache
def results(
    name: str,
    backend: str,
    device: torch.device = GPU,
    dtype: torch.dtype = torch.bfloat16,
    fused: bool | None = None,
) -> dict[str, Tensor]:
    """Logits and gradients of a small model with random positional weights; ``fused`` says whether
    kernels may compute the positions, which by default all backends but the reference do.
    """
    sizes = {"vocab": 64, "max_length": LENGTH, "train_length": LENGTH, "digits": DIGITS}
    arch = Arch(3, 256, 4, 256, **sizes)
    model = Decoder(arch, encoding(name), backend=backend)
    for block in model.blocks() if fused is not None else ():
        block.position.fused = fused
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise, alpha=0.1 if ".position." in part else 0.05)
    model.to(device)
    tokens = torch.randint(arch.vocab, (ROWS, LENGTH + 1), generator=generator).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model(tokens[:, :-1], sampler=RowSampler(0))
    F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float(), **gradients}


def errors(ours: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """|ours - exact| / |exact| of each, as norms; infinite where anything is not finite.

    A gradient that is zero but for rounding, as that of a bias which a softmax cancels, is compared
    with the largest one.
    """
    largest = max(float(x.norm()) for what, x in exact.items() if what != "logits")
    sizes = {what: max(float(x.norm()), 1e-3 * largest) for what, x in exact.items()}
    relative = {what: float((ours[what] - x).norm()) / sizes[what] for what, x in exact.items()}
    return {what: error if error == error else float("inf") for what, error in relative.items()}


def wrong(error: dict[str, float], allowed: dict[str, float]) -> dict[str, float]:
    return {what: value for what, value in error.items() if value > allowed[what]}


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backend", attention.BACKENDS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_backend_agrees_with_the_reference(name, backend):
    exact = results(name, "reference", dtype=torch.float32)
    lost = errors(results(name, "reference"), exact)
    allowed = {w: max(LEAST.get(w, LEAST_OF_GRADIENT), LOST * e) for w, e in lost.items()}
    try:
        ours = results(name, backend)
    except ConfigError as error:
        pytest.skip(f"the backend refuses it: {error}")
    assert not wrong(errors(ours, exact), allowed)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ENCODINGS)
def test_fused_positions_agree_with_the_reference(name):
    exact = results(name, "reference", dtype=torch.float32)
    attention.forget()
    ours = results(name, "reference", dtype=torch.float32, fused=True)
    if not any("fused" in choice for choice in attention.choices()):
        pytest.skip("its positions have no kernel")
    assert not wrong(errors(ours, exact), dict.fromkeys(exact, OF_FP32))


def products(device: torch.device) -> dict[str, float]:
    """Errors of TAPE's maps and update in fp32 from 16-bit x̃, q and Ẽ, against fp64."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    B, T, H, D, C, inner = ROWS, 17 if device == CPU else LENGTH, 4, 32, 128, 16
    q, k, attended = (make(B, T, H, D, dtype=torch.bfloat16) for _ in range(3))
    x, wx, v = make(B, T, C, dtype=torch.bfloat16), make(inner, C), make(inner, H * H)
    E, p = make(B, T, H, D), make(H, H)
    inputs = {"E": E, "Ẽ": attended, "P": p, "x̃": x, "W_x": wx, "V": v}

    def with_gradients(made: Tensor) -> dict[str, Tensor]:
        gradients = torch.autograd.grad(made.square().mean(), list(inputs.values()))
        wide = {name: g for name, g in zip(inputs, gradients, strict=True) if g.dtype != x.dtype}
        return {"logits": made.detach(), **wide}

    made_maps = maps.maps(x, wx, v).unflatten(-1, (H, H))
    made = update.updated(q, k, update.Update(E, attended, p, made_maps), keeps=True)[2]
    psi = F.silu(x.double() @ wx.double().T)
    Z = E.double() + torch.einsum("hg,btgd->bthd", p.double(), attended.double())
    exact = Z + torch.einsum("bthg,btgd->bthd", (psi @ v.double()).unflatten(-1, (H, H)), Z)
    return errors(with_gradients(made), with_gradients(exact))


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=[needs_gpu, pytest.mark.gpu])])
def test_products_beside_16_bits_are_held_to_more_than_16_bits(device, monkeypatch):
    """On a CPU in triton's interpreter."""
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    assert max(products(device).values()) < OF_PRODUCTS
    make = maps.maps
    monkeypatch.setattr(maps, "maps", lambda *x: make(*x).bfloat16().float())
    assert max(products(device).values()) > OF_PRODUCTS, "one product of bf16"
