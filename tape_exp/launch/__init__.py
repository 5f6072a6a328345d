"""Grids of runs on a SLURM cluster: one array of jobs, and what has become of it."""
