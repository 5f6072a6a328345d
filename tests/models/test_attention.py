"""The backends of attend() agree with the explicit softmax, on outputs and on every gradient."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.common import ENCODINGS
from tape_exp.machine.seeding import RowSampler
from tape_exp.models import attention
from tape_exp.models.attention import (
    BACKENDS,
    Inputs,
    OnDemand,
    attend,
    causal_mask,
    choices,
    cudnn,
    fastest,
    flash,
    forget,
    pick_backend,
)
from tape_exp.models.attention.flex import bucket, causal_blocks
from tape_exp.models.attention.window import Window
from tape_exp.models.conformance import randomise
from tape_exp.models.kernels import runtime
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.errors import ConfigError
from tests.conftest import make_decoder

FAST = ["sdpa"]


def inputs(T=13, S=13, kv_heads=4, carried_heads=4, bias=False, carried=True, keys=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    given = {"q": make(2, T, 4, 8), "k": make(2, S, kv_heads, 8), "v": make(2, S, kv_heads, 8)}
    if carried:
        given["carried"] = make(2 if carried_heads > 1 else 1, S, carried_heads, 10)
    if bias:
        given["bias"] = make(1, 4, T, S)
    if keys:
        given["key_bias"] = make(2, S, 4)
    return given


def call(given, backend):
    out, attended = attend(
        given["q"],
        given["k"],
        given["v"],
        bias=given.get("bias"),
        key_bias=given.get("key_bias"),
        carried=given.get("carried"),
        backend=backend,
    )
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device)
    loss = (out * weights).square().sum() + (0 if attended is None else attended.pow(3).sum())
    return out, attended, torch.autograd.grad(loss, list(given.values()))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"carried": False},
        {"bias": True},
        {"bias": True, "carried": False},
        {"T": 5, "S": 13},
        {"kv_heads": 2},
        {"carried_heads": 1},
        {"T": 1, "S": 1},
        {"T": 300, "S": 300},
        {"T": 140, "S": 300, "bias": True, "keys": True},
        {"T": 140, "S": 140, "keys": True, "carried": False},
    ],
    ids=str,
)
def test_backends_agree_with_the_reference(backend, case):
    given = inputs(**case)
    expected, got = call(given, "reference"), call(given, backend)
    assert torch.allclose(got[0], expected[0], atol=1e-10)
    if expected[1] is not None:
        assert torch.allclose(got[1], expected[1], atol=1e-10)
    for name, a, b in zip(given, got[2], expected[2], strict=True):
        assert torch.allclose(a, b, atol=1e-9), name


def test_reference_is_softmax_attention_written_out():
    given = inputs(T=3, S=5, bias=True, keys=True)
    out, attended, _ = call(given, "reference")
    q, k, v, carried, bias, keys = (x.detach() for x in given.values())
    for t in range(3):
        seen = t + 3  # 2 earlier keys, and itself
        logits = torch.stack(
            [
                q[1, t, 2] @ k[1, s, 2] / 8**0.5 + bias[0, 2, t, s] + keys[1, s, 2]
                for s in range(seen)
            ]
        )
        p = torch.exp(logits) / torch.exp(logits).sum()
        assert torch.allclose(out[1, t, 2], sum(p[s] * v[1, s, 2] for s in range(seen)))
        assert torch.allclose(attended[1, t, 2], sum(p[s] * carried[1, s, 2] for s in range(seen)))


def test_causal_mask_lets_late_queries_see_the_cache():
    assert causal_mask(2, 4, torch.device("cpu")).tolist() == [
        [True, True, True, False],
        [True] * 4,
    ]


def test_auto_picks_a_backend_that_works_and_unknown_ones_are_named():
    for T, backend in ((8, "reference"), (512, "sdpa")):
        x = torch.zeros(1, 1, T, 8)
        assert pick_backend(Inputs(x, x, x, None, None, None, None)) == backend
    given = inputs()
    with pytest.raises(
        ConfigError, match=r"trainer\.attention=fused is not known.*reference, sdpa"
    ):
        attend(given["q"], given["k"], given["v"], backend="fused")


@pytest.mark.parametrize(
    "case",
    [
        *({}, {"bias": True}, {"carried": False, "bias": True}, {"kv_heads": 2}),
        {"T": 5, "S": 13, "keys": True},
    ],
    ids=str,
)
def test_flex_forward_on_a_cpu(case):
    """Its backward needs a GPU."""
    given = {name: x.detach().float() for name, x in inputs(**case).items()}
    expected, got = (
        attend(
            given["q"],
            given["k"],
            given["v"],
            bias=given.get("bias"),
            key_bias=given.get("key_bias"),
            carried=given.get("carried"),
            backend=backend,
        )
        for backend in ("reference", "flex")
    )
    assert torch.allclose(got[0], expected[0], atol=1e-5)
    if expected[1] is not None:
        assert torch.allclose(got[1], expected[1], atol=1e-5)


def test_blocks_that_evaluation_made_serve_training():
    """They are kept, and what inference mode makes cannot be saved for a backward pass."""
    causal_blocks.cache_clear()
    with torch.inference_mode():
        made = causal_blocks(128, 128, "cpu")
    kept = [part for part in made.as_tuple() if isinstance(part, torch.Tensor)]
    assert kept
    assert not any(part.is_inference() for part in kept)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_a_bias_by_distance_equals_the_dense_one(backend):
    given = {name: x.detach().float() for name, x in inputs(T=5, S=9, carried=False).items()}
    table = torch.randn(4, 12, generator=torch.Generator().manual_seed(3))
    distance = (torch.arange(4, 9)[:, None] - torch.arange(9)).clamp(min=0)
    dense, _ = attend(
        given["q"], given["k"], given["v"], bias=table[:, distance][None], backend="reference"
    )
    looked_up, _ = attend(given["q"], given["k"], given["v"], by_distance=table, backend=backend)
    assert torch.allclose(looked_up, dense, atol=1e-5)


@pytest.mark.parametrize("backend", ["flex", "triton", "sdpa", "auto"])
@pytest.mark.parametrize("kind", ["plain", "bias", "by_distance", "key_bias", "carried"])
@pytest.mark.parametrize("T", [9, 2])
def test_padding_is_hidden(backend, kind, T):
    """Every row as if it were alone; with fewer queries than keys, from a cache."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        return torch.randn(*shape, generator=generator)

    S, padding = 9, torch.tensor([3, 0, 5])
    q, k, v = make(3, T, 4, 16), make(3, S, 2, 16), make(3, S, 2, 16)
    options = {
        "plain": {},
        "bias": {"bias": make(3, 4, T, S)},
        "by_distance": {"by_distance": make(4, S)},
        "key_bias": {"key_bias": make(3, S, 4)},
        "carried": {"carried": make(1, S, 4, 10)},
    }[kind]
    if backend == "triton":
        pytest.importorskip("triton", reason="triton is not installed: pip install triton")
        if kind == "bias":
            if T == S:
                with pytest.raises(ConfigError, match="knows no bias"):
                    attend(q, k, v, **options, padding=padding, backend=backend)
            return
    with torch.no_grad():
        out, attended = attend(q, k, v, **options, padding=padding, backend=backend)
    for b, skip in enumerate(padding.tolist()):
        first = max(skip - (S - T), 0)  # query that is no padding
        cut = {name: x[b : b + 1] if x.shape[0] == 3 else x for name, x in options.items()}
        if kind == "bias":
            cut["bias"] = cut["bias"][:, :, first:, skip:]
        if kind in ("carried", "key_bias"):
            cut[kind] = cut[kind][:, skip:]
        alone, state = attend(
            q[b : b + 1, first:],
            k[b : b + 1, skip:],
            v[b : b + 1, skip:],
            **cut,
            backend="reference",
        )
        assert torch.allclose(out[b, first:], alone[0], atol=1e-5)
        if state is not None:
            assert torch.allclose(attended[b, first:], state[0], atol=1e-5)


