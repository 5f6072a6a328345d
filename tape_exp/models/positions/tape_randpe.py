"""TAPE on randomised positions."""

from tape_exp.models.positions.randpe import RandomPositions
from tape_exp.models.positions.tape import TAPE


class RandomTAPE(RandomPositions, TAPE):
    """TAPE whose E begins as the rotations of positions that RandPE samples.

    Positions are those of RandPE, a sorted random subset of 0 … L_max - 1, and the updates of E are
    those of TAPE: at step 0 it is RandPE. It completes the two-by-two of RoPE or TAPE on
    consecutive or on random positions. Neither paper has it.

    Args:
        range_factor: as in RandPE.
        others: as in TAPE.
    """
