"""ALiBi on randomised positions."""

from tape_exp.models.positions.alibi import ALiBi
from tape_exp.models.positions.randpe import RandomPositions


class RandomALiBi(RandomPositions, ALiBi):
    """ALiBi on a sorted random subset of 0 … L_max - 1 (Ruoss et al., 2023, who also compare it).

    A penalty then grows by random steps: r_h times the difference of two sampled positions. Since
    these differ from row to row, it is a bias by pair, which ALiBi's kernels do not serve.

    Args:
        range_factor: as in RandPE.
    """