def test_padding_is_read_once_for_all_layers(monkeypatch):
    """Each time a GPU would be waited for. Of another batch it is read anew."""
    read, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: read.append(x) or tolist(x))
    q = torch.randn(2, 9, 2, 16, generator=torch.Generator().manual_seed(0))
    paddings = [torch.tensor(counts) for counts in ([3, 0], [0, 2])]
    with torch.inference_mode():
        for padding in paddings:
            outs = [attend(q, q, q, padding=padding, backend="flex")[0] for _ in range(2)]
            assert torch.equal(*outs)
    assert [sum(x is padding for x in read) for padding in paddings] == [1, 1]


def test_one_query_is_given_a_mask_only_where_it_does_not_see_every_key(monkeypatch):
    masks = []

    def fused(q, k, v, attn_mask=None, **options):
        masks.append(attn_mask)
        return v.new_empty(*q.shape[:3], v.shape[-1])

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    q, k = torch.empty(1, 2, 1, 8), torch.empty(1, 2, 9, 8)
    for options in ({}, {"window": Window(4)}, {"padding": torch.tensor([2])}):
        BACKENDS["sdpa"].compute(Inputs(q, k, k, None, None, None, None, **options))
    assert masks[0] is None
    assert masks[1].sum() == 4
    assert (masks[2] == 0).sum() == 2 * 7


