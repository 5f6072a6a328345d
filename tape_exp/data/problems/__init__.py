"""The battery: small problems that papers on positions rebuild, one file for each family."""

from tape_exp.data.problems.base import Problem
from tape_exp.data.problems.binary import BINARY
from tape_exp.data.problems.brackets import ModularArithmetic
from tape_exp.data.problems.decimal import MultiAddition, Multiplication
from tape_exp.data.problems.duplicate import MissingDuplicate
from tape_exp.data.problems.dyck import Dyck
from tape_exp.data.problems.flip_flop import FlipFlop
from tape_exp.data.problems.indexing import IndirectIndexing
from tape_exp.data.problems.induction import Induction
from tape_exp.data.problems.recall import AssociativeRecall
from tape_exp.data.problems.scan import Scan
from tape_exp.data.problems.stack import StackManipulation
from tape_exp.data.problems.strings import STRINGS

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        *STRINGS,
        IndirectIndexing(),
        AssociativeRecall(),
        Induction(),
        FlipFlop(0.8, sparse=FlipFlop(0.98), dense=FlipFlop(0.1)),
        Dyck(),
        ModularArithmetic(),
        StackManipulation(),
        MissingDuplicate(),
        *BINARY,
        MultiAddition(),
        Multiplication(),
        Scan(),
    )
}
