"""A package that brings a positional encoding to tape_exp."""
