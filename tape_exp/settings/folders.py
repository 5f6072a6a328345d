"""Where the project's own files are: the configs, and the results and records.

In a clone they are at its top. A wheel carries ``conf/`` and the paper's numbers inside the
package. Outside the clone, results, records and runs are those of the working directory.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # from a wheel
ROOT = PACKAGE if INSTALLED else PACKAGE.parent
CONF = ROOT / "conf"
INSIDE = not INSTALLED and Path.cwd().is_relative_to(ROOT)  # the clone
HERE = ROOT if INSIDE else Path.cwd()  # where what a command writes is
RESULTS = HERE / "results"
RECORDS = RESULTS / "records"
