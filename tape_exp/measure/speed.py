"""How fast each positional encoding is, compared with RoPE in the same run: ``python -m
tape_exp.measure.speed [--out FOLDER]``.

It needs only torch and matplotlib. Every measurement is a round-robin over its cases, so that a
slow minute of the machine meets all of them; times are medians with quartiles, ratios are medians
of the rounds' own ratios.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape_exp.drawing.timings import timing_curves
from tape_exp.machine.hardware import machine_name, peak_flops
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.count import attention_flops
from tape_exp.measure.encodings import ENCODINGS
from tape_exp.measure.results import add_device, add_folder, why, write_record
from tape_exp.models import attention
from tape_exp.models.attention import sdpa
from tape_exp.models.block import on_demand
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate, new_cache
from tape_exp.models.positions.base import Features, PositionEncoding, overrides
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.step import step_case
from tape_exp.models.timing import Row, round_robin, summary
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

TIMED = ("rope", "tape", "nope", "xpos", "randpe", "alibi", "t5", "fire", "kerple_log")
Failed = Callable[[str, Exception], None]  # takes what failed, and why


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


class SeparateTAPE(TAPE):
    """The rival: TAPE as public code writes it. Cosines and sines have the full head dimension, are
    averaged by two further attention calls, and are updated one after the other, ψ computed for
    each and E widened to I rows; after the last layer too, where nobody reads the result. Same
    function.
    """

    def initial_state(self, positions_BT: Tensor) -> Tensor:
        """(B, T, 1, 2, d): each half twice, as RoPE's tables usually are."""
        return super().initial_state(positions_BT).repeat(1, 1, 1, 1, 2)

    def rotate(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: Tensor | None, features: Features | None = None
    ) -> tuple[Tensor, Tensor]:
        """x · cos + rotate_half(x) · sin over the full width."""
        assert state is not None
        cos, sin = state.unbind(-2)
        rotated = []
        for x in (q_BTHD, k_BTKD):
            real, imaginary = x.chunk(2, -1)
            rotated.append((x * cos + torch.cat([-imaginary, real], -1) * sin).to(x.dtype))
        return rotated[0], rotated[1]

    def update(self, state: Tensor | None, attended: Tensor | None, x_BTC: Tensor) -> Tensor:
        """E + P Ẽ, then E + W2 diag(ψ) W1ᵀ E, literally, for the cosines and for the sines."""
        assert state is not None
        assert attended is not None
        B, T = x_BTC.shape[:2]
        parts = []
        for E, averaged in zip(state.unbind(-2), attended.chunk(2, -1), strict=True):
            E = E.expand(B, T, self.arch.heads, -1) + torch.einsum(
                "hg,btgc->bthc", self.p.float(), averaged.float()
            )
            psi = F.silu(x_BTC.float() @ self.wx.float().T)
            wide = torch.einsum("ih,bthc->btic", self.w1.float(), E) * psi[..., None]
            parts.append(E + torch.einsum("hi,btic->bthc", self.w2.float(), wide))
        return torch.stack(parts, -2)


def separate_calls(inputs: attention.Inputs) -> tuple[Tensor, Tensor | None]:
    """One attention call for the values and one for each d columns of what is carried."""
    out, _ = sdpa.compute(attention.Inputs(inputs.q, inputs.k, inputs.v, None, None, None, None))
    if inputs.carried is None:
        return out, None
    parts = (
        inputs.carried.to(inputs.v.dtype)
        .expand(*inputs.q.shape[:3], -1)
        .split(inputs.v.shape[-1], -1)
    )
    attended = [
        sdpa.compute(attention.Inputs(inputs.q, inputs.k, p, None, None, None, None))[0]
        for p in parts
    ]
    return out, torch.cat(attended, -1)


