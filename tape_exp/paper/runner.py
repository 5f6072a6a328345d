"""The runs that artifacts lack: their order, and running them within limits of time and cores."""

import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from omegaconf import DictConfig

from tape_exp.machine.preemption import REQUEUE, Preempted, Preemption, with_parent
from tape_exp.paper.artifact import Artifact
from tape_exp.paper.view import View, fill, label_of
from tape_exp.results.derived import DERIVED, as_shown
from tape_exp.results.query import where
from tape_exp.results.record import Record
from tape_exp.results.store import add_records, read_records
from tape_exp.results.tables import Column
from tape_exp.runs import starting_weights
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import check_metric
from tape_exp.runs.identity import identity_of
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, did_you_mean, warn
from tape_exp.settings.naming import choice_of
from tape_exp.settings.plugins import changed_sources

log = logging.getLogger("tape_exp")
LEFT = (REQUEUE, -signal.SIGUSR1)  # statuses of a run that left in time, or before it could save


@dataclass
class Job:
    """A run of an artifact, or one that such a run begins from."""

    title: str  # what it is for
    words: list[str]  # its overrides
    cfg: DictConfig
    needs: str | None = None  # the key, in the same dictionary, of the job that it begins from
    recorded: bool = False  # it has a record, and so has all that begins from it
    results: Path = folders.RESULTS  # where its record goes
    metrics: dict[str, str] = field(default_factory=dict)  # of its columns, by what these ask for


@dataclass
class Outcome:
    """How a batch of jobs ended: which failed and why, and how many are left; no reason is given
    for one that begins from another that failed.
    """

    failed: dict[str | None, str] = field(default_factory=dict)
    left: int = 0
    anew: bool = False  # rerun=true, which makes what is done anew whenever it is given

    def status(self) -> int:
        """Say what failed and what is left; the status of the command."""
        reasons = [reason for reason in self.failed.values() if reason]
        for reason in reasons:
            print(f"failed: {reason}", file=sys.stderr)
        if after := len(self.failed) - len(reasons):
            print(f"runs that begin from these: {after}.", file=sys.stderr)
        if self.left:
            more = ", and makes those that are done anew (rerun=true)" if self.anew else ""
            print(f"runs left: {self.left}; the same command resumes{more}.", file=sys.stderr)
            return REQUEUE
        return 1 if self.failed else 0


def jobs_of(
    artifacts: Sequence[Artifact],
    scale: str,
    seeds: Sequence[int],
    extra: Sequence[str] = (),  # overrides of every run
    records: Sequence[Record] | None = None,
    only: Sequence[str] = (),  # patterns of a shell, one of which a run's label fits
    recorded: bool = False,  # whether runs that have a record are named too
) -> dict[str, Job]:
    """The runs of artifacts that have no record, or all with ``rerun=true``, each after its base;
    every artifact gets a seed before the next seed. A run that several need is named once.
    """
    jobs: dict[str, Job] = {}
    found: list[Record] = []
    records = read_records() if records is None else records
    views = [View(artifact, scale, records) for artifact in artifacts]
    every = [(view, seed, run) for seed in seeds for view in views for run in runs_at(view, seed)]
    labels = list(dict.fromkeys(run.label for _, _, run in every))
    for pattern in only:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise ConfigError(
                f"--only: '{pattern}'{did_you_mean(pattern, labels)} It must fit the name of a run "
                f"of these seeds: {', '.join(labels[:50])}."
            )
    for view, seed, run in every:
        if only and not any(fnmatchcase(run.label, pattern) for pattern in only):
            continue
        words = [*run.words, *extra]
        title = f"{view.artifact.name}: {run.label}, scale {scale}, seed {seed}"
        anew = bool(where(words).get("rerun"))
        known = [] if anew else [r for r in view.of_words(tuple(words)) if r["seed"] == seed]
        found += known
        if known and not recorded:
            continue
        words.append(f"seed={seed}")
        cfg, needs = compose_config(words), None
        for base in bases(cfg, words):
            name = f"{base[1].task.name} of {base[1].model.name}, for {title}"
            needs = add(jobs, Job(name, *base, needs, bool(known), view.artifact.results))
        key = add(jobs, Job(title, words, cfg, needs, bool(known), view.artifact.results))
        jobs[key].metrics |= run.metrics
    if found:
        log.info("runs that are recorded: %d.", len(found))
        tell_other_sources(found)
    return jobs


