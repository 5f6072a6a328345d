"""``debug=plan``: counts are the model's own, memory is close to a step's, nothing is read."""

import resource
from types import SimpleNamespace

import pytest
import torch

from tape_exp.machine.hardware import peak_flops
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.head import LogitsAt, most_logits
from tape_exp.settings.compose import compose_config
from tape_exp.training.from_config import blank_parts
from tape_exp.training.plan import devices_of, flops_per_token, memory, tokens
from tape_exp.training.trainer import precision
from tests import conftest

PAPER = ["task=c4", "scale=paper", "trainer.micro_batch=4"]


def planned(*overrides: str, recompute: bool = False) -> SimpleNamespace:
    """The plan of a config, with its decoder on the meta device, task and devices."""
    cfg = compose_config(list(overrides))
    decoder, task = blank_parts(cfg)
    devices = devices_of(cfg, task)
    return SimpleNamespace(
        decoder=decoder,
        task=task,
        devices=devices,
        memory=memory(decoder, task, devices, recompute),
        flops=flops_per_token(decoder, task, recompute),
        trainable=sum(p.numel() for p in decoder.parameters() if p.requires_grad),
    )


@pytest.mark.parametrize("model", ["rope", "tape", "fire"])
@pytest.mark.parametrize("task", ["arithmetic", "c4"])
def test_counts_are_those_of_a_real_decoder(model, task):
    plan = planned(f"model={model}", f"task={task}")
    arch, optim = plan.task.arch, plan.task.optim
    real = conftest.make_decoder(model, arch)
    assert plan.decoder.parameter_count() == real.parameter_count()
    assert plan.decoder.positional_count() == real.positional_count()
    assert plan.flops == real.flops_per_token(arch.train_length)
    assert tokens(plan.task) == optim.max_steps * optim.batch * arch.train_length
    assert plan.memory["weights"] == 4 * real.parameter_count()


def test_seven_billion_parameters_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = ["layers=32", "width=4096", "heads=32", "ffn=11008"]
    plan = planned(*PAPER, "model=rope", *(f"task.arch.{size}" for size in sizes))
    assert plan.decoder.parameter_count() == 6_738_415_616
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


@pytest.mark.slow
def test_fsdp_divides_what_ddp_holds_on_every_device():
    one, ddp = planned(*PAPER, "model=tape"), planned(*PAPER, "model=tape", "trainer=ddp")
    four = planned(*PAPER, "model=tape", "trainer=fsdp", "trainer.devices=2", "trainer.nodes=2")
    assert ddp.memory == one.memory
    assert (ddp.devices.count, four.devices.count) == (2, 4)
    for part in ("weights", "gradients", "AdamW"):
        assert one.memory[part] == 4 * four.memory[part]
    assert one.memory["activations"] == four.memory["activations"]


@pytest.mark.parametrize(
    ("model", "method"), [("rope", "lora"), ("rope", "theta"), ("tape", "tape"), ("rope", "full")]
)
def test_a_llama_is_adapted_without_its_weights(model, method):
    """What the paper's methods train of Llama-2-7B, on the eight devices of their trainers."""
    words = [f"model={model}", f"peft={method}", "task=extend", "scale=paper"]
    trainer = "trainer=fsdp_7b" if method == "full" else "trainer=ddp_7b"
    plan = planned(*words, trainer, recompute=True)
    base, adapters = 6_738_415_616, 4 * 32 * 8 * 2 * 4096
    tape = 32 * (32 * 32 + 2 * 32 * 128 + 128 * 4096)
    extra = {"lora": adapters, "theta": adapters, "tape": tape, "full": 0}[method]
    with_embeddings = adapters + 32_000 * 4096 + 65 * 4096
    trained = {"tape": tape * 31 // 32, "full": base}.get(method, with_embeddings)
    assert (plan.decoder.parameter_count(), plan.trainable) == (base + extra, trained)
    assert tokens(plan.task) == 64 * 1000 * 8192
    if method == "full":
        assert plan.memory["weights"] == 4 * base / 8
    else:  # frozen matrices in bf16
        assert 2 * base < plan.memory["weights"] < 2.2 * base
    assert sum(plan.memory.values()) < 80 * 2**30


def test_many_logits_are_planned_as_the_piece_that_is_held():
    """Few tokens have all of their logits at once, many only a piece of them."""
    few = planned("task=c4", "model=rope", "task.train_length=64", "task.optim.batch=8")
    assert few.memory["logits"] == 12 * 8 * 64 * few.task.arch.vocab
    many = planned("task=c4", "model=rope", "scale=paper", "trainer.micro_batch=512")
    assert many.memory["logits"] == 12 * most_logits(torch.device("cuda"))


@pytest.mark.parametrize("attention", ["auto", "explicit"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("model", ["rope", "tape", "fox"])
def test_activations_are_close_to_what_autograd_keeps_on_a_cpu(model, precision, attention):
    words = [f"model={model}", f"trainer.attention={attention}", f"trainer.precision={precision}"]
    sizes = [f"task.arch.{size}" for size in ("layers=4", "width=64", "heads=4", "ffn=160")]
    more = ["task.train_length=256", "trainer=cpu", "trainer.micro_batch=2"]
    plan = planned("task=c4", *words, *sizes, *more)
    decoder = conftest.make_decoder(model, plan.task.arch)
    for block in decoder.blocks():
        block.backend = attention
    own = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        hidden = {"output": LogitsAt(torch.zeros(1, dtype=torch.long))}  # logits are planned apart
        decoder(torch.zeros(2, 256, dtype=torch.long), sampler=RowSampler(0), **hidden)
    kept = sum(s.nbytes() for pointer, s in storages.items() if pointer not in own)
    weights = 2 * sum(p.numel() for p in decoder.parameters()) * (precision == "bf16-mixed")
    assert plan.memory["activations"] == pytest.approx(kept - weights, rel=0.45)


@pytest.mark.parametrize(
    ("name", "major", "peak", "numbers"),
    [
        ("NVIDIA H100 80GB HBM3", 9, 989e12, "bf16-mixed"),
        ("NVIDIA H200 NVL", 9, 835e12, "bf16-mixed"),
        ("NVIDIA A10G", 8, 70e12, "bf16-mixed"),
        ("NVIDIA RTX A1000", 8, 0.0, "bf16-mixed"),
        ("Tesla V100-SXM2-16GB", 7, 0.0, "32-true"),
    ],
)
def test_a_gpu_trains_in_bf16_if_it_computes_in_it(name, major, peak, numbers, monkeypatch):
    """PyTorch also counts bf16 that is emulated, and slower than fp32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    properties = SimpleNamespace(major=major)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert peak_flops(torch.device("cuda")) == peak
    assert precision("auto", "auto") == numbers
