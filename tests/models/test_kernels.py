"""The fused kernel agrees with the explicit softmax, on outputs and on every gradient: on a GPU, or
in triton's interpreter.
"""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_exp.models.attention import attend
from tape_exp.models.conformance import randomise
from tape_exp.models.kernels import causal, runtime
from tape_exp.models.kernels.causal import Piecewise, fused_attention, supports
from tests.conftest import by_pair, make_decoder

triton = pytest.importorskip("triton", reason="triton is not installed: pip install triton")
causal_triton = pytest.importorskip("tape_exp.models.kernels.causal_triton")

CUDA = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not CUDA, reason="no CUDA device")
pytestmark = (
    [pytest.mark.gpu] if CUDA else []
)  # where there is one, `pytest -m gpu` means everything here


@pytest.fixture(autouse=True)
def device():
    """Where tensors live; products of fp32 are fp32 there, so that the reference is one."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield torch.device("cuda" if CUDA else "cpu")
    torch.backends.cuda.matmul.fp32_precision = before


def inputs(
    device,
    B=2,
    T=64,
    S=None,
    H=2,
    K=None,
    D=32,
    C=None,
    rows=None,
    heads=None,
    dtype=torch.float32,
    learns=True,
    table=False,
    bends=0,
    keys=False,
):
    """q, k, v, carried (C wide, for ``rows`` of the batch and ``heads``), and a ``table`` or a
    function of so many ``bends``, with distances to spare, and a bias of ``keys`` in fp64; all that
    learns are leaves.
    """
    generator = torch.Generator().manual_seed(T + D)
    S, K = S or T, K or H

    def make(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    given = {"q": make(B, T, H, D), "k": make(B, S, K, D), "v": make(B, S, K, D)}
    if C is not None:
        given["carried"] = make(rows or B, S, heads or H, C).detach().requires_grad_(learns)
    if table:
        given["by_distance"] = torch.randn(H, S + 3, generator=generator).to(device)
        given["by_distance"].requires_grad_()
    if bends:
        rise, level = (torch.randn(H, bends + 1, generator=generator) for _ in range(2))
        pieces = {
            "near": torch.arange(S + 3.0).add(1).log(),
            "far": 1 / torch.arange(S - T, S).clamp(min=T // 3).add(2.0).log(),
            "bends": torch.rand(bends, generator=generator).sort().values,
            "level": level,
            "rise": rise,
        }
        given |= {n: x.to(device).requires_grad_(n != "bends") for n, x in pieces.items()}
    if keys:
        given["key_bias"] = torch.rand(B, S, H, generator=generator).to(device).double().cumsum(1)
        given["key_bias"].requires_grad_()
    return given


def added(given):
    """The biases as arguments of the kernel."""
    bias = {name: given[name] for name in ("by_distance", "key_bias") if name in given}
    if "near" in given:
        bias["piecewise"] = Piecewise(*(given[name] for name in Piecewise._fields))
    return bias


@pytest.fixture
def repeatable():
    """The gradient of q in a second pass, whose order of sums is always the same."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def alibi(slopes, T, S):
    distance = torch.arange(S - T, S, device=slopes.device)[:, None] - torch.arange(
        S, device=slopes.device
    )
    return -slopes[:, None, None] * distance


def results(given, attention):
    """Both outputs and the gradients of all that learns, by name; both outputs take part in the
    loss, weighted unevenly.
    """
    tensors = given["q"], given["k"], given["v"], given.get("carried")
    out, attended = attention(*tensors, **added(given))
    got = {"out": out} if attended is None else {"out": out, "attended": attended}
    loss = sum(
        (x.float() * torch.linspace(-0.5, 1, x.shape[-1], device=x.device)).square().sum()
        for x in got.values()
    )
    learns = {name: x for name, x in given.items() if x.requires_grad}
    gradients = torch.autograd.grad(loss, list(learns.values()))
    return got | {f"d_{name}": gradient for name, gradient in zip(learns, gradients, strict=True)}


