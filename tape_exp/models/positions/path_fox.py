"""PaTH with a forget gate."""

from tape_exp.models.positions.fox import FoX
from tape_exp.models.positions.path import PaTH


class PaTHFoX(FoX, PaTH):
    """PaTH-FoX (Yang et al., 2025): PaTH's products of reflections, and FoX's forget gate, one per
    query head, which adds c_i - c_j to PaTH's logits.

    Args:
        rank: as in PaTH.
    """
