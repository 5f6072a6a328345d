"""Tasks: data, loss mask and evaluation of each experiment, one file each."""
