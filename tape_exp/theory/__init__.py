"""The theory of the TAPE paper, executable: theorem 1 as a model, propositions 1 and 2 as
measurements.
"""

PROPERTIES = ("permutation", "rotation", "rotations", "shift")  # of propositions 1 and 2
# A property holds where its error, relative to the largest entry, is below this; rounding leaves
# about 1e-12.
HOLDS = 1e-9


def answer(error: float) -> str:
    """``yes (4e-16)`` where a property holds up to rounding, else ``no (0.12)``."""
    return f"yes ({error:.0e})" if error < HOLDS else f"no ({error:.2g})"
