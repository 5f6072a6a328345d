"""A run on disk: its directory, record, checkpoints, weights and sinks."""
