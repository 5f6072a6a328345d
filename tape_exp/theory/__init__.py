"""The theory of the TAPE paper, executable: theorem 1 as a model, propositions 1 and 2 as
measurements.
"""

PROPERTIES = ("permutation", "rotation", "rotations", "shift")  # that propositions 1 and 2 speak of
# an error relative to the largest entry below which one is said to hold; rounding leaves about
# 1e-12
HOLDS = 1e-9
