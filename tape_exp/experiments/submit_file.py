"""``tape-exp submit [<options of sbatch>] <file> <words>``: sbatch with the cluster's settings."""

import os
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from tape_exp.experiments import slurm
from tape_exp.experiments.cluster import cluster_settings, flags
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError

HELP = """usage: tape-exp submit [--<option of sbatch>=<value> ...] <file> [word ...]

Submit a file to SLURM, as one job with the settings of launch/cluster.yaml.

  <file>  one of launch/*.sbatch, or your own
  word    what the file passes on, as model=tape task=c4

An #SBATCH line of the file overrides launch/cluster.yaml; an option before the file overrides both.

Example: tape-exp submit --partition=cpu launch/tokenize.sbatch task=c4 scale=paper"""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Submit a file with its words, and print the id of the job."""
    arguments = sys.argv[1:] if arguments is None else arguments
    chosen = list(takewhile(lambda argument: argument.startswith("-"), arguments))
    if chosen in (["-h"], ["--help"]):
        print(HELP)
        return 0
    rest = arguments[len(chosen) :]
    if not rest:
        raise ConfigError("name a file to submit, as in tape-exp submit launch/run.sbatch.")
    file, *words = rest
    if not Path(file).is_file():
        raise ConfigError(f"{file} is no file to submit: `tape-exp submit --help` explains it.")
    settings = cluster_settings()
    os.environ["TAPE_EXP_SETUP"] = "\n".join(settings.setup)  # launch/job.sh runs it
    text = Path(file).read_text(encoding="utf-8")
    set_by_file = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    defaults = {key: value for key, value in settings.options.items() if key not in set_by_file}
    job = slurm.sbatch([*flags(defaults), *chosen, file, *words])
    print(f"Submitted job {job}.")
    log = re.search(r"^#SBATCH --output=(\S+)", text, re.MULTILINE)
    if log:
        print(f"Log:    {log[1].replace('%j', job)}")
    print("Cancel: scancel", job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
