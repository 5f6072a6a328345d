"""The battery: small problems that papers on positions rebuild, one file for each family."""

from typing import Any

from tape_exp.settings.errors import one_of
from tape_exp.tasks.battery.arithmetic import (
    BinaryAddition,
    BinaryMultiplication,
    MultiAddition,
    Multiplication,
)
from tape_exp.tasks.battery.formal import Dyck, ModularArithmetic, StackManipulation
from tape_exp.tasks.battery.recall import AssociativeRecall, FlipFlop, IndirectIndexing, Induction
from tape_exp.tasks.battery.scan import Scan
from tape_exp.tasks.battery.strings import Copy, MissingDuplicate, Reverse, Sort
from tape_exp.tasks.sequences import SequenceTask

PROBLEMS: dict[str, Any] = {
    "copy": Copy,
    "reverse": Reverse,
    "sort": Sort,
    "indirect_indexing": IndirectIndexing,
    "mqar": AssociativeRecall,
    "induction": Induction,
    "flip_flop": FlipFlop,
    "dyck_2": Dyck,
    "modular_arithmetic": ModularArithmetic,
    "stack": StackManipulation,
    "missing_duplicate": MissingDuplicate,
    "binary_addition": BinaryAddition,
    "binary_multiplication": BinaryMultiplication,
    "multi_addition": MultiAddition,
    "multiplication": Multiplication,
    "scan": Scan,
}


class Battery(SequenceTask):
    """The class of :data:`PROBLEMS` that ``problem`` names; docs/battery.md lists them.

    Args:
        problem: its name.
        settings: those of :class:`~tape_exp.tasks.sequences.SequenceTask`.
    """

    def __new__(cls, problem: str, **settings: Any) -> Any:
        one_of("task.problem", problem, PROBLEMS)
        return PROBLEMS[problem](**settings)

    def __init__(self, problem: str, **settings: Any) -> None:
        """What a config may set; :meth:`__new__` makes an object of another class."""
