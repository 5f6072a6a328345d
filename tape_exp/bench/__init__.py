"""The bench: encodings ranked on the field's small tasks, from runs of equal effort.

``tasks`` lists what is asked, ``bench`` runs it, and a ``board`` has the scores and ranks, of which
``tables`` and ``figures`` are made; ``guess`` is the baseline that knows only nearby tokens.
"""
