"""The fused rotation and TAPE's fused update agree with the torch code, on outputs and on every
gradient: on a GPU, or in triton's interpreter.
"""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_exp.models.attention import choices, forget
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels import maps, rotation, runtime, update
from tape_exp.models.positions.base import for_heads
from tape_exp.models.positions.rope import RoPE, turn
from tape_exp.models.positions.tape import TAPE
from tape_exp.settings.schema import Arch

pytest.importorskip("triton", reason="triton is not installed: pip install triton")

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if CUDA else []
FP32 = 1e-5 if CUDA else 1e-6  # a GPU makes a product of fp32 of three others
TOLERANCE = {torch.float32: FP32, torch.float16: 2e-3, torch.bfloat16: 1e-2}
TOKENS = torch.randint(0, 14, (2, 4), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def device():
    """Where tensors live; products of fp32 are fp32 there, so that the reference is one."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield torch.device("cuda" if CUDA else "cpu")
    torch.backends.cuda.matmul.fp32_precision = before


def made(device, seed=0):
    """A function that makes random tensors which learn."""
    generator = torch.Generator().manual_seed(seed)

    def make(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    return make


def results(function, given):
    """The outputs of ``function``, and the gradients of all that learns, of an uneven loss."""
    outputs = function(*given)
    outputs = [x for x in outputs if x is not None]
    learns = [x for x in given if x is not None and x.requires_grad]
    loss = sum(
        (x.float() * torch.linspace(-0.5, 1, x.shape[-1], device=x.device)).square().sum()
        for x in outputs
    )
    return [*outputs, *torch.autograd.grad(loss, learns)]


def assert_agree(got, expected, tolerance):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert (a - b).float().norm() <= tolerance * b.float().norm()


def turned(q, k, state):
    """The rotation in torch."""
    return turn(q, state), turn(for_heads(k, state.shape[2]), state)


ROTATIONS = [
    {},
    {"rows": 1, "heads": 1},
    {"heads": 1, "K": 2},
    {"K": 2},
    {"K": 1, "rows": 1, "D": 6},
    {"B": 1, "T": 1, "H": 1, "D": 64},
    {"H": 12, "D": 2},
    {"T": 3, "D": 128, "dtype": torch.bfloat16},
    {"K": 2, "dtype": torch.float16},
]


@pytest.mark.parametrize("case", ROTATIONS, ids=str)
def test_the_rotation_agrees_with_the_torch_code(device, case):
    case = {"B": 2, "T": 9, "H": 4, "D": 12, "dtype": torch.float32} | case
    B, T, H, D, dtype = (case[name] for name in ("B", "T", "H", "D", "dtype"))
    make = made(device)
    q, k = make(B, T, H, D, dtype=dtype), make(B, T, case.get("K", H), D, dtype=dtype)
    state = make(case.get("rows", B), T, case.get("heads", H), 2, D // 2)
    assert rotation.supports(q, k, state) is None
    given = (q, k, state)
    assert_agree(results(rotation.rotated, given), results(turned, given), TOLERANCE[dtype])


def test_a_state_that_does_not_learn_keeps_neither_queries_nor_keys(device):
    make = made(device)
    q, k, state = make(2, 5, 4, 8), make(2, 5, 2, 8), make(1, 5, 1, 2, 4).detach()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        rotation.rotated(q, k, state)
    assert [x.shape for x in kept] == [state.shape]
    given = (q, k, state)
    assert_agree(results(rotation.rotated, given), results(turned, given), FP32)


def test_strided_tensors_are_read_in_place_and_others_are_copied(device):
    packed = torch.randn(2, 5, 3, 4, 8, device=device)
    last_strided = torch.randn(2, 5, 4, 16, device=device)[..., ::2]
    state = torch.randn(1, 5, 1, 3, 4, device=device)[..., 1:, :]
    given = [x.detach().requires_grad_() for x in (packed[:, :, 1], last_strided, state)]
    assert_agree(results(rotation.rotated, given), results(turned, given), FP32)
    packed, last_strided = (
        x.detach().transpose(0, 1).requires_grad_() for x in (packed, last_strided)
    )
    q, k, E = (packed[:, :, i] for i in range(3))
    given = (q, k[..., :2, :], E, last_strided, made(device)(4, 4), None)
    assert_agree(results(updated, given), results(mixed, given), FP32)


def updated(q, k, *pending, **asked):
    """The update as the kernels make it, from tensors alone."""
    return update.updated(q, k, update.Update(*pending), **asked)


def mixed(q, k, E, attended, p, F, keeps=True, copies=False):
    """The update in torch, with maps that are made already, and the rotation by it."""
    if attended is not None:
        E = E + p @ attended.to(E.dtype)
    E = E if F is None else E + F @ E
    turned_by_it = turned(q, k, E.unflatten(-1, (2, -1)))
    return *turned_by_it, E if keeps else None, E.to(q.dtype) if copies else None


UPDATES = [
    {},
    {"attends": False},
    {"maps": False},
    {"attends": False, "maps": False},
    {"rows": 1, "heads": 1},
    {"H": 12, "D": 40, "B": 1},
    {"H": 17, "D": 16, "B": 1, "T": 4},
    {"H": 1, "D": 2, "T": 1},
    {"K": 2, "keeps": False},
    {"K": 1, "dtype": torch.bfloat16, "copies": True},
    {"dtype": torch.float16, "keeps": False, "copies": True},
]


@pytest.mark.parametrize("case", UPDATES, ids=str)
def test_the_update_agrees_with_the_torch_code(device, monkeypatch, case):
    """Of more tokens than a program takes; E may be expanded, as that of the first layer."""
    monkeypatch.setattr(update, "TOKENS", 3)
    case = {"B": 2, "T": 2, "H": 4, "D": 12, "dtype": torch.float32} | case
    B, T, H, D, dtype = (case[name] for name in ("B", "T", "H", "D", "dtype"))
    make = made(device)
    q, k = make(B, T, H, D, dtype=dtype), make(B, T, case.get("K", H), D, dtype=dtype)
    E = make(case.get("rows", B), T, case.get("heads", H), D)
    attended = make(B, T, H, D, dtype=dtype) if case.get("attends", True) else None
    p = None if attended is None else make(H, H)
    F = make(B, T, H, H) if case.get("maps", True) else None

    asked = {"keeps": case.get("keeps", True), "copies": case.get("copies", False)}

    def expanded(function):
        return lambda q, k, E, *others: function(q, k, E.expand(B, T, H, D), *others, **asked)

    whole = E.expand(B, T, H, D)
    assert update.supports(whole, attended, p, F) is update.turns(q, k, whole) is None
    given = (q, k, E, attended, p, F)
    got, expected = (results(expanded(function), given) for function in (updated, mixed))
    assert_agree(got, expected, TOLERANCE[dtype])


def fused_maps(*tensors):
    """The maps as the kernels make them."""
    return [maps.maps(*tensors)]


def made_maps(x, wx, v):
    """The maps from ψ in torch."""
    return [torch.nn.functional.silu(x.to(wx.dtype) @ wx.T) @ v]


MAPS = [
    (2, 40, 70, 17, 9, torch.float32),  # none a power of two, and more than a block of tokens
    (1, 1, 8, 4, 1, torch.float16),
    (3, 30, 64, 48, 144, torch.bfloat16),
]


@pytest.mark.parametrize(("B", "T", "C", "inner", "J", "dtype"), MAPS, ids=str)
def test_the_maps_agree_with_the_torch_code(device, monkeypatch, B, T, C, inner, J, dtype):
    monkeypatch.setattr(maps, "EACH", 64)  # several programs add up the gradients of a weight
    make = made(device)
    given = (make(B, T, C, dtype=dtype), make(inner, C), make(inner, J))
    assert maps.supports(*given) is None
    got = results(fused_maps, given)
    assert_agree(got, results(made_maps, given), TOLERANCE[dtype])
    exact = made_maps(*(x.double() for x in given))[0]
    error = (got[0] - exact).abs().max() / exact.abs().max()
    assert error < (1e-6 if dtype == torch.float32 else 2**-14), "fp32 even beside 16 bits"


@pytest.mark.parametrize(
    ("dtype", "products"),
    [(torch.float32, "tf32x3"), (torch.bfloat16, "bf16x3"), (torch.float16, "bf16x3")],
)
def test_products_of_fp32_beside_16_bits_are_of_bf16(dtype, products, device):
    make = made(device)
    k, E, wx, v = make(2, 3, 2, 8).to(dtype), make(2, 3, 4, 8), make(5, 8), make(5, 16)
    assert update._constants(k, E, None, None)["PRECISION"] == products
    assert maps._sizes(wx, v, dtype)["PRECISION"] == products
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert update._constants(k, E, None, None)["PRECISION"] == "tf32"


def test_the_operators_are_ones_that_compilers_can_take(device):
    """Shapes and types are told without running them."""
    make = made(device)
    q, k, state = make(2, 3, 4, 8), make(2, 3, 2, 8), make(2, 3, 4, 2, 4)
    E, p, F = make(2, 3, 4, 8), make(4, 4), make(2, 3, 4, 4)
    x, wx, v, h = make(2, 3, 8), make(5, 8), make(5, 16), make(2, 3, 5)
    for operator, arguments in (
        (rotation._rotate, (q, k, state, 2)),
        (rotation._gradients, (q, q, q, k, state, 2)),
        (rotation._gradients, (q, q, None, None, state, 1)),
        (maps._maps, (x, wx, v)),
        (maps._gradients, (F.flatten(2), wx, v, h, torch.bfloat16)),
        (maps._sums, (h, x, True, torch.bfloat16)),
        (update._update, (q, k, E, q, p, F, True, True)),
        (update._update, (q, k, E, q, p, None, False, False)),
        (update._gradients, (q, q, E, q, q, k, E, q, p, F, True)),
        (update._gradients, (q, q, None, None, q, q, E, None, None, F, False)),
    ):
        given = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
        told = torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
        assert set(told.values()) == {"SUCCESS"}


GROUPED = Arch(
    layers=3, width=32, heads=4, ffn=48, vocab=14, max_length=8, train_length=8, kv_heads=2
)


def random_model(position, device):
    """One whose zero-initialised parts take part."""
    model = Decoder(GROUPED, position)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.to(device)


def gradients(model: Decoder, device, mixed=False) -> list[torch.Tensor]:
    """The logits, and the gradient of every parameter that learns."""
    with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
        logits = model(TOKENS.to(device)).float()
    learns = [p for p in model.parameters() if p.requires_grad]
    return [logits, *torch.autograd.grad(logits.square().mean(), learns, materialize_grads=True)]


@pytest.mark.parametrize(
    ("position", "updates"),
    [
        (RoPE, 0),
        (TAPE, 2),
        (partial(TAPE, attention=False), 2),
    ],
    ids=["rope", "tape", "no attention"],
)
def test_models_agree(device, position, updates, monkeypatch):
    """Three layers: the state is the initial one, one that learns, and one that nobody updates."""
    model = random_model(position, device)
    monkeypatch.setattr(RoPE, "fuses", lambda self, what, *_: False)
    expected, calls = gradients(model, device), []
    monkeypatch.setattr(RoPE, "fuses", lambda self, what, *_: calls.append(what) or True)
    assert_agree(gradients(model, device), expected, 1e-5)
    assert calls.count("rotation") == 3 - updates
    assert calls.count("TAPE's update") == calls.count("update with rotation") == updates


def test_a_fused_model_is_one_graph(device, monkeypatch):
    """Under autocast; the backward pass multiplies in fp32 what the forward pass did."""
    model = random_model(TAPE, device)
    monkeypatch.setattr(RoPE, "fuses", lambda self, what, *_: what != "TAPE's maps")
    torch._dynamo.reset()
    expected = gradients(model, device, mixed=True)
    model.compile(fullgraph=True, backend="aot_eager")
    assert_agree(gradients(model, device, mixed=True), expected, 1e-6)


def test_fused_on_a_gpu_unless_attention_is_the_reference(monkeypatch):
    """Tensors without storage; the choice is in the log, and why if it is torch's code."""
    monkeypatch.setattr(runtime, "too_old", lambda device: "")
    monkeypatch.setattr(runtime, "interpreted", lambda: False)
    auto, reference = (
        Decoder(GROUPED, TAPE, backend=backend).blocks()[0].position
        for backend in ("auto", "reference")
    )
    forget()
    with FakeTensorMode():
        for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.bfloat16)):
            q = torch.empty(2, 5, 4, 8, dtype=dtype, device=device)
            state = torch.empty(2, 5, 4, 2, 4, device=device)
            wanted = device == "cuda"
            assert auto.fuses("rotation", rotation.supports, q, q, state) is wanted
            assert not reference.fuses("rotation", rotation.supports, q, q, state)
        E = state.flatten(3).double()
        assert not auto.fuses("update", update.supports, E, None, None, None)
    assert choices() == [
        "rotation (cuda): fused",
        "update (cuda): torch, unfused. E is (2, 5, 4, 8), torch.float64; fp32 and H × H maps are "
        "needed.",
    ]


