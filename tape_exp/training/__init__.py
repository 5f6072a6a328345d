"""One run, from a config to a record.

Begin with ``run``: ``from_config`` makes its task and its decoder, ``module`` is what Lightning's
``trainer`` trains with the ``optimizer``, ``callbacks`` report on the way, and ``outcome`` is what
is left in the end. ``faults`` and ``not_finite`` say why a run ended early, ``cautions`` what will
mislead; ``plan`` estimates a run instead, ``finished`` answers for one that is done, ``loaded_run``
loads it for the library, and ``on_device`` lets a task evaluate it; ``logs`` are console and file.
"""
