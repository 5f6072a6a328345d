"""Whether every backend computes what the reference does, for every encoding: ``python -m
tape_exp.measure.check [--out FOLDER]``.

A small model of each encoding is run with each backend of attention, in bf16 under autocast, and
compared with the explicit softmax in fp32 from the same weights: logits, and the gradient of every
parameter. What the reference itself loses in bf16 is measured alike, and a backend may lose twice
as much. (Of CoPE, whose counts are rounded down, the gradients in bf16 say little.) On a GPU, the
fused rotation and TAPE's fused update are also compared with torch's by themselves, in fp32 with
the explicit softmax: the rows ``positions``. TAPE's maps and update from 16-bit numbers, whose
products are of a precision between, are compared with fp64: the row ``products``. Leaves
``results/speed/check-<machine>.json``, written after each encoding. It needs only torch.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.machine.hardware import machine_name
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.encodings import DIGITS, ENCODINGS
from tape_exp.measure.results import add_device, add_folder, why, write_record
from tape_exp.models import attention
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels import maps, update
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

SHAPE = (2, 200)  # rows and tokens: no multiple of a tile
LOST = 2  # times the reference's own error in bf16, which a backend may lose
NEGLIGIBLE = 1e-3  # of the largest gradient
LEAST = {"logits": 0.02}  # that a relative error may be, whatever the reference loses
LEAST_OF_GRADIENT = 0.05
OF_FP32 = 1e-3  # that a relative error of fused positions may be, logits and gradients
OF_PRODUCTS = 2**-12  # of fp32 numbers beside 16-bit ones: 2^-16 each; one bf16 product has 2^-9

Results = dict[str, Tensor]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line each, and write the record; status 1 where something disagrees."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.check",
        description="Compare every backend of attention with the explicit softmax, for every "
        "encoding, and fused positions with torch's: logits and all gradients.",
    )
    add_folder(parser, "check")
    add_device(parser)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "machine": machine_name(given.device),
        "torch": torch.__version__,
        "rows": [],
    }
    parts = {"tape, products": products} | {name: partial(compared, name) for name in ENCODINGS}
    for name, part in parts.items():
        try:
            rows = part(given.device)
        # Of the reference itself; the other parts are still to be compared.
        except Exception as error:
            rows = [{"encoding": name, "backend": "reference", **failure(error)}]
        for row in rows:
            record["rows"].append(row)
            print(line_of(row), flush=True)
        write_record("check", record, given.out, finished=False)
    print(write_record("check", record, given.out))
    return int(bool(disagreements(record["rows"])))


def disagreements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a record, finished or not, that ought to make somebody look."""
    return [row for row in rows if row["verdict"] not in ("agrees", "refuses")]


def compared(name: str, device: torch.device) -> list[dict[str, Any]]:
    """A row for each backend: its verdict, and its largest error of logits and gradients; and one
    for fused positions, where there are any.
    """
    exact = results(name, "reference", device, torch.float32)
    allowed = {
        what: max(LEAST.get(what, LEAST_OF_GRADIENT), LOST * error)
        for what, error in errors(results(name, "reference", device), exact).items()
    }
    rows = []
    for backend in attention.BACKENDS:
        verdict = judged(partial(results, name, backend, device), exact, allowed)
        rows.append({"encoding": name, "backend": backend, **verdict})
    return rows + fused_positions(name, device, exact)


def fused_positions(name: str, device: torch.device, exact: Results) -> list[dict[str, Any]]:
    """The row of fused rotation and update, in fp32 and with the explicit softmax; none where no
    kernel is asked for, as on a CPU.
    """
    attention.forget()
    fused = partial(results, name, "reference", device, torch.float32, fused=True)
    verdict = judged(fused, exact, dict.fromkeys(exact, OF_FP32))
    told = [choice for choice in attention.choices() if "fused" in choice]
    refused = [choice for choice in told if "unfused" in choice]
    if refused:
        verdict = {"verdict": "refuses", "why": "; ".join(refused)}
    return [{"encoding": name, "backend": "positions", **verdict}] if told else []