@pytest.mark.parametrize(
    ("backend", "dtype", "lowest", "tolerance"),
    [
        *((backend, torch.float32, -1e4, 1e-6) for backend in ("reference", "sdpa", "flex")),
        ("triton", torch.float32, -1e4, 1e-6),
        ("sdpa", torch.bfloat16, -2e3, 1e-2),
    ],
    ids=str,
)
def test_a_large_bias_of_keys_loses_no_bits(backend, dtype, lowest, tolerance):
    """Logits of neighbours differ by 0 … 2, and here and there by hundreds, against fp64."""
    if backend == "triton":
        pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 48, 2, 16, generator=generator).to(dtype) for _ in range(3))
    steps = 2 * torch.rand(1, 48, 2, generator=generator, dtype=torch.float64)
    steps[:, ::7] += -lowest / 7
    sums = -steps.cumsum(1)
    assert sums.min() < lowest
    expected, _ = attend(*(x.double() for x in (q, k, v)), key_bias=-sums, backend="reference")
    with torch.no_grad():
        got, _ = attend(q, k, v, key_bias=-sums, backend=backend)
    assert (got - expected).abs().max() < tolerance * v.abs().max()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("given", ["plain", "bias", "carried", "window"])
def test_logits_of_16_bits_are_not_rounded_to_16_bits(backend, given):
    """Scores up to 40, with which a probability would be wrong by a tenth."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 130, 2, 24, generator=generator).bfloat16() for _ in range(3))
    q = 8 * q
    bias = 8 * torch.randn(1, 2, 130, 130, generator=generator)
    options = {
        "plain": {},
        "bias": {"bias": bias},
        "carried": {"carried": v.flip(1)},
        "window": {"window": Window(20)},
    }[given]
    exact = {key: x.double() if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    expected = attend(*(x.double() for x in (q, k, v)), **exact, backend="reference")
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(q, k, v, **options, backend=backend)
    for one, other in zip(got, expected, strict=True):
        if other is not None:
            assert (one - other).abs().max() < 2**-7 * v.abs().max()


def test_lengths_are_padded_to_a_few():
    """Each of which FlexAttention is compiled for; at most a quarter is added to long ones."""
    padded = {length: bucket(length) for length in range(1, 8193)}
    assert all(length <= whole for length, whole in padded.items())
    assert all(whole <= 1.25 * length for length, whole in padded.items() if length > 1024)
    assert len(set(padded.values())) <= 24
    assert [padded[length] for length in (1, 128, 129, 1024, 8192)] == [128, 128, 256, 1024, 8192]


BACKWARD = ("tape", "t5", "fire", "cope", "path", "pope", "selective_rope", "tape_householder")


# Two kinds of layers with every key of a layer
PATTERN = "[{name:tape,window:8,sinks:2,qk_norm:true},{name:alibi,window:5,ssmax:true}]"


def hands_on(position: PositionEncoding) -> bool:
    """Whether layers change the state that the next one sees."""
    return type(position).update is not PositionEncoding.update


@pytest.mark.parametrize("name", [*ENCODINGS, PATTERN])
def test_a_model_is_one_graph_whichever_attention_is_picked(name, arch):
    """The choice included, which is logged all the same; the backward pass too of some, since it
    takes as long again. Layers that hand nothing on to the next are traced once.
    """
    model = make_decoder(name, arch, backend="auto")
    if name != PATTERN and not hands_on(model.blocks()[0].position):
        model = make_decoder(name, replace(arch, layers=1), backend="auto")
    randomise(model, std=0.1)
    tokens = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))
    expected = model(tokens, sampler=RowSampler(5))
    forget()
    torch._dynamo.reset()
    model.compile(fullgraph=True, backend="aot_eager" if name in BACKWARD else "eager")
    logits = model(tokens, sampler=RowSampler(5))
    logits.square().mean().backward()
    assert torch.allclose(logits, expected, atol=1e-5)
    assert all("reference, short sequences on a CPU" in choice for choice in choices())
    assert choices()


def test_flex_is_one_graph_with_every_bias():
    """torch.compile reads whatever a score_mod closes over, also what this bias has no use for."""
    attention.to_compile()
    q = torch.randn(2, 5, 4, 8, generator=torch.Generator().manual_seed(0))
    for bias in (
        {},
        {"bias": torch.randn(1, 4, 5, 5)},
        {"by_distance": torch.randn(4, 5)},
        {"key_bias": torch.randn(2, 5, 4)},
    ):
        with torch.no_grad():
            expected = attend(q, q, q, backend="reference", **bias)[0]
            torch._dynamo.reset()
            compiled = torch.compile(attend, backend="eager", fullgraph=True)
            found = compiled(q, q, q, backend="flex", **bias)[0]
        assert torch.allclose(found, expected, atol=1e-5), bias.keys()


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("plain", "sdpa"),
        ("carried", "triton"),
        ("slopes", "triton"),
        ("by_distance", "triton"),
        ("by_distance and carried", "triton"),
        ("keys", "triton"),
        ("on demand", "triton"),
        ("bias", "flex"),
        ("decoding", "sdpa"),
        ("fp32", "sdpa"),
    ],
)
def test_what_auto_picks_on_a_gpu_that_is_not_here(kind, backend, monkeypatch):
    """Of tensors without storage; which one is fastest is for `make gpu` to say."""
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    monkeypatch.setattr(fastest, "_cache", None)
    monkeypatch.setattr(runtime, "too_old", lambda device: "")
    monkeypatch.setattr(runtime, "interpreted", lambda: False)
    monkeypatch.setattr(flash, "installed", lambda: False)
    with FakeTensorMode():

        def make(*shape):
            return torch.empty(shape, dtype=torch.float32, device="cuda")

        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        q, k = make(2, 4, 1 if kind == "decoding" else 512, 64).to(dtype), make(2, 4, 512, 64)
        k = k.to(dtype)
        carried = make(2, 4, 512, 64) if "carried" in kind else None
        bias = make(1, 4, q.shape[2], 512) if kind in ("bias", "decoding") else None
        table = make(4, 512) if kind.startswith(("by_distance", "slopes")) else None
        slopes = make(4) if kind == "slopes" else None
        lazy = OnDemand(lambda: bias, lambda: None) if kind == "on demand" else None
        keys = make(2, 4, 512) if kind == "keys" else None
        given = Inputs(q, k, k, carried, bias, table, slopes, on_demand=lazy, key_bias=keys)
        assert pick_backend(given) == backend
        if keys is not None:
            monkeypatch.setattr(flash, "installed", lambda: True)
            assert "no bias but ALiBi's slopes" in BACKENDS["flash"].refuses(given)


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_queries_are_padded_only_where_cudnn_does_not_take_wider_values(takes, masked, monkeypatch):
    """On a device that is no CPU."""
    seen = []

    def fused(q, k, v, **options):
        seen.append((q.shape[-1], k.shape[-1], v.shape[-1], options["scale"]))
        return v.new_empty(*q.shape[:3], v.shape[-1])

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    monkeypatch.setattr(cudnn, "comes_first", lambda device: False)
    monkeypatch.setattr(cudnn, "takes_wide_values", lambda *call: takes)
    q = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16, device="meta")
    bias = q.new_empty(1, 4, 32, 32) if masked else None
    out, attended = BACKENDS["sdpa"].compute(Inputs(q, q, q, q, bias, None, None))
    assert out.shape == attended.shape == q.shape
    width = 64 if takes and not masked else 128
    assert seen == [(width, width, 128, 1 / 8)]


@pytest.mark.parametrize(
    ("patches", "taken"),
    [
        ({}, True),
        ({"comes_first": lambda device: False}, False),
        ({"can_use_cudnn_attention": lambda call: False}, False),
        ({"LOST": 0.0}, False),
    ],
    ids=["agrees", "an older GPU", "torch says no", "differs"],
)
def test_cudnn_is_tried_before_it_is_given_wider_values(patches, taken, monkeypatch):
    device = torch.device("cpu")
    stand_in = {"comes_first": lambda device: True, "can_use_cudnn_attention": lambda call: True}
    stand_in["sdpa_kernel"] = lambda backend: sdpa_kernel(SDPBackend.MATH)
    for name, value in (stand_in | patches).items():
        monkeypatch.setattr(cudnn, name, value)
    cudnn._agrees.cache_clear()
    assert cudnn.takes_wide_values(device, torch.bfloat16, 16, 32) is taken


def test_without_a_plan_or_where_order_matters_cudnn_is_not_given_wider_values(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(cudnn, "comes_first", lambda device: True)
    monkeypatch.setattr(cudnn, "can_use_cudnn_attention", lambda call: True)
    cudnn._agrees.cache_clear()
    assert not cudnn.takes_wide_values(device, torch.bfloat16, 16, 32)  # a CPU has no cuDNN
    monkeypatch.setattr(cudnn, "_agrees", lambda *call: True)
    assert cudnn.takes_wide_values(device, torch.bfloat16, 16, 32)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not cudnn.takes_wide_values(device, torch.bfloat16, 16, 32)


def test_what_is_installed_is_looked_for_once_and_is_a_constant_of_a_graph():
    """torch.compile would trace a function that is cached, however it is marked."""
    attention.to_compile()
    facts = runtime.installed, runtime.too_old, runtime.too_small, flash.installed
    assert all(fact._dynamo_marked_constant and not hasattr(fact, "__wrapped__") for fact in facts)
    flash.installed()
    looked_for = flash._find_spec.cache_info().misses
    flash.installed()
    assert flash._find_spec.cache_info().misses == looked_for


def test_a_choice_is_told_once_in_a_run(caplog):
    forget()
    with caplog.at_level("INFO", logger="tape_exp"):
        for _ in range(2):
            x = torch.zeros(1, 4, 1, 8)
            attend(x, x, x)
    assert len(caplog.messages) == 1
    assert choices() == caplog.messages


def test_backends_that_cannot_say_which_can():
    given = inputs(bias=True)
    with pytest.raises(
        ConfigError,
        match=r"trainer\.attention=flash: flash-attn is not installed .*faq.*: reference, sdpa",
    ):
        attend(given["q"], given["k"], given["v"], bias=given["bias"], backend="flash")
    with pytest.raises(
        ConfigError, match=r"trainer\.attention=flex: FlexAttention has no backward on a CPU"
    ):
        attend(given["q"], given["k"], given["v"], backend="flex")
    with pytest.raises(
        ConfigError,
        match=r"trainer\.attention=triton: the Triton kernel knows no bias of single pairs",
    ):
        attend(given["q"], given["k"], given["v"], bias=given["bias"], backend="triton")


def test_flash_refuses_queries_wider_than_values_and_state(monkeypatch):
    """Flattened blocks make them so; padding to the width of the values would cut them."""
    monkeypatch.setattr(flash, "installed", lambda: True)
    q, v = torch.zeros(1, 1, 2, 32), torch.zeros(1, 1, 2, 8)
    reasons = [
        BACKENDS["flash"].refuses(Inputs(q, q, v, carried, None, None, None))
        for carried in (None, torch.zeros(1, 1, 2, 24))
    ]
    assert "as wide as the queries" in reasons[0]
    assert "as wide as the queries" not in reasons[1]


@pytest.mark.parametrize(
    "case",
    [{}, {"carried": False}, {"T": 5, "S": 13}, {"kv_heads": 2}, {"carried_heads": 1}],
    ids=str,
)
def test_triton_behind_attend(case):
    """The kernel's own tests are in test_kernels.py; here, that attend hands it the right
    layout.
    """
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    given = {name: x.detach().float().requires_grad_() for name, x in inputs(**case).items()}
    if torch.cuda.is_available():
        given = {name: x.detach().cuda().requires_grad_() for name, x in given.items()}
    expected, got = call(given, "reference"), call(given, "triton")
    assert torch.allclose(got[0], expected[0], atol=1e-4)
    for a, b in zip(got[2], expected[2], strict=True):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3)