def reference(given, slopes=None):
    given = {name: x.detach().float().requires_grad_(x.requires_grad) for name, x in given.items()}
    T, S = given["q"].shape[1], given["k"].shape[1]

    def attention(q, k, v, c, piecewise=None, **others):
        bias = None if slopes is None else alibi(slopes, T, S)
        bias = by_pair(piecewise, T, S) if piecewise else bias
        return attend(q, k, v, bias=bias, carried=c, backend="reference", **others)

    return results(given, attention)


def assert_agree(got, expected, tolerance):
    assert got.keys() == expected.keys()
    for name, x in got.items():
        assert x.shape == expected[name].shape
        assert x.isfinite().all(), name
        error = (x.float() - expected[name]).norm()
        assert error <= tolerance * (expected[name].norm() + 1), (
            f"{name}: {error / expected[name].norm():.1e}"
        )


CASES = [
    *[{"T": T, "C": 32} for T in (1, 17)],
    {"B": 1, "T": 64, "C": 32},
    *[{"B": 1, "T": 130, "H": 1, "C": C} for C in (32, None)],
    *[{"T": 17, "D": D, "C": D} for D in (48, 64, 128)],
    {"T": 1},
    {"T": 17, "D": 8, "C": 24},
    {"T": 40, "D": 32, "C": 64},
    {"T": 40, "D": 64, "C": 20},
    {"T": 17, "S": 50, "C": 32},
    {"T": 1, "S": 65, "C": 32},
    {"B": 1, "T": 60, "S": 130, "D": 48},
    {"T": 17, "C": 32, "rows": 1},
    {"T": 17, "C": 32, "heads": 1},
    {"T": 17, "C": 32, "heads": 1, "rows": 1},
    {"T": 17, "C": 32, "learns": False},
    {"T": 17, "H": 4, "K": 2, "C": 32},
    {"T": 17, "S": 33, "H": 3, "K": 1},
    {"B": 1, "T": 70, "C": 32, "slopes": (0.5, 0.01)},
    {"T": 17, "S": 50, "slopes": (0.0, 2.0)},
    {"B": 1, "T": 70, "H": 1, "C": 20, "table": True},
    {"T": 17, "S": 50, "H": 2, "K": 1, "D": 16, "table": True},
    {"B": 1, "T": 70, "H": 1, "C": 20, "bends": 32},
    {"T": 17, "S": 50, "H": 2, "K": 1, "D": 16, "bends": 3, "keys": True},
    {"B": 1, "T": 40, "H": 1, "C": 20, "D": 16, "keys": True},
    {"B": 1, "T": 17, "S": 33, "K": 1, "D": 16, "slopes": (0.5, 0.1), "keys": True},
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items())
)
def test_outputs_and_every_gradient_agree_with_the_reference(device, case):
    case = dict(case)
    slopes = case.pop("slopes", None)
    slopes = None if slopes is None else torch.tensor(slopes, device=device)
    given = inputs(device, **case)
    got = results(given, lambda q, k, v, c, **bias: fused_attention(q, k, v, c, slopes, **bias))
    assert_agree(got, reference(given, slopes), 1e-6 if "keys" in case else 1e-5)


@pytest.mark.parametrize(
    "case",
    [
        {"B": 1, "T": 70, "C": 32},
        {"T": 17, "S": 50, "D": 48},
        {"T": 17, "H": 4, "K": 2, "C": 24, "heads": 1},
        {"T": 17, "C": 32, "dtype": torch.bfloat16},
    ],
    ids=lambda case: "-".join(f"{k}{v}" for k, v in case.items()),
)
def test_the_repeatable_order_agrees_with_the_reference_too(device, case, repeatable, monkeypatch):
    ran = []
    program = causal._programs().query_gradient
    monkeypatch.setattr(
        program, "run", lambda *a, run=program.run, **k: (ran.append(1), run(*a, **k))
    )
    given = inputs(device, **case)
    got = results(given, fused_attention)
    assert ran
    assert_agree(got, reference(given), 2e-2 if "dtype" in case else 1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)], ids=str
)
@pytest.mark.parametrize("heads", [2, 1])
def test_half_precision_agrees_with_an_fp32_reference(device, dtype, tolerance, heads):
    bias = {"table": True, "keys": True} if heads == 1 else {"bends": 8}
    sizes = {"B": 1, "T": 50, "S": 60, "K": 1, "C": 32, "heads": heads}
    given = inputs(device, **sizes, dtype=dtype, **bias)
    got = results(given, fused_attention)
    kept = ("out", "attended", "d_q", "d_k", "d_v", "d_carried")
    assert all(got[name].dtype == dtype for name in kept)
    assert_agree(got, reference(given), tolerance)
    if "d_level" in got:  # a constant changes no probability, whatever the rounding of the output
        assert got["d_level"].sum(1).abs().max() < 1e-4 * got["d_level"].abs().max()
    else:
        assert got["d_key_bias"].dtype == torch.float64
        assert got["d_key_bias"].sum(1).abs().max() < 1e-4 * got["d_key_bias"].abs().max()


