"""Runs that artifacts lack: their order, and running them within limits of time and cores."""

import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from omegaconf import DictConfig

from tape_exp.machine.files import write_atomically
from tape_exp.machine.preemption import REQUEUE, Preempted, Preemption
from tape_exp.paper.artifacts import Artifact
from tape_exp.paper.records import Record, matches, read_records
from tape_exp.runs import starting_weights
from tape_exp.runs.identity import identity_of, names_a_folder
from tape_exp.runs.record import dump_record
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.naming import choice_of_model

log = logging.getLogger("tape_exp")
NAMED = 50  # runs in a sentence, at most


@dataclass
class Job:
    """A run of an artifact, or that such a run begins from.

    Args:
        title: what it is for.
        cfg: its config.
        needs: the key, in the same dictionary, of the job that it begins from.
        recorded: it has a record, if it is an artifact's, and so has all that begins from it.
    """

    title: str
    cfg: DictConfig
    needs: str | None = None
    recorded: bool = False


@dataclass
class Outcome:
    """How a batch of jobs ended: which failed and why, and how many the time did not allow."""

    failed: list[str] = field(default_factory=list)
    left: int = 0


def status(outcome: Outcome) -> int:
    """Say what failed and what is left, and with which status the command ends."""
    for reason in outcome.failed:
        print(f"failed: {reason}", file=sys.stderr)
    if outcome.left:
        print(f"runs left: {outcome.left}; the same command goes on.", file=sys.stderr)
        return REQUEUE
    return 1 if outcome.failed else 0


def missing(
    artifacts: Sequence[Artifact],
    scale: str,
    seeds: Sequence[int],
    extra: Sequence[str] = (),
    records: Sequence[Record] | None = None,
    only: Sequence[str] = (),
) -> dict[str, Job]:
    """The runs of :func:`named` that have no record, or that such a run begins from."""
    every = named(artifacts, scale, seeds, extra, records, only)
    return {key: job for key, job in every.items() if not job.recorded}


def named(
    artifacts: Sequence[Artifact],
    scale: str,
    seeds: Sequence[int],
    extra: Sequence[str] = (),
    records: Sequence[Record] | None = None,
    only: Sequence[str] = (),
) -> dict[str, Job]:
    """All runs of artifacts, each after its base; every artifact gets a seed before the next seed.

    A run that several artifacts show, or that several begin from, is named once.

    Args:
        records: of what has run; None: those that are committed.
        only: patterns of a shell, one of which a run's label fits; none: every run.

    Raises:
        ConfigError: a pattern fits no label of these artifacts.
    """
    jobs: dict[str, Job] = {}
    records = read_records() if records is None else records
    labels: dict[str, None] = {}
    for seed in seeds:
        for artifact in artifacts:
            for label, cfg in artifact.configs(scale, [seed], extra):
                labels[label] = None
                if only and not any(fnmatchcase(label, pattern) for pattern in only):
                    continue
                title = f"{artifact.name}: {label}, scale {scale}, seed {seed}"
                if cfg.logger.name == "wandb":
                    cfg.logger.tags = [*cfg.logger.tags, artifact.name]
                identity = identity_of(cfg)
                folders = names_a_folder([*artifact.words(scale), *extra])
                recorded = any(r["seed"] == seed and matches(r, identity, folders) for r in records)
                if recorded:
                    log.info("%s: recorded.", title)
                needs = None
                for before in bases(cfg, [*artifact.words(scale), *extra]):
                    name = f"{before.task.name} of {before.model.name}, for {title}"
                    needs = _add(jobs, Job(name, before, needs, recorded))
                _add(jobs, Job(title, cfg, needs, recorded))
    _refuse_unfitting(only, labels)
    return jobs


def _refuse_unfitting(only: Sequence[str], labels: Collection[str]) -> None:
    for pattern in only:
        if not any(fnmatchcase(label, pattern) for label in labels):
            some, more = [*labels][:NAMED], len(labels) - NAMED
            raise ConfigError(
                f"--only: '{pattern}'{did_you_mean(pattern, labels)} It must fit the name of a run "
                f"of these seeds, of which there are: {', '.join(some)}"
                f"{f' and {more} more' if more > 0 else ''}."
            )


