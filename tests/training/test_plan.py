"""``debug=plan``: the counts are the model's own, the estimate follows from them, and nothing is
loaded or left behind.
"""

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tape_exp.machine.hardware import peak_flops
from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.encodings import DIGITS, ENCODINGS
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.path import ROWS
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.training.assembly import precision
from tape_exp.training.kept import attend, kept
from tape_exp.training.plan import (
    LOGITS,
    assumptions,
    blank_task,
    decoder_of,
    estimate,
    kept_by,
    setting_of,
    vocabulary_of,
)
from tape_exp.training.run import run
from tests import conftest

LLAMA = ["task.arch.layers=32", "task.arch.width=4096", "task.arch.heads=32", "task.arch.ffn=11008"]


def planned(*overrides: str, recompute: bool = False):
    """(plan, decoder on the meta device, task, setting) of a config."""
    cfg = compose_config(list(overrides))
    task = blank_task(cfg)
    task.size_vocabulary(vocabulary_of(task)[0])
    setting = setting_of(cfg, task)
    decoder = decoder_of(cfg, task)
    found = kept_by(decoder, task, setting)
    return estimate(decoder, task, setting, recompute, found), decoder, task, setting


@pytest.mark.parametrize("model", ["rope", "tape", "fire"])
@pytest.mark.parametrize("task", ["arithmetic", "c4"])
def test_counts_are_those_of_a_real_decoder(model, task):
    plan, _, made, _ = planned(f"model={model}", f"task={task}")
    real = conftest.make_decoder(model, made.arch)
    assert plan.parameters == real.parameter_count()
    assert plan.positional == real.positional_count()
    assert plan.trainable == sum(p.numel() for p in real.parameters() if p.requires_grad)
    assert plan.tokens == made.optim.max_steps * made.optim.batch * made.arch.train_length
    idle = plan.parameters - plan.trainable  # TAPE's last update, which nobody reads
    forward = real.forward_flops_per_token(made.arch.train_length)
    assert plan.flops_per_token == real.flops_per_token(made.arch.train_length)
    assert plan.flops_per_token == 3 * forward - 2 * idle
    assert plan.memory["weights"] == 4 * plan.parameters


def test_seven_billion_parameters_are_counted_without_storage():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = planned("model=rope", "task=c4", "scale=paper", "trainer.micro_batch=1", *LLAMA)[0]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert plan.parameters == 6_738_415_616
    assert grown < 300_000  # KB
    assert sum(plan.memory.values()) > 100e9


def test_devices_share_the_time_and_fsdp_shares_the_weights():
    words = ["task=c4", "model=tape", "scale=paper", "trainer.micro_batch=4"]
    one = planned(*words)[0]
    ddp = planned(*words, "trainer=ddp")[0]
    two, four = (planned(*words, "trainer=fsdp", f"trainer.devices={n}")[0] for n in (2, 4))
    nodes = planned(*words, "trainer=fsdp", "trainer.nodes=2")[0]
    assert ddp.hours == two.hours == pytest.approx(one.hours / 2)
    assert four.hours == nodes.hours == pytest.approx(one.hours / 4)
    for part in ("weights", "gradients", "AdamW"):
        assert ddp.memory[part] == one.memory[part] == 2 * two.memory[part] == 4 * four.memory[part]
    assert ddp.memory == one.memory
    assert one.memory["activations"] == two.memory["activations"]  # of as many rows
    assert nodes.memory == four.memory


def test_rows_and_precision_change_what_they_should():
    words = ["task=c4", "model=rope", "scale=paper"]
    some, more = (planned(*words, f"trainer.micro_batch={n}")[0] for n in (4, 8))
    half = planned(*words, "trainer.micro_batch=4", "trainer.precision=bf16-true")[0]
    full = planned(*words, "trainer.micro_batch=4", "trainer.precision=32-true")[0]
    assert more.memory["activations"] == pytest.approx(2 * some.memory["activations"], rel=1e-3)
    assert more.memory["logits"] == 2 * some.memory["logits"] == 8 * 1024 * LOGITS * 32_000
    assert more.hours == some.hours == half.hours < full.hours
    assert full.memory["AdamW"] == 8 * full.trainable == 2 * half.memory["AdamW"]
    assert half.memory["activations"] == some.memory["activations"] < full.memory["activations"]