def test_what_is_not_supported_is_refused_with_the_reason(device):
    make = made(device)
    q, k, state = make(2, 5, 4, 8), make(2, 5, 2, 8), make(2, 5, 4, 2, 4)
    assert "float64" in rotation.supports(q, k, state.double())
    assert "bfloat16" in rotation.supports(q, k.bfloat16(), state)
    assert "a divisor of H" in rotation.supports(q[:, :, :3], k, state)
    assert "(2 or 1, 5, 4 or 1, 2, 4)" in rotation.supports(q, k, state[:, :4])
    assert "There are 0 queries" in rotation.supports(q[:0], k[:0], state[:1])
    assert "meta" in rotation.supports(q.to("meta"), k, state)
    E, F = make(2, 5, 4, 8), make(2, 5, 4, 4)
    assert "float16" in update.supports(E, E, None, F.half())
    assert "(2, 5, 4, 8) in bf16" in update.supports(E, E[:1], None, F)
    assert "There are 0 tokens" in update.supports(E[:0], None, None, None)
    assert "33 heads" in update.supports(make(1, 1, 33, 2), None, None, None)
    assert "bfloat16" in update.turns(q, k.bfloat16(), E)
    x, wx, v = make(2, 5, 8), make(16, 8), make(16, 16)
    assert "float64" in maps.supports(x.double(), wx, v)
    assert "129 units" in maps.supports(x, make(129, 8), make(129, 16))
    assert "There are 0 tokens" in maps.supports(x[:0], wx, v)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_long_sequences_and_the_same_gradients_every_time(device, dtype):
    make = made(device)
    q, k, state = make(2, 1000, 12, 64, dtype=dtype), make(2, 1000, 4, 64, dtype=dtype)
    state = make(2, 1000, 12, 2, 32)
    p, F = make(12, 12), make(2, 1000, 12, 12)
    weights = make(48, 768), make(48, 144)
    for fused, reference, given in (
        (rotation.rotated, turned, (q, k, state)),
        (updated, mixed, (q, k, state.detach().flatten(3).requires_grad_(), q, p, F)),
        (
            fused_maps,
            made_maps,
            (make(2, 1000, 768, dtype=dtype), *weights),
        ),
    ):
        first, second = results(fused, given), results(fused, given)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert_agree(first, results(reference, given), TOLERANCE[dtype])
