"""Every encoding's parameters can be sharded as ``trainer.strategy=fsdp`` does it."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.common import ENCODINGS
from tape_exp.machine.seeding import RowSampler
from tape_exp.models import head
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.head import TotalLoss
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.schema import Arch
from tape_exp.training.module import loss_sum
from tests.conftest import make_decoder
from tests.processes import SERVER

TOKENS = torch.randint(0, 14, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


# Two kinds of layers, with parameters of a layer's own
PATTERN = "[tape,{name:rope,window:8,ssmax:true,qk_norm:true}]"


@pytest.mark.parametrize("name", [*ENCODINGS, PATTERN])
def test_a_sharded_model_computes_the_same(name, mesh, arch):
    """FSDP2 takes no parameters without dimensions."""
    model = make_decoder(name, arch)
    randomise(model, std=0.1)
    expected = model(TOKENS, sampler=RowSampler(5))
    expected.square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh)
    logits = model(TOKENS, sampler=RowSampler(5))
    logits.square().mean().backward()
    assert torch.allclose(logits, expected, atol=1e-6)
    found = {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        assert torch.allclose(found[parameter], gradient, atol=1e-6), parameter


@pytest.mark.parametrize("tied", [False, True])
def test_a_sharded_head_makes_its_loss_in_pieces(tied, mesh, arch, monkeypatch):
    """Its gradients, which the forward pass makes, reach the shards."""
    monkeypatch.setattr(head, "most_logits", lambda device: 14 * 5)
    model = make_decoder("tape", dataclasses.replace(arch, tied=tied))
    found = []
    for sharded in (False, True):
        if sharded:
            for part in (*model.layers, model):
                fully_shard(part, mesh=mesh)
        loss = model(TOKENS, output=TotalLoss(TOKENS, None, loss_sum))
        (loss / 3).backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        whole = {n: g.full_tensor() if sharded else g.clone() for n, g in grads.items()}
        found.append(whole | {"loss": loss.detach()})
        model.zero_grad()
    assert found[0].keys() == found[1].keys()
    assert "embedding.weight" in found[0]
    for name, expected in found[0].items():
        assert torch.allclose(found[1][name], expected, atol=1e-5), name


def generating_in_two(rank: int, folder: Path) -> None:
    """One of two processes: the first one's answer ends at its first token, the other's never."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = Decoder(Arch(layers=2, width=32, heads=4, ffn=48, vocab=14, max_length=16), RoPE)
    randomise(model, std=0.1)
    for part in (*model.layers, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    prompts = [[1, 2, 3]]
    with torch.no_grad():
        (whole,) = generate(model, prompts, 6)
        (row,) = generate(model, prompts, 6, eos=whole[0] if rank == 0 else 14)
    assert row == ([] if rank == 0 else whole)
    dist.destroy_process_group()


@pytest.mark.slow
def test_answers_of_a_sharded_model_may_end_apart(tmp_path):
    """All gather the weights in each pass: if one stopped by itself, the other would wait."""
    both = [SERVER.Process(target=generating_in_two, args=(n, tmp_path)) for n in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