def core_cases(
    shapes: Shapes, T: int, backward: bool, device: torch.device, failed: Failed
) -> dict[str, Callable[[], Any]]:
    """Attention only, as ``<encoding>/<backend>`` for each able backend, with bias or state.

    The gradients of the outputs are there, and those of the inputs are not added up: at 512 tokens
    a loss, its gradient and such sums would take a GPU longer than attention.
    """
    arch = shapes.arch
    cases: dict[str, Callable[[], Any]] = {}
    for name in TIMED:
        if name in ("nope", "xpos", "randpe"):
            continue  # their core is RoPE's
        position = ENCODINGS[name](arch)
        position.init_weights(torch.Generator().manual_seed(0))  # of a CPU, where it still is
        position.to(device)
        heads = (shapes.batch, T, arch.heads, arch.head_dim)
        q, k, v = (
            torch.randn(heads, device=device, dtype=shapes.dtype, requires_grad=backward)
            for _ in range(3)
        )
        positions = position.positions(1, T, device)
        extra: dict[str, Any] = {}
        if isinstance(position, TAPE):
            extra["carried"] = torch.randn(
                heads, device=device, dtype=shapes.dtype, requires_grad=backward
            )

        learns = [x for x in (q, k, v, *extra.values(), *position.parameters()) if x.requires_grad]
        given = torch.ones_like(q)

        def biases(
            position: PositionEncoding = position, positions: Tensor = positions, T: int = T
        ) -> dict[str, Any]:
            table = position.bias_by_distance(T, positions.device)
            if table is not None:
                return {"by_distance": table, "slopes": position.slopes()}
            if overrides(position, "piecewise"):
                return {"bias": on_demand(position, positions)}
            return {"bias": position.bias(positions, positions)}

        def once(
            backend: str,
            q: Tensor = q,
            k: Tensor = k,
            v: Tensor = v,
            extra: Any = extra,
            biases: Any = biases,
            learns: list[Tensor] = learns,
            given: Tensor = given,
        ) -> Any:
            with torch.set_grad_enabled(backward):
                both = attention.attend(q, k, v, backend=backend, **extra, **biases())
                if backward:
                    out = [x for x in both if x is not None]
                    torch.autograd.grad(out, learns, [given] * len(out), allow_unused=True)

        for backend in attention.BACKENDS:
            if (backend == "reference" and T > 2048) or (
                backend in ("flex", "triton") and device.type == "cpu"
            ):
                continue  # the scores would not fit; neither is made for a CPU
            try:
                once(backend)
            except ConfigError:
                continue
            except Exception as error:  # whatever a compiler raises, the next one may be well
                mode = "forward + backward" if backward else "forward"
                failed(f"core T {T} {mode} {name}/{backend}", error)
                continue
            cases[f"{name}/{backend}"] = partial(once, backend)
    return cases


def compiled_cases(
    shapes: Shapes, T: int, device: torch.device, failed: Failed
) -> dict[str, Callable[[], Any]]:
    """Steps of RoPE and TAPE under torch.compile; none where one does not compile, since there
    would be nothing to compare the other with.
    """
    cases = {}
    for name in ("rope", "tape"):
        sizes = (shapes.batch, T, shapes.dtype, device)
        try:
            case = step_case(shapes.arch, ENCODINGS[name], *sizes, compiled=True)
            case()
        # Whatever the compiler raises: the eager measurements must not be lost.
        except Exception as error:
            failed(f"step T {T} {name}/compiled", error)
            return {}
        cases[f"{name}/compiled"] = case
    return cases


def activation_bytes(shapes: Shapes, T: int, device: torch.device, name: str) -> int:
    """Bytes that a forward pass keeps for its backward, each storage once, without parameters."""
    model = Decoder(shapes.arch, ENCODINGS[name]).to(device)
    tokens = torch.zeros(shapes.batch, T, dtype=torch.long, device=device)
    with torch.autocast(device.type, shapes.dtype, enabled=shapes.dtype != torch.float32):
        return kept_bytes(model, lambda: model(tokens, sampler=RowSampler(0)).square().mean())


