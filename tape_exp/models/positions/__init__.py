"""Positional encodings, one file each, behind the interface of
:mod:`tape_exp.models.positions.base`.
"""
