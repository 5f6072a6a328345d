"""Whether every backend of attention computes what the explicit softmax does, for every encoding:
logits and the gradient of every parameter (`make gpu`).

A small model is run in bf16 under autocast and compared with the explicit softmax in fp32 from the
same weights. What the explicit softmax itself loses in bf16 is measured alike, and a backend, or
the compiled model, may lose twice as much.
"""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import DIGITS, ENCODINGS, encoding
from tape_exp.machine.seeding import RowSampler
from tape_exp.models import backends
from tape_exp.models.decoder import Decoder
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

ROWS, LENGTH = 2, 200  # no multiple of a tile
LOST = 2  # times the explicit softmax's own error in bf16, which a backend may lose
LEAST = {"logits": 0.02}  # that a relative error may be, whatever is lost
LEAST_OF_GRADIENT = 0.05
SUMS = ("fox", "path_fox", "selective_rope")  # sum over tokens
GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cache
def results(
    name: str, backend: str, dtype: torch.dtype = torch.bfloat16, compiled: bool = False
) -> dict[str, Tensor]:
    """Logits and gradients of a small model with random positional weights."""
    sizes = {"vocab": 64, "max_length": LENGTH, "train_length": LENGTH, "digits": DIGITS}
    arch = Arch(3, 256, 4, 256, **sizes)
    model = Decoder(arch, encoding(name), backend=backend)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise, alpha=0.1 if ".position." in part else 0.05)
    model.to(GPU)
    if compiled:
        model.compile()
    tokens = torch.randint(arch.vocab, (ROWS, LENGTH + 1), generator=generator).to(GPU)
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
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


def wrong(found: dict[str, Tensor], name: str) -> dict[str, tuple[float, float]]:
    """What loses more than is allowed, and how much of each."""
    exact = results(name, "explicit", torch.float32)
    allowed = {
        what: max(LEAST.get(what, LEAST_OF_GRADIENT), LOST * error)
        for what, error in errors(results(name, "explicit"), exact).items()
    }
    pairs = {what: (error, allowed[what]) for what, error in errors(found, exact).items()}
    return {what: pair for what, pair in pairs.items() if pair[0] > pair[1]}


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_backend_agrees_with_the_explicit_softmax(name, backend):
    try:
        found = results(name, backend)
    except ConfigError as error:
        pytest.skip(f"the backend refuses it: {error}")
    assert not wrong(found, name)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_compiled_model_agrees_with_the_explicit_softmax(name):
    if name in SUMS and torch.__version__ < "2.13":
        pytest.skip("before torch 2.13 a cumulative sum over tokens cannot be compiled for a GPU")
    assert not wrong(results(name, "auto", compiled=True), name)
