"""``python -m tape_exp.theory``: theorem 1 and both propositions of the TAPE paper, run and
measured (half a minute on a core).

Prints the report; with ``--record`` it stays in ``results/theory.json``, from which the artifacts
``theory`` and ``theory_propositions`` are made.
"""

import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.files import write_atomically
from tape_exp.machine.seeding import generator_for
from tape_exp.runs.manifest import environment_info
from tape_exp.settings import folders
from tape_exp.settings.commands import command
from tape_exp.settings.parser import ArgumentParser
from tape_exp.theory import tables
from tape_exp.theory.construction import Form, Theorem1, every_word, labels, random_words
from tape_exp.theory.propositions import cases, measure

FORMS = {
    "printed": Form(strict=False, scale="printed", readout="printed"),
    "strict mask": Form(scale="printed", readout="printed"),
    "strict mask, remark's scale, repaired read-out": Form(scale="remark"),
    "strict mask, repaired scale": Form(readout="printed"),
    "repaired": Form(),
}
MOST_ROWS = 1000
LENGTHS = tuple(2**n for n in range(1, 13))


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; write and draw where that is asked for."""
    parser = ArgumentParser(
        prog="tape-exp theory",
        description="Run and measure theorem 1 and both propositions of the TAPE paper, in half a "
        "minute on a core.",
    )
    parser.add_argument("--record", action="store_true", help="write results/theory.json")
    parser.add_argument(
        "--rows",
        type=int,
        default=8,
        help="random sequences of 4096 positions (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    if given.rows > MOST_ROWS:
        parser.error(f"--rows {given.rows} would not fit into memory; {MOST_ROWS} is the most.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        record = {
            **environment_info(),
            "theorem": theorem(given.rows),
            "propositions": [
                {"variant": case.variant, "initial": case.initial, **measure(case)}
                for case in cases()
            ],
        }
    finally:
        torch.set_num_threads(threads)
    for table in (tables.theorem, tables.propositions):
        print(table(record).markdown(), end="\n\n")
    if given.record:
        path = folders.RESULTS / "theory.json"
        write_atomically(path, json.dumps(record, indent=1) + "\n")
        print(f"{path}; `tape-exp paper render` draws it.")
    else:
        print("Nothing is written; --record puts this into results/.")
    return 0


def theorem(rows: int, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Measure every form on the same random sequences, the repaired one on all short ones too, and
    its time.

    Labels of the first N positions do not depend on what follows: one pass over the longest length
    serves all.
    """
    words = random_words(rows, lengths[-1], generator_for(0, "theorem 1"))
    expected = labels(words)
    forms = {k: outcome(Theorem1(f).argument(words), expected, lengths) for k, f in FORMS.items()}
    wrong = positions = sequences = 0
    for swaps in range(5):
        short = every_word(swaps)
        wrong += int((Theorem1()(short) != labels(short)).sum())
        positions += short.numel()
        sequences += len(short)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        Theorem1()(words[:1])
        seconds.append(time.perf_counter() - began)
    return {
        "rows": rows,
        "lengths": list(lengths),
        "identities": int(expected.sum()),
        "never": [100 * float((~expected[:, :n]).double().mean()) for n in lengths],
        "forms": forms,
        "exhaustive": {"swaps": 4, "sequences": sequences, "positions": positions, "wrong": wrong},
        "seconds": median(seconds),
    }


def outcome(argument_BT: Tensor, labels_BT: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    """Return how right the labels are that a hard sigmoid of ``argument`` gives.

    Returns:
        ``all`` and ``identity``: percent of the first N positions, and of those among them whose
        label is 1, that are on the right side of 0.5; ``exact``: percent of all positions whose
        label is exactly 0 or 1, as the theorem states; ``margin``: by how much the argument clears
        1 or 0 at the worst position, negative where it does not.
    """
    right = (argument_BT.clamp(0, 1) > 0.5) == labels_BT
    clears = torch.where(labels_BT, argument_BT - 1, -argument_BT)
    return {
        "all": [100 * float(right[:, :n].double().mean()) for n in lengths],
        "identity": [100 * float(right[:, :n][labels_BT[:, :n]].double().mean()) for n in lengths],
        "exact": 100 * float((argument_BT.clamp(0, 1) == labels_BT).double().mean()),
        "margin": float(clears.min()),
    }


if __name__ == "__main__":
    sys.exit(main())
