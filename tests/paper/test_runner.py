"""Running what artifacts lack: order, cores, time, failures, stopping and going on."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tape_exp.machine.preemption import REQUEUE, Preemption
from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, runner
from tape_exp.paper.records import read_records
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tests.conftest import SMALL
from tests.processes import Command, sketch

RUN_AND_RECORD = runner.run_and_record


def jobs(*models: str) -> dict[str, runner.Job]:
    """The second job begins from the first."""
    made = {model: runner.Job(model, compose_config([f"model={model}"])) for model in models}
    made[models[1]].needs = models[0]
    return made


def note(records: Path, cfg, what: str) -> None:
    records.mkdir(exist_ok=True)
    (records / f"{cfg.model.name}.{what}").write_text(json.dumps([time.monotonic(), os.getpid()]))


def pretend(cfg, records: Path) -> None:
    """A run of a moment; that of nope fails."""
    note(records, cfg, "begun")
    if cfg.model.name == "nope":
        raise ValueError("no luck")
    time.sleep(0.5)
    note(records, cfg, "done")


def wait_for_alibi(records: Path) -> None:
    """Until that run has begun too; the limit is against hangs."""
    deadline = time.monotonic() + 240
    while not (records / "alibi.begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def beside(cfg, records: Path) -> None:
    """As :func:`pretend`, but the run of rope ends only when another is under way."""
    if cfg.model.name == "rope":
        wait_for_alibi(records)
    pretend(cfg, records)


def killed(cfg, records: Path) -> None:
    """As :func:`beside`, but the run of rope is killed then."""
    if cfg.model.name == "rope":
        wait_for_alibi(records)
        os.kill(os.getpid(), signal.SIGKILL)
    pretend(cfg, records)


def told_to_leave(cfg, records: Path) -> None:
    """As :func:`pretend`, but somebody sends the process of rope a signal."""
    if cfg.model.name == "rope":
        with Preemption():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(280)
    pretend(cfg, records)


class TwoWordsError(Exception):
    """An error that cannot be sent from process to process."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def unsendable(cfg, records: Path) -> None:
    """A run that ends with such an error."""
    raise TwoWordsError("no luck", "none at all")


def endless(cfg, records: Path) -> None:
    """A run that leaves when it is told to."""
    with Preemption():
        note(records, cfg, "begun")
        time.sleep(280)


@pytest.fixture
def records(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "records")
    return tmp_path / "records"


def when(records: Path, name: str) -> float:
    return json.loads((records / name).read_text())[0]


@pytest.mark.parametrize(("words", "kept"), [([], True), (["debug=one_batch"], False)])
def test_a_shortened_run_is_not_recorded(words, kept, records, monkeypatch):
    from tape_exp.training import run as training

    monkeypatch.setattr(training, "run", lambda cfg: {"run": "x"})
    runner.run_and_record(compose_config(words), records)
    assert (records / "x.json").exists() == kept


def test_runs_side_by_side_wait_for_their_bases(records, monkeypatch):
    monkeypatch.setattr(runner, "run_and_record", beside)
    assert runner.work(jobs("rope", "tape", "alibi"), cores=2) == runner.Outcome()
    assert when(records, "tape.begun") >= when(records, "rope.done")
    assert when(records, "alibi.begun") < when(records, "rope.done"), "nothing ran side by side"


@pytest.mark.parametrize("cores", [None, 2])
def test_a_failed_base_costs_only_what_begins_from_it(records, monkeypatch, cores):
    monkeypatch.setattr(runner, "run_and_record", pretend)
    outcome = runner.work(jobs("nope", "tape", "alibi"), cores)
    assert [reason.split(":")[0] for reason in outcome.failed] == ["nope", "tape"]
    assert all("no luck" in reason for reason in outcome.failed)
    assert outcome.left == 0
    assert sorted(path.name for path in records.iterdir()) == [
        "alibi.begun",
        "alibi.done",
        "nope.begun",
    ]


def test_a_killed_process_costs_its_own_run_alone(records, monkeypatch):
    monkeypatch.setattr(runner, "run_and_record", killed)
    outcome = runner.work(jobs("rope", "tape", "alibi", "fire"), cores=2)
    assert [reason.split(":")[0] for reason in outcome.failed] == ["rope", "tape"]
    assert "its process was killed" in outcome.failed[0]
    assert outcome.left == 0
    assert sorted(path.stem for path in records.glob("*.done")) == ["alibi", "fire"]


def test_a_run_that_is_told_to_leave_is_left_and_what_begins_from_it(records, monkeypatch):
    monkeypatch.setattr(runner, "run_and_record", told_to_leave)
    outcome = runner.work(jobs("rope", "tape", "alibi", "fire"), cores=2)
    assert outcome == runner.Outcome(failed=[], left=2)
    assert sorted(path.stem for path in records.glob("*.done")) == ["alibi", "fire"]
    assert runner.status(outcome) == REQUEUE


def test_an_error_that_cannot_be_sent_is_told_in_its_own_words(records, monkeypatch):
    monkeypatch.setattr(runner, "run_and_record", unsendable)
    outcome = runner.work(jobs("rope", "tape"), cores=2)
    assert outcome.failed[0] == "rope: no luck: none at all"


def test_an_idle_process_that_is_killed_is_replaced(records, monkeypatch):
    class KilledOnce(ProcessPoolExecutor):
        killed = False

        def submit(self, *words, **options):
            if not KilledOnce.killed:
                KilledOnce.killed = True
                raise BrokenProcessPool
            return super().submit(*words, **options)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", KilledOnce)
    monkeypatch.setattr(runner, "run_and_record", pretend)
    assert runner.work(jobs("rope", "tape"), cores=2) == runner.Outcome()
    assert KilledOnce.killed
    assert (records / "tape.done").exists()


