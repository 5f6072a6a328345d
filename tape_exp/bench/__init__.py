"""The bench: encodings ranked on the field's small tasks, from runs of equal effort."""
