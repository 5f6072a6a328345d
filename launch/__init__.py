"""``python -m launch.sweep`` and ``python -m launch.status``, in a clone: see tape_exp/launch/."""
