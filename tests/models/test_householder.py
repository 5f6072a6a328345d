"""TAPE with the update of theorem 1: the product that it claims, its equivariance, and its norm
over long sequences.
"""

import pytest
import torch

from tape_exp.models.conformance import randomise
from tape_exp.models.positions import tape_householder
from tape_exp.models.positions.base import LayerOutputs
from tape_exp.models.positions.tape_householder import HouseholderTAPE, products
from tape_exp.settings.schema import Arch

LONG = Arch(layers=2, width=64, heads=4, ffn=48, vocab=14, max_length=300, train_length=24)


def layer(arch: Arch, seed: int = 0, **options) -> HouseholderTAPE:
    encoding = HouseholderTAPE(arch, **options)
    encoding.init_weights(torch.Generator().manual_seed(seed))
    randomise(encoding, seed=seed)
    return encoding.double()


def inputs(encoding: HouseholderTAPE, N: int = 7, seed: int = 0):
    """Token features and a random general state, fp64."""
    generator, arch = torch.Generator().manual_seed(seed), encoding.arch
    x = torch.randn(2, N, arch.width, generator=generator, dtype=torch.float64)
    shape = (2, N, arch.heads, encoding.M, encoding.R, encoding.R)
    return x, torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("block", [3, 64])
@pytest.mark.parametrize("R", [2, 4, 8, 16])
def test_the_sum_is_the_transposed_product_of_reflections(R, block, monkeypatch):
    """(∏_{j<=i} (I - ξ_j ξ_jᵀ)(I - ξ'_j ξ'_jᵀ))ᵀ, ξ from the rows of E, written as loops."""
    monkeypatch.setattr(tape_householder, "BLOCK", block)
    encoding = layer(LONG, R=R)
    x, E = inputs(encoding)
    found = products(encoding.reflections(E, x))
    eye, net = torch.eye(R, dtype=torch.float64), encoding.update_net
    a = (x @ net.down.T @ net.up.T).unflatten(-1, (4, encoding.M, R))
    b = (x @ net.down.T @ net.up_apart.T).unflatten(-1, (4, encoding.M, R))
    for row in range(2):
        for h in range(4):
            for m in range(encoding.M):
                product = eye
                for i in range(7):
                    for way in (a[row, i, h, m], a[row, i, h, m] + b[row, i, h, m]):
                        direction = way @ E[row, i, h, m]
                        direction = direction / direction.norm()
                        product = product @ (eye - 2 * torch.outer(direction, direction))
                    assert (found[row, i, h, m] - product.T).abs().max() < 1e-10


def test_keys_are_seen_through_the_tokens_between():
    """E_i Pᵢᵀ Pⱼ Eⱼᵀ does not depend on what comes before j."""
    encoding = layer(LONG, feed_forward=False)
    x, E = inputs(encoding)
    changed_x, changed_E = (torch.cat([y[:, :3] + 1, y[:, 3:]], 1) for y in (x, E))
    seen = []
    for features, state in ((x, E), (changed_x, changed_E)):
        turned = encoding.update(state, None, LayerOutputs(features, features, features), None)
        seen.append(torch.einsum("bihmlr,bjhmkr->bhmijlk", turned, turned))
    assert (seen[0] - seen[1])[:, :, :, 3:, 3:].abs().max() < 1e-10
    assert (seen[0] - seen[1])[:, :, :, 3:, 1].abs().max() > 0.1


def test_the_update_is_orthogonally_equivariant():
    """Equation (ortho_equiv): g(X, E O) = g(X, E) O for one O(R) in every block, to 1e-10."""
    encoding = layer(LONG)
    x, E = inputs(encoding)
    O = torch.linalg.qr(  # noqa: E741
        torch.randn(8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    )[0]
    before, after = (encoding.update(s, None, LayerOutputs(x, x, x), None) for s in (E, E @ O))
    assert (after - before @ O).abs().max() < 1e-10
    assert (before - E).abs().max() > 0.1


def test_rotations_stay_rotations_over_256_tokens():
    """In fp32, as models compute it."""
    encoding = layer(LONG).float()
    x, E = (tensor.float() for tensor in inputs(encoding, 256))
    turned = products(encoding.reflections(E, x))
    assert (turned @ turned.transpose(-1, -2) - torch.eye(8)).abs().max() < 1e-3
    assert (torch.linalg.det(turned) - 1).abs().max() < 1e-3
    assert (turned[:, -1] - torch.eye(8)).abs().max() > 0.5
