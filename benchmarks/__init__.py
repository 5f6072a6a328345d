"""Benchmarks, each a command that leaves a line in results/speed.jsonl: see README.md."""