def test_recomputing_trades_a_forward_pass_for_memory():
    words = ["task=c4", "model=tape", "scale=paper", "trainer.micro_batch=4"]
    kept, decoder, task, _ = planned(*words)
    again = planned(*words, recompute=True)[0]
    forward = decoder.forward_flops_per_token(1024) - 2 * decoder.head.weight.numel()
    assert again.flops_per_token == pytest.approx(kept.flops_per_token + forward)
    assert again.memory["activations"] < kept.memory["activations"] / task.arch.layers * 3
    assert again.memory["AdamW"] == kept.memory["AdamW"]


def test_frozen_weights_need_no_gradients_and_fewer_operations():
    kept, decoder, task, setting = planned("task=c4", "model=rope", "trainer.precision=bf16-mixed")
    decoder.requires_grad_(False)
    decoder.layers[0].q.weight.requires_grad = True
    found = kept_by(decoder, task, setting)
    frozen = estimate(decoder, task, setting, False, found)
    q, lookups = decoder.layers[0].q.weight.numel(), decoder.embedding.weight.numel()
    assert frozen.trainable == q
    assert frozen.memory["gradients"] == 4 * q
    assert frozen.memory["AdamW"] == 8 * q
    assert frozen.memory["weights"] == kept.memory["weights"]
    assert kept.flops_per_token - frozen.flops_per_token == 2 * (frozen.parameters - lookups - q)
    recomputed = estimate(decoder, task, setting, True, found)
    assert frozen.memory["activations"] < kept.memory["activations"]
    assert recomputed.memory["16-bit copies of the weights"] == 2 * q


@pytest.mark.parametrize(
    ("model", "method"), [("rope", "lora"), ("rope", "theta"), ("tape", "tape"), ("rope", "full")]
)
def test_a_llama_is_adapted_without_its_weights(model, method):
    """What each method of the paper trains of Llama-2-7B, on the eight devices that its trainers
    ask for.
    """
    words = [f"model={model}", f"peft={method}", "task=extend", "scale=paper"]
    plan = planned(
        *words, "trainer=fsdp_7b" if method == "full" else "trainer=ddp_7b", recompute=True
    )[0]
    base, adapters, tape = (
        6_738_415_616,
        4 * 32 * 8 * 2 * 4096,
        32 * (32 * 32 + 2 * 32 * 128 + 128 * 4096),
    )
    extra = {"lora": adapters, "theta": adapters, "tape": tape, "full": 0}[method]
    trained = {"tape": tape * 31 // 32, "full": base}.get(
        method, adapters + 32_000 * 4096 + 65 * 4096
    )
    assert (plan.parameters, plan.trainable) == (base + extra, trained)
    assert plan.tokens == 64 * 1000 * 8192
    if method == "full":
        assert plan.memory["weights"] == 4 * base / 8
    else:  # frozen matrices in bf16
        assert 2 * base < plan.memory["weights"] < 2.2 * base
        assert plan.memory["16-bit copies of the weights"] < 0.1e9
    assert sum(plan.memory.values()) < 80 * 2**30


# Bytes a token of one layer, per unit of the width C and of SwiGLU's inner size F: of each norm its
# input and its normalised input in fp32; what q, k and v read, and what gate and up read, under
# autocast a 16-bit copy each; q, k, v and what they attend to; SwiGLU's four products.
PER_UNIT = {"32-true": (40, 16), "bf16-true": (28, 8), "bf16-mixed": (28, 8)}
# Of TAPE also, for a number of its state: the state in fp32, the copy of it that attention
# averages, the average, what ψ reads, and q and k before they are rotated; in fp32 no copy. And for
# an entry of an H × H map and what ψ keeps.
PER_STATE = {"32-true": 20, "bf16-true": 14, "bf16-mixed": 14}
PER_MAP = 8


