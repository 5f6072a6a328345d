"""How fast each positional encoding is, compared with RoPE in the same run.

``python -m benchmarks.speed`` writes a line of ``results/speed.jsonl``, of which ``tape-exp
paper render tab_speed`` makes a table. Every measurement is a round-robin over its
cases, so that a slow minute of the machine meets all of them; times are medians with quartiles,
ratios are medians of the rounds' own ratios.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import DEVICE, encoding, parser, seconds, write_record
from benchmarks.timing import Row, round_robin, step_case, summary
from tape_exp.machine.hardware import machine_name, peak_flops
from tape_exp.models import attention, backends
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.head import LastLogits
from tape_exp.models.layers import Kinds
from tape_exp.models.places import Places
from tape_exp.models.positions.base import LayerOutputs, construct
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.scores import Scores
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

TIMED = ("rope", "tape", "nope", "xpos", "randpe", "alibi", "t5", "fire", "kerple_log")
CORES = tuple(name for name in TIMED if name not in ("nope", "xpos", "randpe"))  # theirs is RoPE's


@dataclass(frozen=True)
class Shapes:
    """What is measured: small on a CPU, the 155 M model on a GPU."""

    arch: Arch
    batch: int
    lengths: tuple[int, ...]
    step_lengths: tuple[int, ...]
    seconds: float  # for each measurement
    dtype: torch.dtype


def default_shapes(device: torch.device) -> Shapes:
    """Two layers of the 155 M model on a CPU, all twelve on a GPU."""
    if device.type == "cuda":
        arch = Arch(12, 768, 12, 3072, vocab=32_000, max_length=8192, train_length=8192)
        return Shapes(arch, 16, (512, 1024, 2048, 4096, 8192), (1024,), 2.0, torch.bfloat16)
    arch = Arch(2, 768, 12, 3072, vocab=1000, max_length=1024, train_length=1024)
    return Shapes(arch, 2, (256, 512, 1024), (512,), 12.0, torch.float32)


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure this machine."""
    args = parser("speed", "How fast each encoding is, beside RoPE.").parse_args(arguments)
    keep = partial(write_record, "speed", path=args.out)
    record = measure(DEVICE, default_shapes(DEVICE), keep)
    print(keep(record))
    return 0


def measure(
    device: torch.device, shapes: Shapes, keep: Callable[[dict[str, Any]], Any] = lambda _: None
) -> dict[str, Any]:
    """Everything, as one record of this machine; ``failed`` lists what could not be measured.

    Args:
        keep: called with the record after each part, so that what is cut off leaves the parts
            before it. What matters least comes last.
    """
    record: dict[str, Any] = {
        "machine": machine_name(device),
        "torch": torch.__version__,
        "dtype": str(shapes.dtype).removeprefix("torch."),
        "batch": shapes.batch,
        "arch": {k: getattr(shapes.arch, k) for k in ("layers", "width", "heads", "ffn", "vocab")},
        "peak_flops": peak_flops(device) or None,
        "rows": [],
        "decoding": [],
        "failed": [],
    }
    parts: list[tuple[str, str, Callable[[], Iterable[Row]]]] = []
    for T in shapes.step_lengths:
        for name in (*TIMED[1:], "tape_separate"):
            parts.append(("rows", f"step T {T} {name}", partial(steps, shapes, T, device, name)))
        if device.type == "cuda":
            compiled = partial(steps, shapes, T, device, "tape", compiled=True)
            parts.insert(1, ("rows", f"compiled step T {T}", compiled))
    parts.append(("decoding", "decoding", partial(decoding, device)))
    for T, backward in product(shapes.lengths, (False, True)):
        core = partial(cores, shapes, T, backward, device, record["failed"])
        parts.append(("rows", f"core T {T}", core))
    for key, name, part in parts:
        try:
            for row in part():
                record[key].append(row)
                print(json.dumps(row), flush=True)
        except Exception as error:  # whatever a compiler or the allocator raises
            record["failed"].append(failure(name, error))
        keep(record)
    return record


def failure(what: str, error: Exception) -> dict[str, str]:
    """The line of something that could not be measured."""
    why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    print(f"{what} failed: {why}", flush=True)
    return {"what": what, "why": why}


