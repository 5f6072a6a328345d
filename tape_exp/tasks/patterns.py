"""Positions and attention of a trained model: figures pattern and dp_layers of the paper."""

from typing import Any

import torch

from tape_exp.models.peft import without_autocast
from tape_exp.models.trace import trace
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.text import Analysis


class Patterns(Analysis):
    """E Eᵀ and the attention of some layers on a sample text, each averaged over heads.

    ``matrices`` of the evaluation: ``products@<layer>`` and ``attention@<layer>``, (T, T) each;
    encodings without a state have no products. The metric ``attention/distance@<layer>`` is how far
    back the average query looks, in tokens. The last layer is always drawn.
    """

    def __init__(
        self,
        arch: Arch,
        layers: tuple[int, ...] = (1, 4, 8, 12),
        length: int | None = 64,
        **settings: Any,
    ) -> None:
        drawn = tuple(sorted({*layers, arch.layers}))
        super().__init__(arch=arch, layers=drawn, length=length, **settings)

    def metric_names(self) -> list[str]:
        """Name the distance of each drawn layer."""
        return [f"attention/distance@{layer}" for layer in self.layers]

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Trace the sample through the layers, and average over heads."""
        tokens = self.sample.to(model.device)
        with without_autocast(model.decoder):
            traces = trace(model.decoder, tokens, self.layers)
        metrics = {}
        matrices = {}
        position = torch.arange(self.length, device=tokens.device)
        distance = position[:, None] - position
        for layer, of_layer in traces.items():
            attention = of_layer.attention.mean((0, 1))
            matrices[f"attention@{layer}"] = attention.cpu().numpy()
            metrics[f"attention/distance@{layer}"] = float((attention * distance).sum(-1).mean())
            if of_layer.products is not None:
                matrices[f"products@{layer}"] = of_layer.products.mean(0).cpu().numpy()
        return Evaluation(metrics, matrices=matrices)