def products(device: torch.device) -> list[dict[str, Any]]:
    """The row of TAPE's maps and update in fp32 from 16-bit x̃, q and Ẽ; none without a kernel."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    (B, T), H, D, C, inner = SHAPE, 4, 32, 128, 16
    q, k, attended = (make(B, T, H, D, dtype=torch.bfloat16) for _ in range(3))
    x, wx, v = make(B, T, C, dtype=torch.bfloat16), make(inner, C), make(inner, H * H)
    E, p = make(B, T, H, D), make(H, H)
    given = {"E": E, "Ẽ": attended, "P": p, "x̃": x, "W_x": wx, "V": v}
    if maps.supports(x, wx, v):
        return []

    def told(made: Tensor) -> Results:
        gradients = torch.autograd.grad(made.square().mean(), list(given.values()))
        exact = {name: g for name, g in zip(given, gradients, strict=True) if g.dtype != x.dtype}
        return {"logits": made.detach(), **exact}

    def fused() -> Results:
        made_maps = maps.maps(x, wx, v).unflatten(-1, (H, H))
        pending = update.Update(E, attended, p, made_maps)
        made = update.updated(q, k, pending, keeps=True)[2]
        assert made is not None
        return told(made)

    psi = F.silu(x.double() @ wx.double().T)
    Z = E.double() + torch.einsum("hg,btgd->bthd", p.double(), attended.double())
    maps_BTHH = (psi @ v.double()).unflatten(-1, (H, H))
    exact = told(Z + torch.einsum("bthg,btgd->bthd", maps_BTHH, Z))
    verdict = judged(fused, exact, dict.fromkeys(exact, OF_PRODUCTS))
    return [{"encoding": "tape", "backend": "products", **verdict}]


def judged(
    compute: Callable[[], Results], exact: Results, allowed: dict[str, float]
) -> dict[str, Any]:
    """The verdict on what ``compute`` gives, with its largest errors or with why there are none."""
    try:
        found = errors(compute(), exact)
    except ConfigError as error:
        return {"verdict": "refuses", "why": str(error)}
    # Whatever a compiler or a driver raises: the others are still to be compared.
    except Exception as error:
        return failure(error)
    wrong = [what for what, error in found.items() if not error <= allowed[what]]
    worst = max((w for w in found if w != "logits"), key=lambda what: found[what])
    row = {"verdict": "differs" if wrong else "agrees", "logits": found["logits"]}
    row |= {"gradient": found[worst], "of": worst}
    return row | ({"wrong": wrong} if wrong else {})


def failure(error: Exception) -> dict[str, Any]:
    """The verdict on what raises."""
    return {"verdict": "fails", "why": why(error)}


def results(
    name: str,
    backend: str,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    fused: bool | None = None,
) -> Results:
    """The logits of a small model with random positional weights, and all its gradients.

    ``fused`` says whether kernels may compute the positions; by default all backends but the
    reference have them.
    """
    rows, length = SHAPE
    arch = Arch(3, 256, 4, 256, vocab=64, max_length=length, train_length=length, digits=DIGITS)
    model = Decoder(arch, ENCODINGS[name], backend=backend)
    if fused is not None:
        for block in model.blocks():
            block.position.fused = fused
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise, alpha=0.1 if ".position." in part else 0.05)
    model.to(device)
    tokens = torch.randint(arch.vocab, (rows, length + 1), generator=generator).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model(tokens[:, :-1], sampler=RowSampler(0))
    F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float(), **gradients}


def errors(found: Results, exact: Results) -> dict[str, float]:
    """|found - exact| / |exact| of each, as norms; infinite where anything is not finite.

    A gradient that is zero but for rounding, as that of a bias which a softmax cancels, is compared
    with the largest one.
    """
    relative = {}
    largest = max(float(x.norm()) for what, x in exact.items() if what != "logits")
    for what, x in exact.items():
        error = float((found[what] - x).norm()) / max(float(x.norm()), NEGLIGIBLE * largest)
        relative[what] = error if error == error else float("inf")
    return relative


def line_of(row: dict[str, Any]) -> str:
    """``tape  triton  agrees  logits 0.4 %, gradients up to 0.9 % (layers.0.q.weight)``."""
    start = f"{row['encoding']:21} {row['backend']:10} {row['verdict']:8}"
    if "why" in row:
        return f"{start} {row['why'][:160]}"
    worst = f"{100 * row['gradient']:.2f} % ({row['of']})"
    return f"{start} logits {100 * row['logits']:.2f} %, gradients up to {worst}"


if __name__ == "__main__":
    sys.exit(main())
