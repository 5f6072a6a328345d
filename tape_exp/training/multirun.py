"""What a sweep says on one machine: which run of how many begins, and at its end a table."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from tape_exp.drawing.markdown import aligned
from tape_exp.drawing.terminal import brief
from tape_exp.runs.evaluation import is_diagnostic
from tape_exp.settings.redaction import shown

SHOWN = 3  # metrics of a table
LESS_IS_BETTER = ("loss", "perplexity")

_runs: list[tuple[list[str], dict[str, float]]] = []  # the words of each run, its results
_total = 0  # runs of the sweep, if all are run here


def begin(hydra: HydraConf, arguments: Sequence[str]) -> None:
    """Say which run of the sweep, whose command line had these arguments, begins."""
    global _total
    if not hydra.job.num and hydra.launcher["_target_"].endswith(".BasicLauncher"):
        _total = _count(hydra, [word for word in arguments if not word.startswith("-")])
    if _total:
        words = " ".join(words_of(hydra))
        print(f"\nRun {hydra.job.num + 1} of {_total}: {shown(words)}", flush=True)


def words_of(hydra: HydraConf) -> list[str]:
    """The overrides of one run, without those of Hydra itself."""
    return [word for word in hydra.overrides.task if not word.startswith("hydra")]


def _count(hydra: HydraConf, words: Sequence[str]) -> int:
    """How many runs Hydra makes of the words."""
    params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides([*params, *words])
    return len(BasicSweeper.split_arguments(overrides, None)[0])


def add(words: list[str], record: Mapping[str, Any]) -> None:
    """Keep the results of a run for the table. Further processes of a run have none."""
    results = {
        key: value
        for key, value in record.get("metrics", {}).items()
        if not key.endswith("_stderr") and not key.startswith("val/") and not is_diagnostic(key)
    }
    if results:
        _runs.append((words, results))


def end(hydra: HydraConf) -> None:
    """After the last run print a table of all, the best first, or one for each kind of results."""
    if hydra.job.num + 1 != _total:  # which is 0 where a cluster runs them
        return
    kinds: dict[str, list[tuple[list[str], dict[str, float]]]] = {}
    for words, results in _runs if len(_runs) > 1 else []:
        kinds.setdefault(next(iter(results)), []).append((words, results))
    common = set.intersection(*(set(words) for words, _ in _runs)) if _runs else set()
    for runs in kinds.values():
        print("", *table(runs, common), sep="\n")
    sys.stdout.flush()


def table(runs: Sequence[tuple[list[str], dict[str, float]]], common: set[str]) -> list[str]:
    """The lines of a table sorted by its first metric, without the words that all runs have."""
    metrics = [*runs[0][1]][:SHOWN]
    sign = 1 if any(word in metrics[0] for word in LESS_IS_BETTER) else -1
    rows = [
        [
            shown(" ".join(word for word in words if word not in common)),
            *(brief(results[key], 2) if key in results else "" for key in metrics),
        ]
        for words, results in sorted(runs, key=lambda run: sign * run[1][metrics[0]])
    ]
    return aligned([["run", *metrics], *rows])
