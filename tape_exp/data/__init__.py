"""Data sets: their text, its tokens on disk, groups for state tracking, and metrics."""
