"""A loss in pieces is the loss of all logits, with all its gradients."""

import pytest
import torch
import torch.nn.functional as F

from tape_exp.models import head
from tape_exp.models.head import total_loss
from tape_exp.training.module import loss_sum


def case(weighted, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 8, generator=draw, dtype=dtype).requires_grad_()
    linear = torch.nn.Linear(8, 40, bias=False, dtype=dtype)
    labels = torch.randint(0, 40, (2, 50), generator=draw)
    labels[0, :20] = -100
    weights = torch.rand(2, 50, generator=draw, dtype=dtype) if weighted else None
    return x, linear, labels, weights


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("limit", [1, 40 * 7, 40 * 99])
def test_a_loss_in_pieces_is_that_of_all_logits(weighted, frozen, limit, monkeypatch):
    """Of one token, seven and almost all at once; scaled, as by accumulation."""
    x, linear, labels, weights = case(weighted)
    linear.requires_grad_(not frozen)
    learns = [x] if frozen else [x, linear.weight]
    losses = F.cross_entropy(linear(x).flatten(0, 1), labels.flatten(), reduction="none")
    expected = (losses if weights is None else losses * weights.flatten()).sum()
    monkeypatch.setattr(head, "most_logits", lambda device: limit)
    found = total_loss(x, linear, labels, weights, loss_sum)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    pairs = zip(
        torch.autograd.grad(0.3 * found, learns),
        torch.autograd.grad(0.3 * expected, learns),
        strict=True,
    )
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_pieces_multiply_in_the_dtype_of_autocast(monkeypatch):
    x, linear, labels, _ = case(False, torch.float32)
    found = []
    for limit in (1 << 20, 40 * 7):
        monkeypatch.setattr(head, "most_logits", lambda device, limit=limit: limit)
        with torch.autocast("cpu", torch.bfloat16):
            loss = total_loss(x, linear, labels, None, loss_sum)
        found.append([loss, *torch.autograd.grad(loss, [x, linear.weight])])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_a_compiled_loss_in_pieces_is_the_same(monkeypatch):
    """As on a GPU, where the loss is one kernel; here nothing but the graph is made."""
    found = []
    for loss in (loss_sum, torch.compile(loss_sum, backend="aot_eager")):
        x, linear, labels, weights = case(True)
        torch.nn.init.ones_(linear.weight)
        monkeypatch.setattr(head, "most_logits", lambda device: 40 * 7)
        total = total_loss(x, linear, labels, weights, loss)
        found.append([total, *torch.autograd.grad(total, [x, linear.weight])])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


def test_nothing_is_held_for_a_gradient_that_nobody_asks_for(monkeypatch):
    x, linear, labels, _ = case(False)
    monkeypatch.setattr(head, "most_logits", lambda device: 1)
    with torch.no_grad():
        found = total_loss(x, linear, labels, None, loss_sum)
    assert not found.requires_grad


def test_a_batch_without_labels_has_no_loss(monkeypatch):
    x, linear, labels, _ = case(False)
    monkeypatch.setattr(head, "most_logits", lambda device: 1)
    found = total_loss(x, linear, torch.full_like(labels, -100), None, loss_sum)
    found.backward()
    assert found == 0
    assert x.grad.abs().max() == 0
