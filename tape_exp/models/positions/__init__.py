"""Positional encodings: one file each, all with the interface of
:mod:`tape_exp.models.positions.base`.
"""
