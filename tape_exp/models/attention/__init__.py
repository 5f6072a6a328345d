"""Attention: :func:`attend`, what it is given, and the backends that compute it.

``dispatch.py`` has ``attend``; ``inputs.py`` and ``window.py`` what a backend is given;
``choose.py`` which backend serves a call, by the times that ``fastest.py`` measures. Each backend
is the file of its name: ``compute``, and ``refuses``, which says what it cannot do. ``backends.py``
lists them, and ``cudnn.py`` belongs to ``sdpa.py``.

Shape suffixes: B batch, T query tokens, S key tokens (S >= T: earlier ones come from a cache), H
query heads, K key/value heads (K divides H), D head dimension, C width of what is carried, N
distances.
"""

from tape_exp.models.attention.backends import BACKENDS, Backend
from tape_exp.models.attention.choose import choices, forget, pick_backend, say, to_compile
from tape_exp.models.attention.dispatch import attend
from tape_exp.models.attention.inputs import Inputs, OnDemand, causal_mask
from tape_exp.models.attention.reference import probabilities

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
