"""Tables and figures of recorded runs.

An artifact names rows and columns. Each cell has runs, which are those of one experiment; the runs
of a cell have a value, and the values make a table::

    YAML ─ artifact.py, specs.py ─> Artifact ─ rows.py, columns.py ─> rows × columns
         ─ cells.py ─> runs of a cell ─ averages.py ─> its value
         ─ view.py, captions.py ─> table,  figures/ ─> pictures

``Cells`` finds the runs and the value of each cell of an artifact at a scale; ``View`` is the same
with the table that pages show. ``runs`` names the runs that are missing, ``requests`` those that
the words of a command name, and ``comparison`` makes an artifact of such words, without a YAML.
"""