def tell_other_sources(records: Sequence[Record]) -> None:
    """Say so where the files of encodings or of the task have changed since their runs."""
    files = {file for record in records for file in changed_sources(record.get("sources", {}))}
    if files:
        told = " and ".join(sorted(files))
        warn(f"runs are recorded with another version of {told}; rerun=true runs them anew.")


@dataclass
class ArtifactRun:
    """A run of an artifact, whatever its seed."""

    label: str
    words: Sequence[str]  # its overrides
    metrics: dict[str, str] = field(default_factory=dict)  # as those of a job


def runs_at(view: View, seed: int) -> list[ArtifactRun]:
    """Every run of an artifact at a seed, once."""
    runs: dict[Sequence[str], ArtifactRun] = {}
    columns: list[Column | None] = [column for column in view.columns if column.who == "ours"]
    for row, column in itertools.product(view.rows, columns or [None]):
        spec = column.spec if column else {}
        if any(row.labels[name] not in labels for name, labels in spec.get("rows", {}).items()):
            continue
        seeds_of = spec.get("seeds_of")
        further = seeds_of is None or row.labels[view.dimensions()[-1]] in seeds_of
        beyond = seed >= row.seeds if row.seeds is not None else seed > 0 and not further
        words = view.words(row, column)
        if beyond:
            continue
        at = column.at.values() if column and spec.get("where") else ()
        places = [str(place) for place in at if place is not None]
        run = runs.setdefault(words, ArtifactRun(" ".join([label_of(row), *places]), words))
        known = row.labels | (column.at if column else {})
        if "metric" in spec and not {None, ""} & {*known.values()}:  # else records will tell
            run.metrics[spec["metric"]] = fill(spec["metric"], known)
    return [*runs.values()]


def runnable(jobs: dict[str, Job], all_of_them: bool = False) -> dict[str, Job]:
    """The jobs that can run. Why others cannot is said, each reason once; where none can, or all of
    them should, the reason is a ConfigError, and so is a metric that no job measures.
    """
    if not jobs:
        return {}
    from tape_exp.training.from_config import blank_parts  # imports torch

    reasons: dict[str, list[str]] = {}
    fit = {}
    measured = set[str]()
    unknown: dict[str, ConfigError] = {}
    for key, job in jobs.items():
        try:
            _, task = blank_parts(job.cfg)
            fit[key] = job
        except ConfigError as error:
            reasons.setdefault(str(error), []).append(job.title)
            continue
        announced = [*map(as_shown, task.announced())]
        for asked, metric in job.metrics.items():
            try:
                check_metric(metric, announced, DERIVED)
                measured.add(asked)
            except ConfigError as error:
                unknown[asked] = error
    if wrong := next((asked for asked in unknown if asked not in measured), None):
        raise unknown[wrong]
    if reasons and (all_of_them or not fit):
        raise ConfigError(next(iter(reasons)))
    for reason, which in reasons.items():
        print(f"left out: {', '.join(which)}: {reason}", file=sys.stderr)
    return fit


def add(jobs: dict[str, Job], job: Job) -> str:
    """Add a job, unless it is there, and return its key."""
    key = json.dumps([identity_of(job.cfg), job.cfg.runs], sort_keys=True)
    jobs.setdefault(key, job).recorded &= job.recorded
    return key


def bases(cfg: DictConfig, words: Sequence[str]) -> list[tuple[list[str], DictConfig]]:
    """Overrides and config of all bases of a run (``checkpoint=<task>``), the first to run first.
    The run's words that are not of its task or checkpoint, or stretch its positions, hold for what
    it begins from too.
    """
    task = cfg.checkpoint
    if task is None or not starting_weights.is_task(task):
        return []
    own = r"(\+?task|text@task[.\w]*|model|peft|checkpoint|scale|seed|rerun)[.=](?!text)"
    shared = [word for word in words if not re.match(own, word)]
    shared += [f"task={task}", f"scale={cfg.scale.name}", f"seed={cfg.seed}"]
    same = [word for word in words if re.match(r"\+?(model\.(?!scaling)|peft\.)", word)]
    chosen = [f"model={choice_of('model', cfg.model)}", f"peft={cfg.peft.name}", *same, *shared]
    before = compose_config(chosen)
    if cfg.peft.name != "none" and before.checkpoint is None:
        # what is adapted was itself trained from nothing
        chosen = [f"model={cfg.peft.base}", *shared]
        before = compose_config(chosen)
    return [*bases(before, shared), (chosen, before)]


