"""The command line: one sentence for each mistake, and Hydra's composition with suggestions."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.preemption import Preempted, ignore_signals
from tape_exp.settings.compose import MISTAKES, explain
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redaction import redact, shown


def with_clear_errors(main: Callable[[], None]) -> None:
    """Call Hydra's main; a mistake becomes a sentence on stderr and exit code 2, a failed run 1.

    Tracebacks are shown only with ``debug=``, except ``debug=plan``; a failed run keeps its own in
    FAILED.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the sentence is made here
    if any(argument.startswith("--e") for argument in sys.argv[1:]):  # also abbreviated
        told = "unpickles a file, which can run anything; give the overrides instead."
        _fail(ConfigError(f"--experimental-rerun {told}"), [])
    if "--cfg" in sys.argv or "-c" in sys.argv:
        sys.argv += [] if "--resolve" in sys.argv else ["--resolve"]
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Preempted:
        ignore_signals()
        raise
    except Exception as error:
        mistake = isinstance(error, MISTAKES)
        if not mistake and any(
            argument.startswith("debug=") and argument != "debug=plan" for argument in sys.argv
        ):
            _print_traceback(error)
        _fail(error, sys.argv[1:])


def _print_traceback(error: BaseException) -> None:
    """The whole traceback on stderr."""
    print(redact("".join(traceback.format_exception(error))), file=sys.stderr)


_failed: list[str] = []  # the jobs of a sweep that did, and why


def _fail(error: BaseException, arguments: Sequence[str]) -> NoReturn:
    """One sentence on stderr, of a sweep one for each job that failed; exit code 2 where nothing
    was begun, 1 where a run failed.
    """
    for sentence in _failed or [explain(error, arguments)]:
        print(f"error: {shown(sentence)}", file=sys.stderr)
    sys.exit(2 if isinstance(error, MISTAKES) else 1)


def run_job(cfg: DictConfig) -> None:
    """Run one job of Hydra's; processes for further devices repeat this job, not the sweep."""
    hydra = HydraConfig.get()
    sys.argv[1:] = cast(
        list[str], OmegaConf.to_container(hydra.overrides.task)
    )  # ${…} as they were written
    from tape_exp.training.run import run

    try:
        run(cfg)
    except Exception as error:
        if hydra.mode == RunMode.MULTIRUN:
            words = [word for word in sys.argv[1:] if not word.startswith("hydra")]
            _failed.append(f"{' '.join(words)}: {explain(error, words)}")
            raise  # the sweep's other jobs go on; Hydra then raises the first error
        if cfg.debug.name not in ("none", "plan") and not isinstance(error, MISTAKES):
            _print_traceback(error)  # not Hydra, which would also print the overrides as they are
        _fail(error, sys.argv[1:])
