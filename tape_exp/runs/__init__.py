"""A run on disk: its directory, record, checkpoints, starting weights and loggers."""