def test_what_is_carried_in_fp32_beside_half_precision_gets_an_fp32_gradient(device):
    given = inputs(device, T=20, dtype=torch.float16)
    given["carried"] = inputs(device, T=20, C=32)["carried"]
    got = results(given, fused_attention)
    assert got["attended"].dtype == torch.float16
    assert got["d_carried"].dtype == torch.float32
    assert_agree(got, reference(given), 2e-3)


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 32), (32, 32), (64, 16), (16, 64)])
def test_every_shape_of_tiles_computes_the_same(device, monkeypatch, block_m, block_n):
    programs = causal._programs()
    config = triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=4, num_stages=1)
    for program in (programs.attention, programs.query_gradient, programs.key_gradient):
        monkeypatch.setattr(program, "configs", [config])
    monkeypatch.setattr(programs, "owned_keys", lambda *_: block_n)
    for sizes in ({"T": 75}, {"T": 37, "S": 75}):
        given = inputs(device, B=1, H=1, C=16, D=16, bends=8 * (block_n <= block_m), **sizes)
        assert_agree(results(given, fused_attention), reference(given), 1e-5)


def test_trying_tiles_leaves_nothing_in_the_gradient(device, monkeypatch):
    """That of the queries is added to, by every tile that is tried."""
    program = causal._programs().key_gradient
    tiles = [
        triton.Config({"BLOCK_M": 16, "BLOCK_N": n}, num_warps=4, num_stages=1) for n in (16, 32)
    ]
    monkeypatch.setattr(program, "configs", tiles)
    monkeypatch.setattr(program, "cache", {})
    tried = []
    monkeypatch.setattr(
        program,
        "_do_bench",
        lambda call, quantiles: (call(), call(), tried.append(1), [1.0] * 3)[3],
    )
    given = inputs(device, B=1, H=1, T=20, C=16, D=16)
    assert_agree(results(given, fused_attention), reference(given), 1e-5)
    assert len(tried) == 2


def test_strided_inputs_are_read_in_place_and_others_are_copied(device):
    B, T, H, D = 2, 20, 2, 16
    packed = torch.randn(B, T, 3, H, D, device=device)
    head_first = torch.randn(B, H, T, D, device=device).transpose(1, 2)
    last_strided = torch.randn(B, T, H, 2 * D, device=device)[..., ::2]
    expanded = torch.randn(1, T, 1, D, device=device).expand(B, T, H, D)
    views = {"q": packed[:, :, 1], "k": head_first, "v": last_strided, "carried": expanded}
    views = {name: x.detach().requires_grad_() for name, x in views.items()}
    assert_agree(results(views, fused_attention), reference(views), 1e-5)


@pytest.mark.parametrize("name", ["t5", "kerple_log", "fire"])
def test_a_bias_learns_its_parameters_through_a_whole_model(device, arch, name):
    logits, gradients = {}, {}
    near = ["model.threshold=4"] if name == "fire" else []
    for backend in ("reference", "triton"):
        model = make_decoder(name, replace(arch, layers=1), *near, backend=backend).to(device)
        randomise(model)
        tokens = torch.arange(20, device=device).view(2, 10) % 14
        logits[backend] = model(tokens)
        logits[backend].square().mean().backward()
        gradients[backend] = {key: x.grad for key, x in model.named_parameters()}
    assert any(".position." in key for key in gradients["triton"])
    assert_agree(gradients["triton"], gradients["reference"], 1e-5)
    assert torch.allclose(logits["triton"], logits["reference"], atol=1e-5)


