"""Attention: what others call; the call itself is in ``dispatch.py``."""

from tape_exp.models.attention.dispatch import (
    BACKENDS,
    Backend,
    Inputs,
    OnDemand,
    attend,
    causal_mask,
    choices,
    forget,
    pick_backend,
    probabilities,
    say,
    to_compile,
)

__all__ = [
    "BACKENDS",
    "Backend",
    "Inputs",
    "OnDemand",
    "attend",
    "causal_mask",
    "choices",
    "forget",
    "pick_backend",
    "probabilities",
    "say",
    "to_compile",
]
