"""Every encoding's parameters can be sharded as ``trainer.strategy=fsdp`` does it."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tape_exp.machine.seeding import RowSampler
from tape_exp.measure.encodings import ENCODINGS
from tests.conftest import make_decoder, randomise

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