@pytest.mark.parametrize("used", [0, 1])
def test_a_loss_on_one_output_alone(device, used):
    given = inputs(device, T=20, C=32)
    ours = torch.autograd.grad(
        fused_attention(*given.values())[used].sum(), list(given.values()), materialize_grads=True
    )
    q, k, v, c = given.values()
    theirs = attend(q, k, v, carried=c, backend="reference")[used].sum()
    theirs = torch.autograd.grad(theirs, list(given.values()), materialize_grads=True)
    assert_agree(dict(zip(given, ours, strict=True)), dict(zip(given, theirs, strict=True)), 1e-5)


@pytest.mark.parametrize(
    "case",
    [
        {"B": 1, "H": 1, "T": 9, "C": 16, "D": 16},
        {"B": 1, "H": 1, "T": 9, "D": 16, "bends": 4, "keys": True},
        {"T": 5, "S": 9, "H": 2, "K": 1, "C": 16, "D": 16, "rows": 1},
    ],
    ids=str,
)
def test_the_operator_is_one_that_compilers_can_take(device, case):
    """Its shapes are told without running it, and its gradients go through its backward."""
    given = inputs(device, **case)
    tables = causal._tables(None, added(given).get("piecewise"), given["q"], given["k"])
    tables = [x.detach().requires_grad_(x.requires_grad) for x in tables]
    tensors = given["q"], given["k"], given["v"], given.get("carried")
    arguments = (*tensors, None, given.get("key_bias"), tables, 0.25)
    torch.library.opcheck(causal._attention, arguments)
    torch._dynamo.reset()
    compiled = torch.compile(fused_attention, fullgraph=True, backend="aot_eager")
    assert_agree(results(given, compiled), results(given, fused_attention), 1e-6)


def test_the_scale_is_the_callers(device):
    given = inputs(device, T=20, C=32)
    got = results(given, lambda q, k, v, c: fused_attention(q, k, v, c, scale=0.3))
    scaled = results(
        given, lambda q, k, v, c: attend(q * (0.3 * 32**0.5), k, v, carried=c, backend="reference")
    )
    assert_agree(got, scaled, 1e-5)


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_logits_and_ragged_lengths_stay_finite(device, size):
    """These lengths leave blocks whose tails are padding, and blocks most of whose entries are
    masked.
    """
    given = inputs(device, B=1, H=1, T=45, S=70, C=16, D=16)
    given["q"] = (given["q"].detach() * size).requires_grad_()
    got = results(given, fused_attention)
    assert all(x.isfinite().all() for x in got.values())
    assert_agree({"out": got["out"]}, {"out": reference(given)["out"]}, 1e-4)


def test_future_keys_do_not_influence_earlier_outputs(device):
    given = {name: x.detach() for name, x in inputs(device, T=50, S=60, C=32).items()}
    t = 33
    before = fused_attention(*given.values())
    for name in ("k", "v", "carried"):
        given[name][:, 10 + t + 1 :] = 1e3 * torch.randn_like(given[name][:, 10 + t + 1 :])
    after = fused_attention(*given.values())
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a[:, : t + 1], b[:, : t + 1])
        assert not torch.allclose(a[:, t + 1 :], b[:, t + 1 :])


