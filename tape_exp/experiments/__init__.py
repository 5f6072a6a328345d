"""Sets of runs: what names them, and where they run: on this machine or on a cluster."""
