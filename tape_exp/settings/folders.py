"""Where the project's own files are: the configs, and the results and records.

In a clone they are at its top. A wheel carries ``conf/`` and the paper's numbers inside the
package; results, records and runs are then those of the working directory.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # from a wheel
ROOT = Path.cwd() if INSTALLED else PACKAGE.parent
CONF = (PACKAGE if INSTALLED else ROOT) / "conf"
RESULTS = ROOT / "results"
RECORDS = RESULTS / "records"
