"""Positional encodings, one file each; :mod:`tape_exp.models.positions.base` is the interface."""
