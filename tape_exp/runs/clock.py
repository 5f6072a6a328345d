"""How long a run has taken."""

import time


class Stopwatch:
    """Seconds since it was made, over all the processes that worked on a run: it goes on from what
    was spent before.
    """

    def __init__(self, before: float = 0.0) -> None:
        self.began = time.monotonic() - before

    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.began
