"""Benchmarks and the soak: each writes a record of what it measured."""
