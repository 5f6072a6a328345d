"""The fastest backend is measured once: here on a CPU, with a clock that is told what to say."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from tape_exp.machine.files import file_lock
from tape_exp.models import attention
from tape_exp.models.attention import BACKENDS, Inputs, choices, fastest, forget, pick_backend
from tape_exp.models.attention.fastest import Kind, choose, in_words, keep_in
from tape_exp.models.kernels import runtime

CPU = torch.device("cpu")
KIND = Kind(CPU, torch.float32, 2, 1, 8, 4, "none", 256)
TIMES = {"reference": 3.0, "sdpa": 2.0, "flex": 1.0}


def compute(name, call):
    """What every candidate computes here, but for the one that fails."""
    if name == "flex":
        raise torch.OutOfMemoryError("no room for all scores\n in many lines")
    timed.append(name)
    return BACKENDS["reference"].compute(Inputs(**call))


timed = []


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A call takes what TIMES says of the candidate that it computes."""
    monkeypatch.setattr(fastest, "TOKENS", 256)
    monkeypatch.setattr(fastest, "CALLS", 1)

    def time(case, calls):
        case()
        return TIMES[timed[-1]]

    monkeypatch.setattr(fastest, "clock", lambda device: time)
    timed.clear()
    yield
    keep_in(None)


def files(folder):
    return sorted((folder / "attention").glob("*.json"))


def test_the_fastest_is_chosen_once_and_kept(tmp_path):
    keep_in(tmp_path)
    expected = {"fastest": "sdpa", "ms": {"reference": 3.0, "sdpa": 2.0}, "failed": {}}
    assert choose(KIND, ("reference", "sdpa"), compute) == expected
    assert set(timed) == {"reference", "sdpa"}
    timed.clear()
    assert choose(KIND, ("reference", "sdpa"), compute) == expected
    keep_in(tmp_path)  # as another process
    assert choose(KIND, ("reference", "sdpa"), compute) == expected
    assert not timed
    (file,) = files(tmp_path)
    assert list(json.loads(file.read_text()).values()) == [expected]


def test_another_kind_other_candidates_and_other_versions_are_timed_anew(tmp_path, monkeypatch):
    keep_in(tmp_path)
    choose(KIND, ("reference", "sdpa"), compute)
    for kind, candidates in (
        (Kind(CPU, torch.float32, 2, 1, 8, 4, "by_distance", 256), ("reference", "sdpa")),
        (KIND, ("sdpa",)),
    ):
        timed.clear()
        choose(kind, candidates, compute)
        assert set(timed) == set(candidates)
    assert len(files(tmp_path)) == 1
    assert len(json.loads(files(tmp_path)[0].read_text())) == 3
    monkeypatch.setattr(fastest, "versions", lambda: "torch 9 triton 9")
    keep_in(tmp_path)
    timed.clear()
    choose(KIND, ("reference", "sdpa"), compute)
    assert timed
    assert len(files(tmp_path)) == 2


