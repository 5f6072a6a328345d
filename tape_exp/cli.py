"""The command line: one sentence for each mistake, and Hydra's composition with suggestions."""

import argparse
import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import NoReturn, cast

from hydra._internal.utils import get_args
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from tape_exp.machine.preemption import Preempted, ignore_signals
from tape_exp.settings import plugins
from tape_exp.settings.compose import MISTAKES, OURS, explain
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import told
from tape_exp.settings.help import PLAN, program
from tape_exp.settings.redaction import redact, shown
from tape_exp.settings.streams import flush_or_drop, prepare_streams
from tape_exp.settings.targets import hide_secrets


def with_clear_errors(main: Callable[[], None]) -> None:
    """Call Hydra's main; a mistake becomes a sentence on stderr and exit code 2, a failed run 1.

    Tracebacks are shown only with ``debug=``, except ``debug=plan``; a failed run keeps its own in
    FAILED.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the sentence is made here
    shows = False
    try:
        prepare_streams()
        plugins.use(sys.argv[1:])
        shows = _read_flags()
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Preempted:
        ignore_signals()
        raise
    except Exception as error:
        if shows and isinstance(error, BrokenPipeError):  # who reads has seen enough, as head has
            sys.exit(1)
        if shows and not isinstance(error, MISTAKES):
            error = ConfigError(error)
        mistake = isinstance(error, MISTAKES)
        if not mistake and any(
            argument.startswith("debug=") and argument != "debug=plan" for argument in sys.argv
        ):
            _print_traceback(error)
        _fail(error, sys.argv[1:])
    finally:
        flush_or_drop()


def _read_flags() -> bool:
    """Check Hydra's flags, and complete them; whether they only show something.

    Raises:
        ConfigError: they are unknown, exclude each other, or run what a file says.
    """
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            flags: argparse.Namespace = get_args()
    except SystemExit as ended:
        if not ended.code:  # --version
            raise
        reason = told.getvalue().partition(": error: ")[2].strip()
        raise ConfigError(f"{reason}; `{program()} --help` shows what there is.") from ended
    if flags.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun unpickles a file, which can run anything; give the overrides "
            "instead."
        )
    names = ("help", "hydra_help", "cfg", "info", "shell_completion", "run", "multirun")
    given = [name for name in names if getattr(flags, name)]
    if len(given) > 1:
        both = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{both} exclude each other; give one of them.")
    if flags.resolve and not (flags.cfg or flags.help):
        raise ConfigError("--resolve resolves what --cfg shows; add --cfg job.")
    if flags.cfg in ("job", "all") and not flags.resolve:
        sys.argv.append("--resolve")
    if flags.help and program() == PLAN:
        sys.argv.append("hydra/help=plan")
    if flags.hydra_help:  # which reads no config of ours
        sys.argv[1:] = ["--hydra-help", *OURS]
    if shows := bool(given) and not (flags.run or flags.multirun):
        hide_secrets()
    return shows


def _print_traceback(error: BaseException) -> None:
    """The whole traceback on stderr."""
    print(shown("".join(traceback.format_exception(error))), file=sys.stderr)


_failed: list[str] = []  # the jobs of a sweep that did, and why


def _fail(error: BaseException, arguments: Sequence[str]) -> NoReturn:
    """One sentence on stderr, of a sweep one for each job that failed; exit code 2 where nothing
    was begun, 1 where a run failed.
    """
    for sentence in _failed or [explain(error, arguments)]:
        print(f"error: {shown(sentence)}", file=sys.stderr)
    sys.exit(2 if isinstance(error, MISTAKES) else 1)


def _comparable(cfg: DictConfig) -> bool:
    """Whether the same words with another model name a run that begins like this one."""
    alone = cfg.checkpoint is None and cfg.peft.name == "none" and "layers" not in cfg.model
    return alone and cfg.debug.name == "none"


def _comparison(hydra: HydraConf, cfg: DictConfig) -> str:
    """The command of a table of a run and the same with another model."""
    model, task = (hydra.runtime.choices[group] for group in ("model", "task"))
    other = "rope" if model != "rope" else "tape"
    words = [f"task={task}", f"model={model},{other}", f"seeds={cfg.seed}"]
    words += [word for word in sys.argv[1:] if not word.startswith(("task=", "model=", "seed="))]
    return redact(f"{told('paper compare')} {shlex.join(words)}")


def _refuse_other_steps(cfg: DictConfig, words: Sequence[str]) -> None:
    """Refuse a number of steps in whose place ``debug=`` has its own."""
    given = next((word for word in words if word.startswith("task.optim.max_steps=")), None)
    if given is not None and cfg.debug.max_steps is not None:
        raise ConfigError(
            f"{given} has no effect beside debug={cfg.debug.name}, which has its own number of "
            f"steps; give debug.{given.removeprefix('task.optim.')}."
        )


def run_job(cfg: DictConfig) -> None:
    """Run one job of Hydra's; processes for further devices repeat this job, not the sweep."""
    from tape_exp.training import multirun

    hydra = HydraConfig.get()
    several = hydra.mode == RunMode.MULTIRUN
    if several:
        multirun.begin(hydra, sys.argv[1:])
    sys.argv[1:] = cast(
        list[str], OmegaConf.to_container(hydra.overrides.task)
    )  # ${…} as they were written
    from tape_exp.training.run import run

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # the imports are over
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _refuse_other_steps(cfg, sys.argv[1:])
        record = run(cfg)
        if several:
            multirun.add(multirun.words_of(hydra), record)
        elif record and _comparable(cfg):
            print(f"To compare it with another model: {_comparison(hydra, cfg)}")
    except Exception as error:
        if several:
            words = multirun.words_of(hydra)
            _failed.append(f"{' '.join(words)}: {explain(error, words)}")
            raise  # the sweep's other jobs go on; Hydra then raises the first error
        if cfg.debug.name not in ("none", "plan") and not isinstance(error, MISTAKES):
            _print_traceback(error)  # not Hydra, which would also print the overrides as they are
        _fail(error, sys.argv[1:])
    finally:
        if several:
            multirun.end(hydra)
