"""The package as a library: ``import tape_exp as te``.

Everything here takes and gives plain objects of Python, torch and pandas. Errors of the user are
:class:`~tape_exp.settings.errors.ConfigError`, a ``ValueError`` with one sentence.
"""

from tape_exp.library.comparison import compare
from tape_exp.library.models import build, evaluate, train
from tape_exp.library.pictures import plot
from tape_exp.library.tables import records
from tape_exp.training.loaded_run import LoadedRun, load

__all__ = ["LoadedRun", "build", "compare", "evaluate", "load", "plot", "records", "train"]
