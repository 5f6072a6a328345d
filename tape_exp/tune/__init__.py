"""Searches with Optuna: equally many trials for each model, scored by validation only.

A ``search`` is what a command asks for, ``trials`` are what has been tried, in a ``journal`` that
any number of ``workers`` share, each of which does its ``work``; ``report`` prints what was found,
and ``searches`` what has become of all of them.
"""
