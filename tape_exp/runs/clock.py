"""How long a run has taken."""

import time


class Stopwatch:
    """Seconds since it was made, and those of the earlier processes that worked on the run."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def add(self, before: float) -> None:
        """Count the seconds that earlier processes have spent."""
        self.began -= before

    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began
