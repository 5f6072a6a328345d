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
    """The class of :data:`PROBLEMS` that ``problem`` names, with the settings of
    :class:`~tape_exp.tasks.sequences.SequenceTask`; docs/battery.md lists them.
    """

    def __new__(cls, problem: str, **settings: Any) -> Any:
        one_of("task.problem", problem, PROBLEMS)
        return PROBLEMS[problem](**settings)

    def __init__(self, problem: str, **settings: Any) -> None:
        """What a config may set; :meth:`__new__` makes an object of another class."""
