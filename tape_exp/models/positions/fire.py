"""FIRE: a learned function of progressively normalised distance."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from tape_exp.models.attention import ByPosition, by_distance
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.precision import precise
from tape_exp.settings.schema import Arch, Count


class FIRE(PositionEncoding):
    """FIRE: b(i, j) = f(ψ(i - j) / ψ(max(i, L))), ψ(x) = log(|c| x + 1), f an MLP 1 → 32 → H (Li et
    al., "Functional Interpolation for Relative Positions Improves Long Context Transformers",
    2023).

    c and a factor on L are trained per layer, beginning at ``c`` and 1. The bias is added after the
    factor 1/√d. Up to the threshold (i <= L) it depends only on the distance, beyond it also on i.

    Args:
        hidden: inner size of f.
        c: initial c.
        threshold: initial L, in tokens.
    """

    def __init__(
        self, arch: Arch, hidden: Count = 32, c: float = 0.1, threshold: float = 512.0
    ) -> None:
        super().__init__(arch)
        self.threshold = threshold
        self.inner = nn.Linear(1, hidden)
        self.outer = nn.Linear(hidden, arch.heads)
        # vectors, since FSDP2 shards no scalars
        self.c = nn.Parameter(torch.tensor([c]))
        self.threshold_factor = nn.Parameter(torch.tensor([1.0]))

    def init_weights(self, generator: torch.Generator) -> None:
        """Both maps uniform in ± 1/√inputs: a bias near zero would learn its shape late."""
        uniform(self.inner, generator)
        uniform(self.outer, generator)

    def bias(self, *_: Tensor) -> ByPosition:
        """f of the normalised log-distance."""
        return ByPosition(self.of_positions)

    def of_positions(self, queries_BT: Tensor, keys_BS: Tensor) -> Tensor:
        """b(i, j), (B, H, T, S); up to the threshold on a CPU from one value for each distance."""
        threshold = (self.threshold * precise(self.threshold_factor[0])).abs()
        (rows, T), last = queries_BT.shape, queries_BT[:, -1]
        if queries_BT.device.type == "cpu" and not is_compiling() and rows == 1:
            consecutive = bool((keys_BS.diff() == 1).all()) and last == keys_BS[:, -1]
            if consecutive and last <= threshold:
                distances_S = torch.arange(keys_BS.shape[1], dtype=queries_BT.dtype)
                return by_distance(self.mlp(distances_S, threshold), T)[None]
        distances_BTS = (queries_BT[:, :, None] - keys_BS[:, None]).clamp(min=0)
        far_BT1 = torch.maximum(queries_BT, threshold)[..., None]
        return self.mlp(distances_BTS, far_BT1).transpose(0, 1)

    def mlp(self, distances: Tensor, far: Tensor) -> Tensor:
        """f(ψ(distances) / ψ(far)), (H, …)."""
        relative = self.psi(distances) / (self.psi(far) + 1e-6)  # never 0
        hidden = F.relu(linear(self.inner, relative[..., None]), inplace=True)
        return linear(self.outer, hidden).movedim(-1, 0)

    def psi(self, x: Tensor) -> Tensor:
        """log(|c| x + 1)."""
        return torch.log(precise(self.c[0]).abs() * x + 1)


def uniform(layer: nn.Linear, generator: torch.Generator) -> None:
    """Weights and biases uniform in ± 1/√inputs."""
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's map in at least fp32."""
    return F.linear(x, precise(layer.weight), precise(layer.bias))
