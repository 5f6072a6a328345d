"""``python -m tests.campaign``: break commands in every way that can be generated, and count.

Every class of faults gets its share of ``--minutes``, in a copy of the sources of its own. The
counts go into ``results/campaign.json`` and from there into ``results/reliability.md``; what went
wrong is printed, with the command. A defect that is found gets a test of its own beside the code
that it is in.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tape_exp.machine.files import write_atomically
from tape_exp.measure.reliability import page
from tape_exp.runs.record import circumstances
from tape_exp.settings.arguments import positive
from tape_exp.settings.folders import ROOT
from tests.campaign import files, hostile, keys, load, text, writes
from tests.campaign.files import Attempt
from tests.campaign.server import Commands
from tests.campaign.world import copy_sources

RIGHT = ("accepted", "sentence", "requeue", "interrupted", "ended by its signal")


def wrong_keys(do: Commands, world: Path, seed: int) -> Iterator[Attempt]:
    """Every key with every wrong value; now and then through another command than a run's."""
    commands: Any = cycle(
        [["run"]] * 20
        + [["train.py"], ["train.py", "-m"], ["launch.sweep", "--dry-run"], ["launch.status"]]
        + [["tape_exp.paper", "run", "fig_addition", "seeds=0"]]
    )
    for number, (case, sort) in enumerate(keys.cases(seed)):
        command = next(commands)
        words = [w for w in case.words if "paper" not in command[0] or "=" in w.partition(".")[2]]
        place = [] if case.key == "runs" else [f"runs=runs/{number}"]
        outcome = do(*command, *words, *place, limit=60)
        nonsense = outcome.verdict == "accepted" and case.nonsense(sort) and command == ["run"]
        what = f"{case.key}: {case.kind}, {' '.join(command)}"
        yield what, outcome, "nonsense accepted" if nonsense else ""


CLASSES: dict[str, Callable[[Commands, Path, int], Iterator[Attempt]]] = {
    "keys": wrong_keys,
    "files": files.attempts,
    "writes": writes.attempts,
    "text": text.attempts,
    "hostile": hostile.attempts,
}


def main() -> int:
    """Run the classes, write the record and the page; status 1 where something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=positive(float), default=60.0, help="of all classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classes", nargs="+", choices=[*CLASSES, "load"], default=[*CLASSES])
    given = parser.parse_args()
    path = ROOT / "results" / "campaign.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    share = 60 * given.minutes / len(given.classes)
    wrong = 0
    for name in given.classes:
        with tempfile.TemporaryDirectory() as folder, Commands(copy_sources(Path(folder))) as do:
            if name == "load":
                record[name] = circumstances() | {"seconds": load.measured(do, Path(folder))}
            else:
                counts = counted(CLASSES[name](do, Path(folder), given.seed), share, name)
                record[name] = circumstances() | {"seed": given.seed, "counts": counts}
                wrong += sum(n for verdict, n in counts.items() if verdict not in RIGHT)
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    soak = json.loads((ROOT / "results" / "reliability.json").read_text())
    write_atomically(ROOT / "results" / "reliability.md", page(soak, record))
    return int(wrong > 0)


def counted(attempts: Iterator[Attempt], seconds: float, name: str) -> dict[str, int]:
    """How often each verdict was given, until the time is over; prints what went wrong."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    for what, outcome, harm in attempts:
        verdict = harm or outcome.verdict
        if verdict == "killed" and what.startswith("SIG"):
            verdict = "ended by its signal"
        counts[verdict] += 1
        if verdict not in RIGHT:
            told = outcome.sentence.replace("\n", " | ")[:400]
            print(f"{name}: {verdict}: {what}: {' '.join(outcome.words)[:300]}\n  {told}")
        if time.monotonic() > until:
            break
    print(f"{name}: {dict(counts)}", flush=True)
    return dict(counts)


if __name__ == "__main__":
    sys.exit(main())
