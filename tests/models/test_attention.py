"""The backends of attend() agree with the explicit softmax, on outputs and on every gradient."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_exp.machine.seeding import RowSampler
from tape_exp.models import attention
from tape_exp.models.attention import attend, choose, refusal
from tape_exp.models.biases import ByDistance, ByKey, Dense
from tape_exp.models.compilation import CHOSEN_BACKENDS
from tape_exp.models.conformance import randomise
from tape_exp.models.scores import Scores, Window
from tests.conftest import make_decoder


def case(T=13, S=13, carried_heads=4, kinds="", carried=True, window=None, factor=False):
    """Scores, values and what is carried, in fp64, and the tensors that learn."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = make(2, T, 4, 8), make(2, S, 4, 8), make(2, S, 4, 6)
    makers = {
        "dense": (lambda x: Dense(x), (1, 4, T, S)),
        "rows": (lambda x: Dense(x), (2, 4, T, S)),
        "keys": (lambda x: ByKey(x), (2, S, 4)),
        "distance": (lambda x: ByDistance(lambda at: x[:, at.long()]), (4, S)),
    }
    tables = [(maker, make(*shape)) for kind, (maker, shape) in makers.items() if kind in kinds]
    biases, learns = [maker(x) for maker, x in tables], [q, k, v, *(x for _, x in tables)]
    states = make(2 if carried_heads > 1 else 1, S, carried_heads, 10) if carried else None
    learns += [] if states is None else [states]
    scores = Scores(q.transpose(1, 2), k.transpose(1, 2), tuple(biases), window=window)
    if factor:
        learns.append(make(1, 4, T))
        scores = scores.times(learns[-1])
    return scores, v, states, learns


def call(scores, v, carried, learns, backend):
    out, averaged = attend(scores, v, carried, backend)
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
    loss = (out * weights).square().sum() + (0 if averaged is None else averaged.pow(3).sum())
    parts = [out] if averaged is None else [out, averaged]
    return [*parts, *torch.autograd.grad(loss, learns, retain_graph=True)]


CASES = [
    {},
    {"kinds": "dense keys distance", "carried": False},
    {"kinds": "rows"},
    {"T": 5, "S": 13},
    {"T": 140, "S": 300, "kinds": "dense keys"},
    {"T": 3, "S": 12, "window": Window(5, 2), "kinds": "distance"},
    {"T": 300, "S": 300, "window": Window(7), "carried": False},
    {"factor": True, "kinds": "dense distance"},
    {"carried_heads": 1},
    {"T": 1, "S": 1},
    {"T": 140, "S": 140, "kinds": "distance", "carried": False},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_sdpa_agrees_with_the_explicit_softmax(options):
    given = case(**options)
    for a, b in zip(call(*given, "explicit"), call(*given, "sdpa"), strict=True):
        assert (a - b).abs().max() < 1e-9


GROUPED = [
    {"carried": False},
    {"T": 140, "S": 140, "carried": False},
    {"T": 140, "S": 300, "kinds": "dense", "window": Window(7, 2)},
    {"T": 1, "S": 70, "carried": False},
    {"T": 1, "S": 70, "kinds": "rows keys", "carried": False},
    {"T": 5, "S": 70},
]


@pytest.mark.parametrize("options", GROUPED, ids=str)
def test_grouped_keys_are_those_repeated_for_each_head(options):
    """Two heads of keys and values for four of queries, by every backend of a CPU."""
    scores, v, carried, (q, *_) = case(**options)
    k, v = (x.detach()[:, :, :2].clone().requires_grad_() for x in (scores.k.transpose(1, 2), v))
    found = {}
    for name in ("repeated", "explicit", "sdpa"):
        own = [x.repeat_interleave(2, 2) if name == "repeated" else x for x in (k, v)]
        grouped = replace(scores, k=own[0].transpose(1, 2))
        backend = "explicit" if name == "repeated" else name
        found[name] = call(grouped, own[1], carried, [q, k, v], backend)
    for name in ("explicit", "sdpa"):
        for a, b in zip(found[name], found["repeated"], strict=True):
            assert (a - b).abs().max() < 1e-9
    with torch.no_grad():
        out, _ = attend(replace(scores, k=k.transpose(1, 2)), v, carried, "flex")
    assert (out - found["repeated"][0]).abs().max() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("options", CASES[:6], ids=str)
def test_flex_agrees_forward_on_a_cpu(options):
    """Its backward pass needs a GPU."""
    *given, _ = case(**options)
    with torch.no_grad():
        for a, b in zip(attend(*given, "explicit"), attend(*given, "flex"), strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a - b).abs().max() < 1e-5


def test_the_explicit_softmax_is_attention_written_out():
    scores, v, carried, (q, k, _, bias, keys, table, _) = case(3, 5, kinds="dense keys distance")
    out, averaged = attend(scores, v, carried, "explicit")
    for t in range(3):
        seen = range(t + 3)  # 2 earlier keys, and itself
        logits = [
            q[1, t, 2] @ k[1, s, 2] / 8**0.5
            + (bias[0, 2, t, s] + keys[1, s, 2] + table[2, t + 2 - s])
            for s in seen
        ]
        p = torch.stack(logits).exp()
        p = p / p.sum()
        assert torch.allclose(out[1, t, 2], sum(p[s] * v[1, s, 2] for s in seen))
        assert torch.allclose(averaged[1, t, 2], sum(p[s] * carried[1, s, 2] for s in seen))
        assert torch.allclose(scores.probabilities()[1, 2, t, : t + 3], p)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["explicit", "sdpa", "flex"])