def work(
    jobs: dict[str, Job], cores: int | None, minutes: float | None, records: Path | None = None
) -> Outcome:
    """Run the jobs, each a process of ``tape-exp train``, and add their records; a failure stops
    only what begins from it. With ``cores`` so many run at a time, a thread each, else one after
    the other with all threads. After so many minutes, and on SIGTERM, SIGUSR1, SIGHUP and Ctrl-C,
    those under way save a checkpoint and leave, as they do where this process is killed.
    """
    anew = any(job.cfg.rerun for job in jobs.values())
    outcome, waiting = Outcome(left=len(jobs), anew=anew), dict(jobs)
    began = time.monotonic()
    running: dict[str, subprocess.Popen] = {}
    with time_limit(minutes):
        try:
            while waiting or running:
                to_come = {*waiting, *running} - outcome.failed.keys()
                ready = [key for key, job in waiting.items() if job.needs not in to_come]
                for key in ready[: max(cores or 1, 1) - len(running)]:
                    job = waiting.pop(key)
                    if job.needs in outcome.failed:
                        outcome.failed[key] = ""
                        outcome.left -= 1
                        continue
                    log.info("%s: begins.", job.title)
                    running[key] = start(job, cores is not None)
                for key in [key for key, process in running.items() if process.poll() is not None]:
                    end(key, jobs[key], running.pop(key), outcome, records)
                    minutes_passed = (time.monotonic() - began) / 60
                    log.info("%d to go after %.0f minutes.", outcome.left, minutes_passed)
                time.sleep(0.1)
        except (KeyboardInterrupt, Preempted):
            log.info("Runs that save their checkpoints and leave: %d.", len(running))
            for process in running.values():
                process.send_signal(signal.SIGUSR1)
            for key, process in running.items():
                if process.wait() not in LEFT:
                    end(key, jobs[key], process, outcome, records)
            raise
    return outcome


def start(job: Job, one_thread: bool) -> subprocess.Popen:
    """The process of a run. Ctrl-C reaches only the parent, which asks it to save and leave."""
    command = [sys.executable, "-m", "tape_exp.training", *job.words]
    environment = with_parent()
    if not one_thread:
        return subprocess.Popen(command, env=environment, process_group=0)
    environment["OMP_NUM_THREADS"] = "1"
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the process outlives this function
    quiet = subprocess.Popen(
        command, env=environment, process_group=0, stdout=subprocess.DEVNULL, stderr=errors
    )
    quiet.stderr = errors
    return quiet


def end(
    key: str, job: Job, process: subprocess.Popen, outcome: Outcome, records: Path | None
) -> None:
    """Add the record of a run that is done; note why one failed."""
    outcome.left -= 1
    said = b""
    if process.stderr:  # of a quiet run
        with process.stderr:
            process.stderr.seek(0)
            said = process.stderr.read()
    try:
        directory = RunDirectory(job.cfg)
        if process.returncode == 0:
            if job.cfg.debug.name == "none":
                add_records(records or job.results / "records", [directory.record()])
            return
        failed = directory.path / "FAILED"
        reason = (
            failed.read_text(encoding="utf-8") if failed.exists() else said.decode(errors="replace")
        )
        reason = (reason.strip().splitlines() or [""])[-1].removeprefix("error: ")
    except ConfigError as error:
        reason = str(error)
    if process.returncode in LEFT:
        reason = "it was told to leave, or hung; the same command resumes it."
    elif process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        reason = f"it was killed by {name}, maybe for lack of memory; the same command resumes it."
    outcome.failed[key] = f"{job.title}: {reason or f'status {process.returncode}.'}"
    log.error("%s", outcome.failed[key])


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