@pytest.mark.parametrize("precision", PER_UNIT)
@pytest.mark.parametrize("model", ["rope", "tape"])
def test_a_layer_keeps_what_can_be_counted_by_hand(model, precision):
    decoder = conftest.make_decoder(model, Arch(5, 96, 6, 256, 40, 512, 512))
    found = kept(decoder, precision, 1, 512)
    middle = found.blocks[2] / 512
    per_width, per_ffn = PER_UNIT[precision]
    by_hand = per_width * 96 + per_ffn * 256
    by_hand += PER_STATE[precision] * 96 + PER_MAP * 6**2 if model == "tape" else 0
    assert middle == pytest.approx(by_hand, rel=0.02)
    assert not any([*found.pairs, *found.passing])


def held(decoder: Decoder, rows: int, length: int) -> int:
    """Bytes that autograd keeps of a pass on a CPU, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        decoder(torch.zeros(rows, length, dtype=torch.long), sampler=RowSampler(0))
    return sum(storage.nbytes() for storage in found.values())


def small(model: str) -> Decoder:
    sizes = Arch(3, 32, 4, 64, vocab=14, max_length=1024, train_length=1024, digits=DIGITS)
    return conftest.make_decoder(model, sizes)


@pytest.mark.parametrize("model", ENCODINGS)
def test_what_a_trace_tells_is_what_tensors_with_storage_take(model):
    """Positions by torch's code."""
    decoder, rows, length = small(model), 3, 512
    for block in decoder.blocks():
        block.position.fused = False
    told = sum(kept(decoder, "32-true", rows, length).blocks)
    for block in decoder.blocks():
        block.attend = attend
    assert held(decoder, rows, length) == pytest.approx(told, rel=0.02)


@pytest.mark.parametrize(
    "model", ["rope", "nope", "xpos", "alibi", "p_rope", "selective_rope", "repo"]
)
def test_what_a_trace_tells_is_what_fused_attention_of_a_cpu_keeps(model):
    decoder, rows, length = small(model), 3, 512
    told = sum(kept(decoder, "32-true", rows, length).blocks)
    for block in decoder.blocks():
        block.backend = "sdpa"
    assert held(decoder, rows, length) == pytest.approx(told, rel=0.15)


@pytest.mark.parametrize(
    ("words", "dense"),
    [
        ("model=fire", False),
        ("model=fire trainer.precision=32-true", True),
        ("model=fire trainer.attention=flex", True),
        ("model=t5", False),
        ("model=t5 trainer.attention=sdpa", True),
        ("model=alibi +model.ssmax=true", True),
        ("model=alibi trainer.precision=32-true", True),
        ("model=fox", False),
    ],
)
def test_pairs_are_planned_for_where_no_kernel_reads_a_bias_as_it_is(words, dense):
    plan, *_ = planned(*words.split(), "task=c4", "scale=paper", "trainer.micro_batch=4")
    pairs = plan.memory.get("pairs of tokens", 0)
    assert pairs > 2 * 12 * 12 * 1024**2 if dense else pairs == 0


@pytest.mark.parametrize(
    "words",
    [
        "task=arithmetic task.arch.layers=1",
        "task=arithmetic task.arch.layers=2 model=tape",
        "task=c4 model=alibi trainer.attention=flash",
        "task=c4 model=path_fox trainer.attention=fla",
        "task=extend model=rope peft=longlora",
        "task=extend model=rope peft=longlora peft.sparse_groups=3 task.train_length=252",
    ],
)
def test_what_is_kept_without_pairs_of_tokens(words):
    """Few layers, native slopes, fla's kernels, and attention within groups."""
    both = [planned(*words.split(), recompute=again)[0].memory for again in (False, True)]
    assert "pairs of tokens" not in both[0] | both[1]
    assert min(plan["activations"] for plan in both) > 0