def test_what_is_not_supported_is_refused_with_the_reason(device):
    q, k, v, c = inputs(device, T=5, C=16).values()
    assert supports(q, k, v, c) is None
    assert supports(q, k, v, c[:1, :, :1]) is None
    assert "float64" in supports(q.double(), k.double(), v.double())
    assert "bfloat16" in supports(q, k.bfloat16(), v)
    assert "more than 128" in supports(
        *(torch.zeros(1, 4, 1, 136, device=device) for _ in range(3))
    )
    assert "more than 128" in supports(q, k, v, torch.zeros(2, 5, 2, 130, device=device))
    assert "queries" in supports(q, k[:, :3], v[:, :3])
    assert "(2 or 1, 5, 2 or 1, C)" in supports(q, k, v, c[:, :3])
    assert "meta" in supports(q.to("meta"), k, v)
    with pytest.raises(ValueError, match="cannot serve this call: There are 5 queries for 3 keys"):
        fused_attention(q, k[:, :3], v[:, :3])


@pytest.mark.parametrize(("gpu", "kib"), [("RTX 4090", 99), ("A100", 163)])
def test_wide_heads_in_fp32_need_a_gpu_with_room_for_them(gpu, kib, monkeypatch):
    """As the smallest tiles, compiled, tell: up to 160 KiB."""
    properties = SimpleNamespace(name=gpu, major=8, shared_memory_per_block_optin=kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(runtime, "interpreted", lambda: False)
    with FakeTensorMode():
        wide, narrow = (torch.empty(1, 4, 1, D, device="cuda") for D in (128, 64))
        assert supports(narrow, narrow, narrow) is None
        assert supports(*[wide.bfloat16()] * 3) is None
        reason = supports(wide, wide, wide)
    assert reason is None if kib == 163 else f"a block of the {gpu} has too little" in reason


@pytest.mark.parametrize(("arch", "keys"), [(80, 32), (89, 32), (90, 64), (100, 64), (120, 32)])
def test_a_bias_that_bends_keeps_sums_of_as_many_keys_as_have_registers(arch, keys, monkeypatch):
    gpu = SimpleNamespace(get_current_target=lambda: SimpleNamespace(arch=arch))
    monkeypatch.setattr(causal_triton, "INTERPRETED", False)
    monkeypatch.setattr(triton.runtime.driver, "_active", gpu)
    assert causal_triton.owned_keys(torch.bfloat16, 32, 64) == keys
    assert causal_triton.owned_keys(torch.bfloat16, 32, 128) == 32
    assert causal_triton.owned_keys(torch.bfloat16, 0, 128) == 64


def test_without_triton_the_module_imports_and_says_so(device, monkeypatch):
    monkeypatch.setattr(runtime, "installed", lambda: False)
    q, k, v = inputs(device, T=5).values()
    assert supports(q, k, v) == "triton is not installed."


COMPILE = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import autotuner, driver, jit
from tape_exp.models.kernels import causal, causal_triton, maps, rotation, update

class Absent:  # a GPU to compile for
    get_current_target = lambda self: GPUTarget("cuda", int(sys.argv[1]), 32)
    get_current_device = get_current_stream = lambda self, *_: 0

def compile_only(self, *arguments, grid, warmup, **keywords):
    self.nargs = dict(zip(self.arg_names, arguments))
    one = keywords["BY_DISTANCE"] or keywords.get("ONE_PASS") is False
    for config in self.prune_configs(keywords)[-1 if one else -2:]:
        self.fn.warmup(*arguments, grid=(1,), **keywords, **config.all_kwargs())
        print(self.base_fn.__name__, config)

run = jit.JITFunction.run

def compile_plain(self, *arguments, grid, warmup, **keywords):
    if not warmup:
        print(self.__name__)
    return run(self, *arguments, grid=(1,), warmup=True, **keywords)

driver.set_active(Absent())
autotuner.Autotuner.run = compile_only
jit.JITFunction.run = compile_plain
causal.supports = lambda *_: None
tables = [torch.zeros(size, requires_grad=True) for size in (64, 64, 32, (2, 33), (2, 33))]
biases = {"80": {"by_distance": torch.zeros(2, 64, requires_grad=True)}}
biases["90"] = {"piecewise": causal.Piecewise(*tables)}
biases["90"]["key_bias"] = torch.zeros(1, 64, 2, dtype=torch.float64, requires_grad=True)
calls = [(torch.bfloat16, 64, 64, 2, biases[sys.argv[1]])]
if sys.argv[1] == "80":
    keys = torch.zeros(1, 64, 2, requires_grad=True)
    calls.append((torch.float32, 32, 48, 1, {"slopes": torch.ones(2), "key_bias": keys}))
else:
    calls.append((torch.bfloat16, 64, 64, 2, {}))
for dtype, D, C, heads, bias in calls:
    q, k, v = (torch.zeros(1, 64, 2, D, dtype=dtype, requires_grad=True) for _ in range(3))
    carried = torch.zeros(1, 64, heads, C, dtype=dtype, requires_grad=True)
    for repeatable in (True, False) if bias else (False,):
        torch.use_deterministic_algorithms(repeatable)
        out, attended = causal.fused_attention(q, k, v, carried, **bias)
        (out.sum() + attended.sum()).backward()
if sys.argv[1] == "80":
    sys.exit()  # the others have no tiles that depend on the GPU
q = torch.zeros(1, 64, 12, 64, dtype=torch.bfloat16, requires_grad=True)
state = torch.zeros(1, 64, 12, 2, 32, requires_grad=True)
sum(x.sum() for x in rotation.rotated(q, q, state)).backward()
x, wx, v = torch.zeros(1, 64, 768).bfloat16(), torch.zeros(48, 768), torch.zeros(48, 144)
F = maps.maps(x, wx.requires_grad_(), v).unflatten(-1, (12, 12))
pending = update.Update(state.flatten(3), q, torch.zeros(12, 12), F)
sum(x.sum() for x in update.updated(q, q, pending, copies=True)).backward()
"""


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_every_program_compiles_for_gpus_that_are_not_here(architecture, tmp_path):
    """To machine code, for an A100 and an H100; the interpreter would accept much that the compiler
    refuses.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", COMPILE, architecture]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    for program in ("attention", "query_gradient", "key_gradient"):
        assert f"{program} BLOCK_M" in done.stdout
    assert "row_sums" in done.stdout
    pairs = [(name, f"{name}_gradient") for name in ("rotate", "update", "maps")]
    others = ("sum_of_products", *itertools.chain(*pairs)) if architecture == "90" else ()
    for program in others:
        assert f"{program}\n" in done.stdout


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_long_sequences_and_tuned_tiles(device, dtype, width):
    bias = {32: {}, 64: {"table": True}, 128: {"bends": 32}}[width]
    given = inputs(device, B=2, T=1000, S=1100, H=4, D=width, C=width, dtype=dtype, **bias)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5}[dtype]
    assert_agree(results(given, fused_attention), reference(given), tolerance)


