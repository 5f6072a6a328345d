"""No positional encoding."""

from tape_exp.models.positions.base import PositionEncoding


class NoPE(PositionEncoding):
    """NoPE: logits are q·k / √d and nothing else (Kazemnejad et al., "The Impact of Positional
    Encoding on Length Generalization in Transformers", 2023). The base class computes it.
    """