@pytest.mark.parametrize("kinds", ["", "rows distance keys"])
@pytest.mark.parametrize("T", [9, 2])
@torch.no_grad()
def test_padding_is_hidden(backend, kinds, T):
    """Every row as if it were alone; with fewer queries than keys, from a cache."""
    padding = torch.tensor([3, 5])
    scores, v, carried, _ = case(T, 9, kinds=kinds, window=Window(4, 1))
    out, averaged = attend(replace(scores, padding=padding), v, carried, backend)
    assert out.isfinite().all()
    for b, skip in enumerate(padding.tolist()):
        first = max(skip - (9 - T), 0)  # query that is no padding
        biases = []
        for bias in scores.biases:
            if isinstance(bias, Dense):
                bias = Dense(bias.values[b : b + 1, :, first:, skip:])
            if isinstance(bias, ByKey):
                bias = ByKey(bias.values[b : b + 1, skip:])
            biases.append(bias)
        q, k = scores.q[b : b + 1, :, first:], scores.k[b : b + 1, :, skip:]
        alone = Scores(q, k, tuple(biases), window=scores.window)
        row, state = attend(alone, v[b : b + 1, skip:], carried[b : b + 1, skip:], "explicit")
        assert torch.allclose(out[b, first:], row[0], atol=1e-6)
        assert torch.allclose(averaged[b, first:], state[0], atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "dtype", "lowest", "tolerance"),
    [
        *((backend, torch.float32, -1e4, 1e-6) for backend in ("explicit", "sdpa", "flex")),
        ("sdpa", torch.bfloat16, -2e3, 1e-2),
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_large_bias_of_keys_loses_no_bits(backend, dtype, lowest, tolerance):
    """Logits of neighbours differ by 0 … 2, and here and there by hundreds, against fp64."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 48, 16, generator=generator).to(dtype) for _ in range(3))
    steps = 2 * torch.rand(1, 48, 2, generator=generator, dtype=torch.float64)
    steps[:, ::7] += -lowest / 7
    biases = (ByKey(steps.cumsum(1)),)
    assert biases[0].values.max() > -lowest
    v = v.transpose(1, 2)
    expected, _ = attend(Scores(q.double(), k.double(), biases), v.double(), None, "explicit")
    with torch.no_grad():
        got, _ = attend(Scores(q, k, biases), v, None, backend)
    assert (got - expected).abs().max() < tolerance * v.abs().max()


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("given", ["plain", "bias", "carried", "window"])
def test_logits_of_16_bits_are_not_rounded_to_16_bits(backend, given):
    """Scores up to 40, with which a probability would be wrong by a tenth."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 130, 24, generator=generator).bfloat16() for _ in range(3))
    bias = Dense(8 * torch.randn(1, 2, 130, 130, generator=generator))
    scores = Scores(8 * q, k, (bias,) if given == "bias" else ())
    scores = replace(scores, window=Window(20) if given == "window" else None)
    v = v.transpose(1, 2)
    carried = v.flip(1) if given == "carried" else None
    exact = replace(scores, q=scores.q.double(), k=k.double())
    wide = None if carried is None else carried.double()
    expected = attend(exact, v.double(), wide, "explicit")
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(scores, v, carried, backend)
    for one, other in zip(got, expected, strict=True):
        assert other is None or (one - other).abs().max() < 2**-7 * v.abs().max()


BACKWARD = ("tape", "pope")  # which takes as long again
# Two kinds of layers with every key of a layer
PATTERN = "[{name:tape,window:8,sinks:2,qk_norm:true},{name:alibi,window:5,ssmax:true}]"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKWARD, "fire", "path", "cope", PATTERN])
@pytest.mark.long
def test_a_model_is_one_graph_whichever_attention_is_picked(name, arch):
    """The choice included, which is logged all the same."""
    model = make_decoder(name, arch, backend="auto")
    randomise(model, std=0.1)
    tokens = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))
    expected = model(tokens, sampler=RowSampler(5))
    CHOSEN_BACKENDS.clear()
    torch._dynamo.reset()
    model.compile(fullgraph=True, backend="aot_eager" if name in BACKWARD else "eager")
    logits = model(tokens, sampler=RowSampler(5))
    logits.square().mean().backward()
    assert torch.allclose(logits, expected, atol=1e-5)
    assert all(choice.endswith("explicit") for choice in CHOSEN_BACKENDS)
    assert CHOSEN_BACKENDS


