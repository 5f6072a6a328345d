"""The theory of the TAPE paper, executable: theorem 1 as a model, propositions 1 and 2 as measurements."""
