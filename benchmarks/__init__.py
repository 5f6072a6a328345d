"""Benchmarks, each a command that leaves a record in results/speed/: see README.md."""