def test_a_candidate_that_fails_is_a_line_of_the_table(tmp_path):
    keep_in(tmp_path)
    row = choose(KIND, ("flex", "reference"), compute)
    assert row["fastest"] == "reference"
    assert row["failed"] == {"flex": "OutOfMemoryError: no room for all scores"}
    assert in_words(row, 256) == (
        "the fastest with 256 tokens: reference 3 ms, "
        "flex failed (OutOfMemoryError: no room for all scores)"
    )
    assert choose(KIND, ("flex", "reference"), compute) is row
    assert not (tmp_path / "attention").exists(), "another run may have the memory"
    row = choose(KIND, ("flex",), compute)
    assert row["fastest"] is None
    assert not (tmp_path / "attention").exists(), "another run may have the memory"
    assert in_words(row, 256).startswith("none could be timed: flex failed")


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        ("InductorError: torch.OutOfMemoryError: CUDA out of memory", False),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", False),
        ("PermissionError: [Errno 13] Permission denied: '.triton'", False),
        ("NoValidChoicesError: no tile fits", True),
    ],
)
def test_only_what_the_machine_cannot_do_is_kept(tmp_path, why, kept):
    kind, _, message = why.partition(": ")

    def fails(name, call):
        if name == "flex":
            raise type(kind, (Exception,), {})(message)
        return compute(name, call)

    keep_in(tmp_path)
    row = choose(KIND, ("flex", "reference"), fails)
    assert row["failed"] == {"flex": why}
    assert (tmp_path / "attention").exists() is kept


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"a": {"fastest": "x", "ms": {}, "failed": {}}}',
        '{"a": {"fastest": [], "ms": {"x": "fast"}, "failed": {}}}',
        f'{{"{KIND}: sdpa": {{"fastest": "x", "ms": {{"x": 1.0}}, "failed": {{}}}}}}',
    ],
)
def test_a_broken_file_is_replaced(tmp_path, content, caplog):
    keep_in(tmp_path)
    row = choose(KIND, ("sdpa",), compute)
    (file,) = files(tmp_path)
    whole = file.read_text()
    file.write_text(content)
    keep_in(tmp_path)
    timed.clear()
    assert choose(KIND, ("sdpa",), compute) == row
    assert timed
    assert file.read_text() == whole
    assert f"{file} " in caplog.text


def test_where_nothing_can_be_written_the_choice_holds_all_the_same(tmp_path, caplog):
    (tmp_path / "attention").write_text("a file where the folder should be")
    keep_in(tmp_path)
    assert choose(KIND, ("sdpa",), compute)["fastest"] == "sdpa"
    assert "not kept for later runs" in caplog.text


def test_processes_that_write_at_the_same_time_keep_all_rows(tmp_path):
    """One has read the file and is about to write it when the other comes."""
    keep_in(tmp_path)
    choose(KIND, ("sdpa",), compute)
    (file,) = files(tmp_path)
    rows = json.loads(file.read_text())
    (row,) = rows.values()
    with ThreadPoolExecutor() as pool:
        with file_lock(file.with_name(f".{file.name}.lock")):
            other = pool.submit(fastest._keep, file, "another kind", row)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.1)
            file.write_text(json.dumps(rows | {"a third": row}))
        other.result(timeout=60)
    assert set(json.loads(file.read_text())) == {*rows, "a third", "another kind"}


def test_without_a_folder_nothing_is_measured():
    assert choose(KIND, ("sdpa",), compute) is None
    assert not timed


def test_processes_of_a_run_choose_alike(tmp_path, monkeypatch):
    """All that time a kind at once take the row of the first to write it."""
    keep_in(tmp_path)
    rows = []

    def slow(name, call):
        if not rows:
            rows.append(None)  # meanwhile another process, which is faster, measures otherwise
            rows[0] = choose(KIND, ("reference", "sdpa"), compute)
            keep_in(tmp_path)
            monkeypatch.setitem(TIMES, "reference", 1.0)
        return compute(name, call)

    assert choose(KIND, ("reference", "sdpa"), slow) == rows[0]
    assert rows[0]["fastest"] == "sdpa"


@pytest.mark.parametrize(
    "bias",
    ["none", "slopes", "by_distance", "shared by rows", "of each row", "none and of keys"],
)
@pytest.mark.parametrize("carried", [0, 4])
def test_a_call_of_each_kind_can_be_computed_and_differentiated(bias, carried):
    call, learns = Kind(CPU, torch.bfloat16, 2, 1, 8, carried, bias, 16).call()
    out, attended = BACKENDS["reference"].compute(Inputs(**call))
    assert out.shape == (16, 2, 16, 8)
    assert (attended is not None) == bool(carried)
    outputs = [x for x in (out, attended) if x is not None]
    gradients = torch.autograd.grad(outputs, learns, [torch.ones_like(x) for x in outputs])
    assert all(x.isfinite().all() for x in gradients)
    assert len(learns) == 3 + bool(carried) + (bias not in ("none", "slopes"))


