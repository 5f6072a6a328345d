"""The battery: small problems that papers on positions rebuild, one file for each family."""

from typing import Any

from tape_exp.settings.errors import one_of
from tape_exp.tasks.battery import arithmetic, formal, recall, scan, strings
from tape_exp.tasks.sequences import SequenceTask

PROBLEMS: dict[str, Any] = {
    "copy": strings.Copy,
    "reverse": strings.Reverse,
    "sort": strings.Sort,
    "indirect_indexing": recall.IndirectIndexing,
    "mqar": recall.AssociativeRecall,
    "induction": recall.Induction,
    "flip_flop": recall.FlipFlop,
    "dyck_2": formal.Dyck,
    "modular_arithmetic": formal.ModularArithmetic,
    "stack": formal.StackManipulation,
    "missing_duplicate": strings.MissingDuplicate,
    "binary_addition": arithmetic.BinaryAddition,
    "binary_multiplication": arithmetic.BinaryMultiplication,
    "multi_addition": arithmetic.MultiAddition,
    "multiplication": arithmetic.Multiplication,
    "scan": scan.Scan,
}


class Battery(SequenceTask):
    """The one name of all problems in a config: ``Battery(problem="sort", …)`` is a ``Sort(…)``, as
    ``pathlib.Path(…)`` is a ``PosixPath``. There are no objects of this class itself.

    Args:
        problem: a key of :data:`PROBLEMS`; docs/battery.md lists them.
        settings: those of :class:`~tape_exp.tasks.sequences.SequenceTask`.
    """

    def __new__(cls, problem: str, **settings: Any) -> Any:
        """Make the task of a problem."""
        one_of("task.problem", problem, PROBLEMS)
        return PROBLEMS[problem](**settings)

    def __init__(self, problem: str, **settings: Any) -> None:
        """Tell which keys a config may set, by the signature; :meth:`__new__` makes the object."""