PICKS = {"plain": "sdpa", "carried": "sdpa", "slopes": "flash", "slopes and carried": "flex"}
PICKS |= {"distance": "sdpa", "window": "flex", "padding": "sdpa", "distance and window": "flex"}
PICKS |= {"slopes and padding": "flex", "decoding": "sdpa", "fp32": "sdpa"}
PICKS |= {"slopes and window": "flash", "slopes, window and sinks": "flex", "slopes, wide": "flex"}


@pytest.mark.parametrize(("kind", "backend"), PICKS.items())
def test_what_auto_picks_on_a_gpu_that_is_not_here(kind, backend, monkeypatch):
    """Of tensors without storage."""
    monkeypatch.setattr(attention, "flash_installed", lambda: True)
    with FakeTensorMode():

        def make(*shape):
            return torch.empty(shape, dtype=torch.float32, device="cuda")

        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        width = 512 if "wide" in kind else 64
        q, k = (make(2, 4, T, width).to(dtype) for T in (1 if kind == "decoding" else 512, 512))
        slopes = make(4) if "slopes" in kind else None
        by_distance = (ByDistance(lambda d: d, slopes),)
        scores = Scores(q, k, by_distance if kind[:5] in ("slope", "dista") else ())
        window = Window(8, sinks=2 if "sinks" in kind else 0)
        scores = replace(scores, window=window if "window" in kind else None)
        scores = replace(scores, padding=make(2) if "padding" in kind else None)
        carried = make(2, 4, 512, 64) if "carried" in kind else None
        assert choose(scores, k, carried) == backend
        assert refusal(backend, scores, k) is None


BIASES = ("none", "slopes", "table", "keys")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_auto_never_picks_what_would_be_refused(device, dtype, grad, monkeypatch):
    """Of tensors without storage: every bias, window, sinks, padding, state, width and length."""
    monkeypatch.setattr(attention, "flash_installed", lambda: True)
    windows = (None, Window(8), Window(8, sinks=2))
    cases = itertools.product(BIASES, windows, (False, True), (False, True), (64, 512), (1, 512))
    with FakeTensorMode(), torch.set_grad_enabled(grad):
        for bias, window, padded, carries, width, T in cases:

            def make(*shape, dtype=torch.float32):
                return torch.empty(shape, dtype=dtype, device=device, requires_grad=grad)

            q = make(2, 4, T, width, dtype=dtype)
            k = make(2, 4, 512, width, dtype=dtype)
            biases = {
                "none": (),
                "slopes": (ByDistance(lambda d: d, make(4)),),
                "table": (ByDistance(lambda d: d),),
                "keys": (ByKey(make(2, 512, 4)),),
            }
            scores = Scores(q, k, biases[bias], window=window, padding=make(2) if padded else None)
            carried = make(2, 4, 512, 64) if carries else None
            picked = choose(scores, k, carried)
            values = make(2, 4, 512, width + 64 * carries, dtype=dtype)
            case = (bias, window, padded, carries, width, T)
            assert refusal(picked, scores, values) is None, (picked, case)


def test_a_window_of_three_shows_a_query_itself_two_before_and_the_sinks():
    zeros = torch.zeros(1, 1, 6, 4)
    seen = Scores(zeros, zeros, window=Window(3, sinks=1)).probabilities()[0, 0] > 0
    rows = ["100000", "110000", "111000", "111100", "101110", "100111"]
    assert ["".join(str(int(key)) for key in row) for row in seen] == rows
