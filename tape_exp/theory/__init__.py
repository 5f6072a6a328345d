"""The theory of the TAPE paper, run: theorem 1 as a model, propositions 1 and 2 as measurements."""

PROPERTIES = ("permutation", "rotation", "rotations", "shift")  # of propositions 1 and 2
# A property holds where its error, relative to the largest entry, is below this; rounding leaves
# about 1e-12.
HOLDS = 1e-9