def steps(
    shapes: Shapes, T: int, device: torch.device, name: str, compiled: bool = False
) -> Iterator[Row]:
    """Training steps of an encoding at one length, in turn with RoPE's, which they are relative to;
    RoPE's own row comes with TAPE's.
    """
    sizes = (shapes.batch, T, shapes.dtype, device)
    cases = {"rope": step_case(shapes.arch, encoding("rope"), *sizes, compiled=compiled)}
    rival: dict[str, Any] = {}
    if name == "tape_separate":
        rival = {"attend": separate_calls, "updates_last": True}
    make: Kinds = SeparateTAPE if rival else encoding(name)
    cases[name] = step_case(shapes.arch, make, *sizes, compiled=compiled, **rival)
    times = round_robin(cases, device, 6 * shapes.seconds / len(TIMED))
    with torch.device("meta"):
        flops = Decoder(shapes.arch, RoPE).flops_per_token(T)
    for case in cases if name == "tape" else (name,):
        backend = "compiled" if compiled else "eager"
        row: Row = {"what": "step", "encoding": case, "backend": backend, "T": T, "backward": True}
        row |= summary(times[case], times["rope"])
        row["tokens_per_second"] = round(1e3 * shapes.batch * T / row["ms"], 1)
        if peak := peak_flops(device):
            row["mfu"] = round(row["tokens_per_second"] * flops / peak, 4)
        yield row


def cores(
    shapes: Shapes, T: int, backward: bool, device: torch.device, failed: list[dict[str, str]]
) -> Iterator[Row]:
    """Attention alone at one length, with each able backend, relative to RoPE on its fastest.

    The gradients of the outputs are there, and those of the inputs are not added up: at 512 tokens
    a loss, its gradient and such sums would take a GPU longer than attention.
    """
    cases: dict[str, Callable[[], Any]] = {}
    for name in CORES:
        case = core_case(shapes, T, backward, device, name)
        for backend in backends.BACKENDS:
            if backend == "explicit" and T > 2048:
                continue  # the scores would not fit
            if backend == "flex" and device.type == "cpu":
                continue  # it is not made for a CPU
            try:
                case(backend)
                cases[f"{name}/{backend}"] = partial(case, backend)
            except ConfigError:
                continue
            except Exception as error:  # whatever a compiler raises, the next one may be well
                failed.append(failure(f"core T {T} {name}/{backend}", error))
    times = round_robin(cases, device, shapes.seconds)
    medians = {case: statistics.median(spent) for case, spent in times.items()}
    base = min((case for case in cases if case.startswith("rope/")), key=lambda case: medians[case])
    for key, spent in times.items():
        name, backend = key.split("/")
        row: Row = {"what": "core", "encoding": name, "backend": backend}
        yield row | {"T": T, "backward": backward} | summary(spent, times[base])


def core_case(
    shapes: Shapes, T: int, backward: bool, device: torch.device, name: str
) -> Callable[[str], None]:
    """What computes the attention of an encoding once, with a backend."""
    position = construct(encoding(name)[0].position, shapes.arch, 0, name)
    position.init_weights(torch.Generator().manual_seed(0))  # of a CPU, where it still is
    position.to(device)

    def make() -> Tensor:
        heads = (shapes.batch, T, shapes.arch.heads, shapes.arch.head_dim)
        return torch.randn(heads, device=device, dtype=shapes.dtype, requires_grad=backward)

    q, k, v = make(), make(), make()
    carried = make() if isinstance(position, TAPE) else None
    inputs = [q, k, v] if carried is None else [q, k, v, carried]
    learns = [x for x in (*inputs, *position.parameters()) if x.requires_grad]
    positions, given = torch.arange(T, device=device, dtype=torch.float32)[None], torch.ones_like(q)
    places = Places.at(positions, consecutive=True)
    x = torch.zeros(shapes.batch, T, shapes.arch.width, device=device)

    def once(backend: str) -> None:
        with torch.set_grad_enabled(backward):
            bias: Any = position.bias(q.float(), k.float(), x, None, places)
            biases = () if bias is None else (bias,)
            scores = Scores(q.transpose(1, 2), k.transpose(1, 2), biases, positions, True)
            both = attention.attend(scores, v, carried, backend)
            if backward:
                out = [x for x in both if x is not None]
                torch.autograd.grad(out, learns, [given] * len(out), allow_unused=True)

    return once