def test_hours_in_fp32_are_those_without_tensor_cores():
    words = ["task=c4", "model=rope", "scale=paper"]
    half, full = (planned(*words, f"trainer.precision={p}")[0] for p in ("bf16-mixed", "32-true"))
    assert full.hours == pytest.approx(half.hours * 989 / 67)


def test_pairs_of_long_rows_are_planned_for_a_block_of_queries_of_one_layer():
    words = ["model=path", "task=c4", "scale=paper", "trainer.micro_batch=4", "task.arch.layers=2"]

    def pairs(*more: str) -> float:
        return planned(*words, *more)[0].memory["pairs of tokens"]

    plan, decoder, task, setting = planned(*words)
    found = kept_by(decoder, task, setting)
    assert not any(found.pairs)
    each = found.passing[0] / (2 * ROWS * 1024)
    assert each > 4 * 4 * 12
    assert plan.memory["pairs of tokens"] == found.passing[0]
    assert pairs("task.train_length=2048") == pytest.approx(2 * pairs(), rel=0.01)
    layers = task.arch.layers
    assert pairs("trainer.attention=flex") == pytest.approx(layers * 1024**2 * each, rel=0.05)
    assert pairs("task.train_length=512") == pytest.approx(layers * 512**2 * each, rel=0.05)
    said = " ".join(assumptions(decoder, task, setting, found))
    assert f"takes {ROWS} queries at a time, again in the backward pass" in said
    assert "twice as much at twice the length" in said


def test_a_plan_prints_its_assumptions_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "task=c4",
        "model=tape",
        "scale=paper",
        "trainer=fsdp",
        "trainer.micro_batch=8",
        "debug=plan",
        "checkpoint=c4",
    ]
    assert run(compose_config(words)) == {}
    said = capsys.readouterr().out
    for text in (
        "No GPU of a known peak is here: an H100 is assumed.",
        "162,875,328",
        "a guess: the tokenizer",
        "fsdp",
        "recomputed",
        "40% of",
        "Not counted",
        "5,242,880,000",
    ):
        assert text in said.replace("\n", " "), text
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize("task", conftest.TASKS)
def test_every_task_can_be_planned_before_anything_exists(task, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(compose_config([f"task={task}", "scale=paper", "debug=plan", "checkpoint=a_run_to_come"]))
    said = capsys.readouterr().out
    assert "parameters" in said
    assert ("hours" in said) == blank_task(compose_config([f"task={task}"])).trains
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.optim.batch=7", r"task\.optim\.batch=7 cannot be shared by 2 devices"),
        ("trainer.micro_batch=3", r"trainer\.micro_batch=2 does"),
        ("task.arch.width=90", r"task\.arch\.width=90 is not divisible"),
        ("trainer.precision=fp8", r"trainer\.precision=fp8 is not known"),
        ("task.optim.lr=-1", r"task\.optim\.lr=-1\.0 must be positive"),
    ],
)
def test_mistakes_are_those_of_a_run(override, message):
    with pytest.raises(ConfigError, match=message):
        run(compose_config(["task=c4", "trainer=ddp", "debug=plan", override]))


@pytest.mark.parametrize(
    ("name", "major", "peak", "numbers"),
    [
        ("NVIDIA H100 80GB HBM3", 9, 989e12, "bf16-mixed"),
        ("NVIDIA H100 NVL", 9, 835e12, "bf16-mixed"),
        ("NVIDIA H200 NVL", 9, 835e12, "bf16-mixed"),
        ("NVIDIA A10G", 8, 70e12, "bf16-mixed"),
        ("NVIDIA A100-SXM4-80GB", 8, 312e12, "bf16-mixed"),
        ("Tesla V100-SXM2-16GB", 7, 0.0, "32-true"),
    ],
)
def test_a_gpu_is_known_by_its_name_and_trains_in_bf16_if_it_computes_in_it(
    name, major, peak, numbers, monkeypatch
):
    """PyTorch also counts bf16 that is emulated, and slower than fp32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major)
    )
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert peak_flops(torch.device("cuda")) == peak
    assert precision("auto", "auto") == numbers
