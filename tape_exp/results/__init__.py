"""What evaluations find, records of finished runs, and what is made of them.

``evaluation`` is what a task finds of a trained model; ``metric_names`` says which of its metrics
are results. ``store`` reads the committed records. Each is a ``record.Record``, whose metrics
``derived`` completes. ``index`` finds the runs that overrides ask for: ``query`` parses these,
``compositions`` composes them, and ``experiment`` says whether a run computed the same.
``statistics`` makes a value with an interval of the runs of several seeds, and ``tables`` writes
values, as does ``latex`` for papers.
"""