def decoding(
    device: torch.device, rows: int = 64, prompt: int = 512, new: int = 128
) -> Iterator[Row]:
    """``new`` tokens with the cache, and without it ``new`` times the tokens at half of them."""
    arch = Arch(3, 96, 4, 256, vocab=1000, max_length=8192, train_length=8192)
    for name in ("rope", "tape", "alibi"):
        model = Decoder(arch, encoding(name)).to(device).eval()
        tokens = torch.randint(arch.vocab, (rows, prompt + new), device=device)
        generate(model, list(tokens[:, :prompt]), 2)
        cached = seconds(partial(generate, model, list(tokens[:, :prompt]), new))
        middle = partial(model, tokens[:, : prompt + new // 2], output=LastLogits())
        with torch.inference_mode():
            uncached = new * statistics.median(seconds(middle) for _ in range(5))
        row: Row = {"encoding": name, "rows": rows, "prompt": prompt, "new_tokens": new}
        row |= {"cached_s": round(cached, 3), "uncached_s": round(uncached, 3)}
        yield row | {"speedup": round(uncached / cached, 2)}


class SeparateTAPE(TAPE):
    """The rival: TAPE as public code writes it. Cosines and sines have the full head dimension, are
    averaged by two further attention calls, and are updated one after the other, ψ computed for
    each and E widened to I rows; after the last layer too, where nobody reads the result. Same
    function.
    """

    def start(self, places: Places) -> Tensor:
        """(B, T, 1, 2, d): each half twice, as RoPE's tables usually are."""
        return super().start(places).repeat(1, 1, 1, 1, 2)

    def rotate(
        self, q_BTHD: Tensor, k_BTHD: Tensor, x_BTC: Tensor, state: Tensor | None, places: Places
    ) -> tuple[Tensor, Tensor]:
        """x · cos + rotate_half(x) · sin over the full width."""
        assert state is not None
        cos, sin = state.unbind(-2)
        rotated = []
        for x in (q_BTHD, k_BTHD):
            real, imaginary = x.chunk(2, -1)
            rotated.append(x * cos + torch.cat([-imaginary, real], -1) * sin)
        return rotated[0], rotated[1]

    def update(
        self,
        state: Tensor | None,
        averaged_BTHE: Tensor | None,
        tokens: LayerOutputs,
        places: Places,
    ) -> Tensor:
        """E + P Ẽ, then E + W2 diag(ψ) W1ᵀ E, literally, for the cosines and for the sines."""
        assert state is not None
        assert averaged_BTHE is not None
        p, wx, w1, w2 = (self.update_net[name].float() for name in ("p", "wx", "w1", "w2"))
        B, T = tokens.x.shape[:2]
        parts = []
        for E, averaged in zip(state.unbind(-2), averaged_BTHE.chunk(2, -1), strict=True):
            E = E.expand(B, T, self.arch.heads, -1) + torch.einsum("hg,btgc->bthc", p, averaged)
            psi = F.silu(tokens.attention @ wx.T)
            wide = torch.einsum("ih,bthc->btic", w1, E) * psi[..., None]
            parts.append(E + torch.einsum("hi,btic->bthc", w2, wide))
        return torch.stack(parts, -2)


def separate_calls(
    scores: Scores, v: Tensor, carried: Tensor | None, backend: str
) -> tuple[Tensor, Tensor | None]:
    """One attention call for the values and one for each d columns of what is carried."""
    values, _ = attention.attend(scores, v, None, "sdpa")
    if carried is None:
        return values, None
    parts = carried.to(v.dtype).expand(*v.shape[:3], -1).split(v.shape[-1], -1)
    return values, torch.cat([attention.attend(scores, p, None, "sdpa")[0] for p in parts], -1)


if __name__ == "__main__":
    sys.exit(main())