def _add(jobs: dict[str, Job], job: Job) -> str:
    key = json.dumps([identity_of(job.cfg), job.cfg.runs], sort_keys=True)
    jobs.setdefault(key, job).recorded &= job.recorded
    return key


def bases(cfg: DictConfig, words: Sequence[str]) -> list[DictConfig]:
    """The configs of all bases of a run (``checkpoint=<task>``), the first to run first.

    Args:
        words: overrides of the run; those that are not of its task or checkpoint hold for what it
            begins from too.
    """
    task = starting_weights.init_checkpoint(cfg)
    if task is None or not starting_weights.is_task(task):
        return []
    shared = [
        word
        for word in words
        if not re.match(r"(\+?task|text@task[.\w]*|model|peft|checkpoint)[.=]", word)
    ]
    shared += [f"task={task}", f"scale={cfg.scale.name}", f"seed={cfg.seed}"]
    chosen = f"model={choice_of_model(cfg.model)}"
    before = compose_config([*shared, chosen, f"peft={cfg.peft.name}"])
    before.model, before.peft = cfg.model, cfg.peft
    if cfg.peft.name != "none" and starting_weights.init_checkpoint(before) is None:
        before = compose_config(
            [*shared, f"model={cfg.peft.base}"]
        )  # what is adapted was itself trained from nothing
    return [*bases(before, shared), before]


def work(
    jobs: dict[str, Job],
    cores: int | None = None,
    minutes: float | None = None,
    records: Path | None = None,
) -> Outcome:
    """Run the jobs and write their records; a failure stops only what begins from it.

    Args:
        jobs: of :func:`missing`.
        cores: so many runs at a time, a thread each; None: one after the other in this process,
            with its threads.
        minutes: after which the runs under way save a checkpoint and leave, as they do on SIGTERM,
            SIGUSR1 and Ctrl-C here.
        records: the folder of the records; None: results/records.

    Raises:
        ConfigError: runs on several devices were asked for side by side.
    """
    if cores is not None and any(
        job.cfg.trainer.devices * job.cfg.trainer.nodes > 1 for job in jobs.values()
    ):
        raise ConfigError(
            "--cores runs side by side what needs one device each; leave it out, or use "
            "tape-exp sweep."
        )
    outcome = Outcome()
    with time_limit(minutes):
        if cores is None:
            _in_turn(jobs, outcome, records or folders.RECORDS)
        else:
            _side_by_side(jobs, outcome, cores, records or folders.RECORDS)
    return outcome


@contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """A signal to this process when the time is over; it ends quietly here, wherever it was met."""
    timer = threading.Timer((minutes or 0) * 60, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    with Preemption():
        try:
            if minutes is not None:
                timer.start()
            yield
        except Preempted:
            pass
        finally:
            timer.cancel()


def _in_turn(jobs: dict[str, Job], outcome: Outcome, records: Path) -> None:
    outcome.left = len(jobs)
    failed: dict[str | None, str] = {}
    for key, job in jobs.items():
        log.info("%s: begins, %d to go.", job.title, outcome.left)
        try:
            if job.needs in failed:
                raise RuntimeError(f"the run that it begins from failed ({failed[job.needs]})")
            run_and_record(job.cfg, records)
        except Exception as error:  # one failed run must not cost the others
            _fail(key, job, error, failed, outcome)
        outcome.left -= 1


def _side_by_side(jobs: dict[str, Job], outcome: Outcome, cores: int, records: Path) -> None:
    """Run jobs in processes of one server, which save and leave when this one is told to.

    One that is killed takes no other run with it.
    """
    began, total = time.monotonic(), len(jobs)
    failed: dict[str | None, str] = {}
    doing: dict[Future[None], tuple[str, ProcessPoolExecutor]] = {}
    waiting = dict(jobs)
    outcome.left = total
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tape_exp.training.run"])

    def end(key: str, error: BaseException | None) -> None:
        if isinstance(error, Preempted):
            log.warning(
                "%s: was told to leave, and saved; the same command goes on.", jobs[key].title
            )
            for name, job in [*waiting.items()]:
                if job.needs == key:
                    del waiting[name]
                    end(name, error)
            return
        outcome.left -= 1
        if isinstance(error, BrokenProcessPool):
            error = RuntimeError(
                "its process was killed, probably out of memory; the same command resumes it"
            )
        if error:
            _fail(key, jobs[key], error, failed, outcome)
        else:
            left = f"{outcome.left} of {total}"
            log.info("%s: done; %s runs to go after %s.", jobs[key].title, left, _clock(began))

    with ExitStack() as stack:

        def process() -> ProcessPoolExecutor:
            return stack.enter_context(ProcessPoolExecutor(1, context, initializer=_one_thread))

        idle = [process() for _ in range(min(cores, total))]
        try:
            while waiting or doing:
                for key in _ready(waiting, {key for key, _ in doing.values()}, failed)[: len(idle)]:
                    job = waiting.pop(key)
                    if job.needs in failed:
                        end(key, RuntimeError(f"its base failed ({failed[job.needs]})"))
                        continue
                    log.info("%s: begins.", job.title)
                    place = idle.pop()
                    try:
                        begun = place.submit(_attempt, run_and_record, job.cfg, records)
                    except BrokenProcessPool:  # it was killed while it had nothing to do
                        place = process()
                        begun = place.submit(_attempt, run_and_record, job.cfg, records)
                    doing[begun] = key, place
                for future in wait(doing, return_when=FIRST_COMPLETED).done:
                    key, place = doing.pop(future)
                    idle.append(
                        process() if isinstance(future.exception(), BrokenProcessPool) else place
                    )
                    end(key, future.exception())
        except (KeyboardInterrupt, Preempted):
            log.info("Runs that save their checkpoints and leave: %d.", len(doing))
            while doing:  # a run that was just about to begin would not have heard the first
                for child in multiprocessing.active_children():
                    assert child.pid is not None
                    os.kill(child.pid, signal.SIGUSR1)
                for future in wait(doing, timeout=1).done:
                    key, _ = doing.pop(future)
                    if not isinstance(future.exception(), Preempted):
                        end(key, future.exception())
            raise


def _ready(waiting: dict[str, Job], doing: set[str], failed: dict[str | None, str]) -> list[str]:
    """The jobs that need nothing which is under way or to come."""
    open_ = {*waiting, *doing} - failed.keys()
    return [key for key, job in waiting.items() if job.needs not in open_]


def _fail(
    key: str, job: Job, error: BaseException, failed: dict[str | None, str], outcome: Outcome
) -> None:
    failed[key] = str(error)
    log.error("%s failed: %s", job.title, error)
    outcome.failed.append(f"{job.title}: {error}")


def _clock(began: float) -> str:
    minutes = round((time.monotonic() - began) / 60)
    return f"{minutes // 60}:{minutes % 60:02} hours"


def _one_thread() -> None:
    """Prepare a process of the pool: one thread, no output on the terminal, no Ctrl-C.

    It ends with the command that it works for, even if that is killed and can tell it nothing.
    """
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # between runs; a run takes it
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _end_with_parent() -> None:
    """End this process, whatever it does, as soon as the one that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _attempt(run_one: Callable[[DictConfig, Path], None], cfg: DictConfig, records: Path) -> None:
    """Run and record in a process of the pool. An error goes back as its sentence, since a class of
    anybody's may not survive the way; the traceback is in the run's FAILED.
    """
    try:
        run_one(cfg, records)
    except Exception as error:
        raise RuntimeError(str(error) or type(error).__name__) from None


def run_and_record(cfg: DictConfig, records: Path) -> None:
    """Run a config, or find its run done, and write its record into the folder of records, unless
    ``debug=`` has shortened it.
    """
    from tape_exp.training.run import run

    record = run(cfg)
    if record and cfg.debug.name == "none":  # of the first process
        write_atomically(records / f"{record['run']}.json", dump_record(record))