@pytest.mark.parametrize("cores", [None, 2])
def test_when_the_time_is_over_runs_leave_and_the_rest_is_counted(records, monkeypatch, cores):
    """Over it is when as many as may have begun."""

    class Timer(threading.Timer):
        def run(self) -> None:
            wait_for(lambda: len(list(records.glob("*.begun"))) == (cores or 1))
            super().run()

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(runner, "run_and_record", endless)
    before = signal.getsignal(signal.SIGUSR1)
    outcome = runner.work(jobs("rope", "tape", "alibi"), cores, minutes=0.01)
    assert outcome == runner.Outcome([], 3)
    assert len(list(records.glob("*.begun"))) == (cores or 1)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_seeds_of_all_artifacts_come_in_turn_and_shared_runs_once(records):
    chosen = [artifacts.load("fig_addition_yarn"), artifacts.load("fig_addition")]
    found = list(runner.missing(chosen, "smoke", [0, 1]).values())
    assert [(job.cfg.model.name, job.cfg.seed) for job in found] == [
        (model, seed)
        for seed in (0, 1)
        for model in ("fire", "tape", "tape_yarn", "rope", "randpe", "nope")
    ]


def test_a_run_follows_the_run_that_it_begins_from(records):
    found = runner.missing(
        [artifacts.load("tab_bench"), artifacts.load("tab_tune_ppl")], "smoke", [0]
    )
    order = list(found)
    for key, job in found.items():
        assert job.needs is None or order.index(job.needs) < order.index(key)
    sliding = [
        job
        for job in found.values()
        if job.cfg.task.name == "pg19_sliding" and job.cfg.peft.name == "lora"
    ]
    assert [found[job.needs].cfg.task.name for job in sliding] == ["extend"]
    assert found[found[sliding[0].needs].needs].cfg.task.name == "pg19_proof_pile"


def test_several_devices_do_not_run_side_by_side():
    job = runner.Job("x", compose_config(["trainer=ddp", "trainer.devices=2"]))
    with pytest.raises(ConfigError, match=r"--cores runs side by side what needs one device each"):
        runner.work({"x": job}, cores=2)


def endless_batch(records: Path) -> None:
    """A command that runs two of three endless jobs at a time."""
    folders.RECORDS = records
    runner.run_and_record = endless
    runner.work(jobs("rope", "tape", "alibi"), cores=2)


def test_runs_end_with_a_command_that_is_killed(tmp_path):
    command = Command(program=partial(endless_batch, tmp_path))
    wait_for(lambda: len(list(tmp_path.glob("*.begun"))) == 2 or command.poll() is not None)
    running = [json.loads(path.read_text())[1] for path in tmp_path.glob("*.begun")]
    command.kill()
    command.wait()
    assert len(running) == 2, command.finish().stderr
    wait_for(lambda: not any(map(alive, running)))
    assert not any(map(alive, running))


def wait_for(moment, seconds: float = 240) -> None:
    """Return at the moment, or when the time is over."""
    deadline = time.monotonic() + seconds
    while not moment() and time.monotonic() < deadline:
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def sketched_run(cfg, records: Path) -> None:
    """A run whose pictures have one pixel."""
    Figure.savefig = sketch
    RUN_AND_RECORD(cfg, records)


@contextmanager
def signal_at(moment, number: signal.Signals):
    """Sends itself a signal at the moment, unless the block has ended."""
    over = threading.Event()

    def watch() -> None:
        wait_for(lambda: moment() or over.is_set())
        if not over.is_set():
            os.kill(os.getpid(), number)

    watching = threading.Thread(target=watch)
    before = signal.signal(number, signal.SIG_IGN)  # that a late one ends no tests
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        signal.signal(number, before)


def test_what_else_shows_the_runs_of_an_artifact_is_drawn_with_it():
    """Their tables would say less than results/README.md, which is drawn for all."""

    known = [artifacts.load(name) for name in artifacts.names()]
    records = read_records()

    def drawn(name: str, scale: str) -> list[str]:
        collected = {a.name: a.collect(scale, records) for a in known if scale in a.scales()}
        return paper.showing([name], collected)

    assert drawn("fig_addition_trend", "ladder") == ["fig_addition_trend", "tab_addition_failures"]
    assert {"fig_addition", "fig_addition_yarn"} < {*drawn("fig_addition", "smoke")}
    assert drawn("theory", "smoke") == ["theory"]


def test_a_batch_that_is_stopped_goes_on_and_leaves_every_record(
    tmp_path, records, monkeypatch, capsys
):
    """Real runs, two at a time, by the command's main; SIGTERM; then again, to the end."""
    monkeypatch.setattr(runner, "run_and_record", sketched_run)
    monkeypatch.setattr(paper, "render_artifacts", lambda *_, **__: 0)
    words = [
        *SMALL,
        "task.train_digits=2",
        "task.test_digits=3",
        "task.samples_per_cell=2",
        "trainer=cpu",
        "logger=none",
    ]
    words += [f"runs={tmp_path}/runs", "trainer.checkpoint_every=1000000"]
    words = ["run", "fig_addition_yarn", "--cores", "2", *words, "task.optim.max_steps=300"]
    with signal_at(lambda: len(list(tmp_path.rglob("metrics.jsonl"))) == 2, signal.SIGTERM):
        assert paper.main(words) == REQUEUE
    assert "runs left: 3; the same command goes on." in capsys.readouterr().err
    assert len(list(tmp_path.rglob("step*.ckpt"))) == 2
    assert paper.main(words) == 0
    assert len(list(records.glob("*.json"))) == 3
    assert sum("Resuming from step" in path.read_text() for path in tmp_path.rglob("log.txt")) == 2
