"""What is fused is counted as Inductor plans it for a GPU that is not there."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_exp.measure import fusion

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
N, C = 256, 128


def gated(x, gate, up, down):
    return ((F.silu(x @ gate) * (x @ up)) @ down).float().sum()


def test_a_group_moves_what_it_reads_from_outside_and_what_others_read_of_it():
    """Of SwiGLU's gate: two tensors in and one out; backward these two, its gradient, two out."""
    with FakeTensorMode():
        x, *weights = (
            torch.empty(rows, C, dtype=torch.bfloat16, requires_grad=rows == C)
            for rows in (N, C, C, C)
        )
        found = fusion.planned(fusion.traced(gated, x, *weights))
    forward, backward = found["forward"], found["backward"]
    assert (forward.products.launches, backward.products.launches) == (3, 4)
    assert (forward.others.launches, backward.others.launches) == (3, 2)  # a sum is two, its d one
    tensor = 2 * N * C
    assert forward.others.bytes // tensor == 3 + 1
    assert backward.others.bytes // tensor == 1 + 5
