"""Why a case failed is said at once: the minutes of a GPU may be over before the end."""

import os
import sys


def pytest_runtest_logreport(report):
    """One line of each failure, as it comes."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reasons = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        print(f"\n{report.nodeid}: {(reasons or [''])[0][1:].strip()}", file=sys.stderr, flush=True)