def kept_bytes(module: torch.nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes that ``forward`` keeps for its backward, each storage once, none of the module's."""
    own = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x.detach()  # an operation that kept its own output would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        forward()
    return sum(kept.values())


def core_bytes(name: str, shapes: Shapes, T: int, backward: bool) -> int:
    """The least bytes that attention moves: q, k, v, out, TAPE's state and average, gradients."""
    tensors = 6 if name == "tape" else 4
    one = shapes.batch * T * shapes.arch.width * torch.finfo(shapes.dtype).bits // 8
    return one * (3 * tensors if backward else tensors)


def peak_memory(case: Callable[[], Any], device: torch.device) -> int:
    """Bytes that a case allocates at once on a GPU, beyond what was there before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    case()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def decoding(
    device: torch.device, rows: int = 64, prompt: int = 512, new: int = 128
) -> Iterator[Row]:
    """``new`` tokens with and without the cache, and the cost of a token against the context."""
    arch = Arch(3, 96, 4, 256, vocab=1000, max_length=8192, train_length=8192)
    for name in ("rope", "tape", "alibi"):
        model = Decoder(arch, ENCODINGS[name]).to(device).eval()
        tokens = torch.randint(arch.vocab, (rows, prompt + new), device=device)
        generate(model, list(tokens[:, :prompt]), 2)  # compiles what Triton has not compiled yet
        cached = seconds_of(partial(generate, model, list(tokens[:, :prompt]), new), device)
        lengths = [prompt + round(i * (new - 1) / 4) for i in range(5)]
        with torch.inference_mode():
            without = [
                seconds_of(partial(model, tokens[:, :length], last_only=True), device)
                for length in lengths
            ]
            # Every length costs between the first and the last.
            uncached = new * statistics.mean(without)
            per_token = {}
            for context in (256, 512, 1024, 2048, 4096):
                cache = new_cache(model, context + 16, None, 4)
                start, one = (
                    torch.zeros(4, T, dtype=torch.long, device=device) for T in (context, 1)
                )
                model(start, cache=cache, last_only=True)
                spent = [seconds_of(partial(model, one, cache=cache), device) for _ in range(16)]
                per_token[context] = round(1e3 * statistics.median(spent), 3)
        yield {
            "encoding": name,
            "rows": rows,
            "prompt": prompt,
            "new_tokens": new,
            "cached_s": round(cached, 3),
            "uncached_s": round(uncached, 3),
            "uncached_from": f"mean of the lengths {lengths} times {new}",
            "speedup": round(uncached / cached, 2),
            "ms_per_token_by_context": per_token,
        }


def seconds_of(case: Callable[[], Any], device: torch.device) -> float:
    """The seconds of one call, from an idle device to an idle device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    began = time.perf_counter()
    case()
    wait(device)
    return time.perf_counter() - began


def measure(
    device: torch.device,
    shapes: Shapes,
    say: Callable[[str], Any] = print,
    keep: Callable[[dict[str, Any]], Any] = lambda record: None,
) -> dict[str, Any]:
    """Everything, as one JSON-ready record of this machine.

    ``failed`` lists what could not be measured, a backend at a length or a whole part, and why.

    Args:
        keep: called with the record after each part, so that what is cut off leaves the parts
            before it.
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

    def failed(what: str, error: Exception) -> None:
        record["failed"].append({"what": what, "why": why(error)})
        say(f"{what} failed: {why(error)}")

    # What is cut off lacks what comes last: the programs that are compiled the longest.
    parts: list[tuple[str, str, Callable[[], Iterable[Row]]]] = [
        ("rows", f"step T {T}", partial(step_rows, shapes, T, device, failed))
        for T in shapes.step_lengths
    ]
    parts.append(("decoding", "decoding", partial(decoding, device)))
    if device.type == "cuda":
        parts += [
            ("rows", f"compiled step T {T}", partial(compiled_rows, shapes, T, device, failed))
            for T in shapes.step_lengths
        ]
    parts += [
        ("rows", f"core T {T}", partial(core_rows, shapes, T, backward, device, failed))
        for T in shapes.lengths
        for backward in (False, True)
    ]
    for key, name, part in parts:
        try:
            for row in part():
                record[key].append(row)
                say(_line(row) if key == "rows" else _decoding_line(row))
        except Exception as error:  # Triton's are of no common class but this
            failed(name, error)
        keep(record)
    return record


def core_rows(
    shapes: Shapes, T: int, backward: bool, device: torch.device, failed: Failed
) -> Iterator[Row]:
    """Attention alone at one length, each case relative to RoPE on its fastest backend."""
    cases = core_cases(shapes, T, backward, device, failed)
    of_rope = [name for name in cases if name.startswith("rope/")]
    if not of_rope:
        raise RuntimeError("no backend computes RoPE, which the others are compared with")
    times = round_robin(cases, device, shapes.seconds)
    base = min(of_rope, key=lambda name: statistics.median(times[name]))
    peak = peak_flops(device)
    for case, spent in times.items():
        name, backend = case.split("/")
        row: Row = {"what": "core", "encoding": name, "backend": backend}
        row |= {"T": T, "backward": backward} | summary(spent, times[base])
        sizes = (shapes.batch, T, shapes.arch.width, shapes.arch.head_dim)
        flops = sum(attention_flops(name, phase, sizes) for phase in {False, backward})
        row["tflops"] = round(flops / row["ms"] / 1e9, 3)
        row["bytes"] = core_bytes(name, shapes, T, backward)
        if peak:
            row["share_of_peak"] = round(flops / row["ms"] * 1e3 / peak, 4)
        if device.type == "cuda":
            row["peak_memory_bytes"] = peak_memory(cases[case], device)
        yield row


def step_rows(shapes: Shapes, T: int, device: torch.device, failed: Failed) -> Iterator[Row]:
    """Training steps at one length, each in turn with RoPE's, which it is relative to: two models
    are in memory at a time, and one that does not fit leaves the others.
    """
    sizes = (shapes.batch, T, shapes.dtype, device)
    rope = step_case(shapes.arch, ENCODINGS["rope"], *sizes)
    made = {name: partial(step_case, shapes.arch, ENCODINGS[name], *sizes) for name in TIMED[1:]}
    made["tape_separate"] = partial(
        step_case, shapes.arch, SeparateTAPE, *sizes, backend="separate", updates_last=True
    )
    shown = set()
    attention.BACKENDS["separate"] = attention.Backend(separate_calls, lambda _: None)
    try:
        for name, make in made.items():
            try:
                cases = {"rope/eager": rope, f"{name}/eager": make()}
                times = round_robin(cases, device, 6 * shapes.seconds / len(TIMED))
                every = rows_of_steps(times, shapes, T, device)
                rows = [row for row in every if row["encoding"] not in shown]
                for row in rows:
                    if row["encoding"] in TIMED:
                        kept = activation_bytes(shapes, T, device, row["encoding"])
                        row["activation_bytes"] = kept
            except Exception as error:  # whatever a compiler or the allocator raises
                failed(f"step T {T} {name}", error)
                continue
            yield from rows
            shown |= {row["encoding"] for row in rows}
    finally:
        del attention.BACKENDS["separate"]


def compiled_rows(shapes: Shapes, T: int, device: torch.device, failed: Failed) -> Iterator[Row]:
    """Those of RoPE and TAPE by torch.compile, relative to RoPE's."""
    if cases := compiled_cases(shapes, T, device, failed):
        yield from rows_of_steps(round_robin(cases, device, shapes.seconds), shapes, T, device)


def rows_of_steps(
    times: dict[str, list[float]], shapes: Shapes, T: int, device: torch.device
) -> Iterator[Row]:
    """A row for each case ``<encoding>/<eager or compiled>``."""
    with torch.device("meta"):
        flops = Decoder(shapes.arch, RoPE).flops_per_token(T)
    peak = peak_flops(device)
    for case, spent in times.items():
        name, how = case.split("/")
        row: Row = {"what": "step", "encoding": name, "backend": how, "T": T, "backward": True}
        row |= summary(spent, times[f"rope/{how}"])
        row["tokens_per_second"] = round(1e3 * shapes.batch * T / row["ms"], 1)
        if peak:
            row["mfu"] = round(row["tokens_per_second"] * flops / peak, 4)
        yield row


def _decoding_line(row: Row) -> str:
    both = f"cached {row['cached_s']:.2f} s, without {row['uncached_s']:.2f} s"
    return f"decode {row['encoding']:12} {both}: {row['speedup']:.1f} ×"


def _line(row: Row) -> str:
    mode = "forward + backward" if row["backward"] else "forward"
    label = f"{row['what']:5} T {row['T']:5} {mode:19} {row['encoding']:14} {row['backend']:10}"
    return f"{label} {row['ms']:10.3f} ms  {row['ratio_to_rope']:6.3f} × RoPE"


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure this machine, write ``speed-<machine>.json`` and ``.png``."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.speed",
        description="Measure how fast each positional encoding is, compared with RoPE in the same "
        "run.",
    )
    add_folder(parser, "speed")
    add_device(parser)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    shapes = default_shapes(given.device)
    keep = partial(write_record, "speed", folder=given.out)
    say = partial(print, flush=True)
    record = measure(given.device, shapes, say, partial(keep, finished=False))
    path = keep(record)
    print(path, timing_curves(record).draw(path.with_suffix(".png")), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