@pytest.mark.gpu
@needs_gpu
def test_offsets_beyond_32_bits(device):
    """The last row of a batch whose elements lie up to 2.2e9 apart attends as it does alone."""
    interleaved = torch.randn(68, 4096, 64, 128, device=device, dtype=torch.bfloat16)
    q, k = interleaved[::2], interleaved[1::2]
    with torch.no_grad():
        out, _ = fused_attention(q, k, k)
        alone, _ = fused_attention(q[-1:].clone(), k[-1:].clone(), k[-1:].clone())
    torch.testing.assert_close(out[-1:], alone)


@pytest.mark.gpu
@needs_gpu
def test_memory_does_not_grow_with_the_square_of_the_length(device):
    given = inputs(device, B=1, T=8192, H=2, D=64, C=64, dtype=torch.bfloat16)
    results(given, fused_attention)  # tiles are chosen here
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(given, fused_attention)
    assert (
        torch.cuda.max_memory_allocated() - before < 30 * given["q"].numel() * 4 < 8192**2 * 2 * 4
    )


@pytest.mark.gpu
@needs_gpu
def test_the_same_gradients_every_time(device, repeatable):
    sizes = {"T": 300, "H": 4, "K": 2, "C": 64, "D": 64, "heads": 1}
    given = inputs(device, **sizes, dtype=torch.bfloat16, bends=32)
    first, second = results(given, fused_attention), results(given, fused_attention)
    assert all(torch.equal(first[name], second[name]) for name in first)
