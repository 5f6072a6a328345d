"""FIRE on randomised positions."""

from tape_exp.models.positions.fire import FIRE
from tape_exp.models.positions.randpe import RandomPositions


class RandomFIRE(RandomPositions, FIRE):
    """FIRE on a sorted random subset of 0 … L_max - 1, as with RandPE: f sees the distances of
    longer sequences in training.

    Args:
        range_factor: as in RandPE.
        hidden, c, threshold: as in FIRE.
    """