def test_measuring_does_not_show_in_the_pass_that_it_interrupts(tmp_path):
    """Not in a block whose activations are computed again, nor where nothing is differentiated."""
    keep_in(tmp_path)

    def block(x):
        choose(KIND, ("sdpa",), compute)
        return (x * x).sin()

    x = torch.ones(3, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert torch.allclose(x.grad, 2 * torch.ones(3).cos())
    keep_in(tmp_path / "another")
    with torch.inference_mode():
        assert choose(KIND, ("sdpa",), compute)["failed"] == {}


def test_auto_takes_the_fastest_and_says_the_times(monkeypatch):
    """On a GPU that is not here."""
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    asked = []
    row = {"fastest": "sdpa", "ms": {"triton": 2.5, "sdpa": 1.5}, "failed": {}}

    def choose(kind, candidates, compute):
        asked.append((kind.bias, kind.carried, kind.length, candidates))
        return row

    monkeypatch.setattr(fastest, "choose", choose)
    monkeypatch.setattr(runtime, "too_old", lambda device: "")
    monkeypatch.setattr(runtime, "interpreted", lambda: False)
    monkeypatch.setattr(attention.flash, "installed", lambda: False)
    forget()
    with FakeTensorMode():
        for T in (100, 700, 5000):
            q = torch.empty(2, 4, T, 64, dtype=torch.bfloat16, device="cuda")
            assert pick_backend(Inputs(q, q, q, q, None, None, None)) == "sdpa"
        assert pick_backend(Inputs(q, q, q, None, None, None, None)) == "sdpa"  # the only one
    lengths = [256, 256, 4096]
    assert asked == [("none", 64, length, ("triton", "sdpa")) for length in lengths]
    assert choices()[-2:] == [
        "attention (carried state, cuda, torch.bfloat16): sdpa, the fastest with 4096 tokens: "
        "sdpa 1.5 ms, triton 2.5 ms",
        "attention (plain, cuda, torch.bfloat16): sdpa, cuDNN or flash",
    ]


def test_a_choice_is_a_constant_of_a_compiled_graph(tmp_path, monkeypatch):
    """Made as the graph is built; lengths of one kind share a graph."""
    monkeypatch.setattr(
        attention.choose, "_preferences", lambda inputs: [("reference", ""), ("sdpa", "")]
    )
    monkeypatch.setattr(fastest, "LENGTHS", (32, 8))
    monkeypatch.setattr(fastest, "clock", lambda device: lambda case, calls: case() or 1.0)
    attention.to_compile()
    keep_in(tmp_path)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    attend = torch.compile(attention.attend, fullgraph=True, backend=backend)
    forget()
    for T in (9, 12, 40, 13, 41):
        q = torch.randn(1, T, 2, 8)
        out, _ = attend(q, q, q, backend="auto")
        assert torch.allclose(out, attention.attend(q, q, q, backend="reference")[0], atol=1e-5)
    assert len(graphs) == 3  # of the first length, of all between 8 and 32, and of longer ones
    assert len(choices()) == 2
    assert all("tokens: reference 1 ms, sdpa 1 ms" in choice for choice in choices())


def test_a_candidate_that_is_compiled_can_be_timed_while_a_graph_is_built(tmp_path, monkeypatch):
    """As flex is, whose backward pass is compiled too."""
    compiled = torch.compile(lambda q, k, v: q * k * v, backend="aot_eager", fullgraph=True)
    candidate = attention.Backend(lambda x: (compiled(x.q, x.k, x.v), None), lambda _: None)
    monkeypatch.setitem(BACKENDS, "compiled", candidate)
    able = [("reference", ""), ("compiled", "")]
    monkeypatch.setattr(attention.choose, "_preferences", lambda inputs: able)
    monkeypatch.setattr(fastest, "clock", lambda device: lambda case, calls: case() or 1.0)
    attention.to_compile()
    keep_in(tmp_path)
    forget()
    torch._dynamo.reset()
    q = torch.randn(1, 9, 2, 8, requires_grad=True)
    attend = torch.compile(attention.attend, fullgraph=True, backend="eager")
    attend(q, q, q, backend="auto")[0].sum().backward()
    assert "reference 1 ms, compiled 1 ms" in choices()[0]
