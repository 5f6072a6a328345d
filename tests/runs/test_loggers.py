"""Loggers: W&B offline read back, and a W&B that cannot be reached."""

import csv
import json
import logging
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import wandb
from lightning.pytorch.loggers import Logger, WandbLogger

from tape_exp.machine.processes import Process, part_of_run
from tape_exp.results.evaluation import Evaluation
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.loggers import JsonlLogger, make_loggers
from tape_exp.runs.metrics import POINTS, Stopwatch, curves, read_metrics
from tape_exp.runs.wandb_run import asks_for_wandb, logged_in
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF
from tape_exp.training.run import run
from tests.conftest import SMALL

KEY = "0123456789" * 4
MACHINE = "machine {} login user password " + KEY + "\n"


@pytest.fixture
def fresh_wandb(tmp_path, monkeypatch):
    """A W&B that has read nothing yet, of a user without a home; it forgets what it then reads."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    wandb.teardown()
    yield
    wandb.teardown()


def wandb_records(folder: Path, seconds: float = 90) -> list:
    """Every record of an offline run's log, once W&B's own process has written the last one, that
    of the run's exit.
    """
    deadline = time.monotonic() + seconds
    while True:
        records = written_records(folder)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline, "W&B has not written the end of the run"
        time.sleep(0.2)


def written_records(folder: Path) -> list:
    """What the log holds at this moment."""
    from wandb.proto import wandb_internal_pb2

    log = next(folder.glob("wandb/offline-run-*/run-*.wandb")).read_bytes()
    records, position, pending = [], 7, b""
    while position + 7 <= len(log):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(log[position + 4 : position + 6], "little"), log[position + 6]
        pending += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            records.append(record)
            pending = b""
    return records


@pytest.mark.slow
def test_wandb_offline_run_holds_config_curve_image_and_table(tiny_run, capfd):
    cfg, record = tiny_run("model=rope", "logger=wandb", "logger.tags=[mine]")
    folder = next(RunDirectory(cfg).path.glob("wandb/offline-run-*"))
    printed = capfd.readouterr().out
    assert printed.count("W&B is offline") == 1
    assert f"wandb sync {folder}" in printed
    directory = RunDirectory(cfg)
    files = next(directory.path.glob("wandb/offline-run-*/files"))
    assert files.parent.name.endswith(directory.hash)
    images = list(files.glob("media/images/test/accuracy_by_digits_*.png"))
    assert len(images) == 1
    assert images[0].read_bytes() == (directory.artifacts / "accuracy_by_digits.png").read_bytes()
    table = json.loads(next(files.glob("media/table/test/samples_*.table.json")).read_text())
    rows = json.loads((directory.artifacts / "samples.json").read_text())
    assert table["columns"] == list(rows[0])
    assert table["data"] == [list(row.values()) for row in rows]

    records = wandb_records(directory.path)
    started = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert started.run_id == directory.hash
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["model"]["name"] == "rope"
    logged = [
        {"/".join(i.nested_key) or i.key: i.value_json for i in r.history.item}
        for r in records
        if r.history.item
    ]
    assert started.display_name == directory.name
    assert list(started.tags) == ["rope", "arithmetic", "smoke", "mine"]
    assert started.notes == "rope on arithmetic, scale smoke, seed 0"
    charts = {key for row in logged for key in row if not key.startswith(("_", "test/accuracy_by"))}
    kinds = [json.loads(v) for row in logged for key, v in row.items() if key.endswith("/_type")]
    assert kinds.count("images/separated") == len(list(directory.artifacts.glob("*.png"))) >= 1
    assert kinds.count("table-file") == len(list(directory.artifacts.glob("*.json"))) >= 1
    assert {"train/loss", "val/loss", "test/exact_match", "ood/exact_match"} <= charts
    summary = {i.key: json.loads(i.value_json) for r in records for i in r.summary.update}
    assert summary["test/exact_match"] == record["metrics"]["test/exact_match"]
    assert summary["parameters"] == record["parameters"]
    assert not any(r.WhichOneof("record_type") == "output_raw" for r in records)
    losses = [json.loads(row["train/loss"]) for row in logged if "train/loss" in row]
    assert losses == [
        row["train/loss"]
        for row in read_metrics(directory.path / "metrics.jsonl")
        if "train/loss" in row
    ]


@pytest.mark.slow
def test_a_logger_that_fails_ends_no_run(tiny_run, monkeypatch):
    """W&B's process may be killed, by the machine's guard of memory for one."""
    taken = []

    def log_metrics(self, metrics, step=None):
        taken.append(step)
        if step == 2:
            raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(WandbLogger, "log_metrics", log_metrics)
    cfg, record = tiny_run("model=rope", "logger=wandb", "logger.mode=offline")
    assert RunDirectory(cfg).done
    assert max(taken) == 2
    said = (RunDirectory(cfg).path / "log.txt").read_text()
    assert said.count("No more is sent to WandbLogger: ConnectionResetError('Connection") == 1
    steps = [row["step"] for row in read_metrics(RunDirectory(cfg).metrics)]
    assert steps[-1] == record["steps"] == 4


def test_a_second_node_begins_no_run_of_wandb(tmp_path):
    cfg = compose_config([f"runs={tmp_path}", "logger.mode=offline"])
    directory = RunDirectory(cfg)
    directory.path.mkdir(parents=True)
    with part_of_run(Process(1, 2, 1), directory.name):
        assert make_loggers(cfg, directory, Stopwatch(), 0) == []
    assert list(tmp_path.rglob("offline-run-*")) == []


def test_a_point_that_is_not_finite_is_none_of_a_record(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tape_exp"), "propagate", True)
    rows = [{"step": n, "val/loss": value} for n, value in enumerate((2.0, math.nan, 1.0))]
    assert curves(rows) == {"val/loss": {"step": [0, 2], "value": [2.0, 1.0]}}
    matrices = {"good": np.ones((2, 2)), "bad": np.full((2, 2), np.nan)}
    assert list(Evaluation({}, matrices=matrices).for_record()["matrices"]) == ["good"]
    assert "Not finite, and not in the record: bad." in caplog.text


def test_a_run_continues_offline_where_wandb_cannot_be_reached(tiny_run, monkeypatch, capfd):
    """The server does not answer in time."""
    begin, timeouts = wandb.init, []

    def init(mode=None, **options):
        if mode != "offline":
            timeouts.append(options["settings"].init_timeout)
            raise wandb.errors.CommError("no answer")
        return begin(mode=mode, **options)

    monkeypatch.setattr(wandb, "init", init)
    cfg, _ = tiny_run("model=rope", "logger=wandb", "logger.mode=online", "logger.timeout=7")
    assert timeouts == [7]
    assert "W&B could not begin a run online: CommError('no answer')" in capfd.readouterr().out
    (folder,) = RunDirectory(cfg).path.glob("wandb/offline-run-*")
    assert folder.name.endswith(RunDirectory(cfg).hash), "the id is the hash there too"


def test_jsonl_rewinds_to_a_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path, Stopwatch())
    for step in range(1, 6):
        logger.log_metrics({"train/loss": 1 / step}, step)
    path.write_text(re.sub(r'"seconds": [\d.]+', '"seconds": 1000.0', path.read_text()))
    with path.open("a") as file:
        file.write('{"step": 6, "train/lo')  # what a killed process leaves
    logger = JsonlLogger(path, Stopwatch(), step=3)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    logger.log_metrics({"train/loss": 0.2}, 3)  # which the killed process has reported
    logger.log_metrics({"train/loss": 0.1}, 4)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]
    assert read_metrics(path)[-1]["seconds"] >= 1000, "with those of earlier processes"


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    rows = [{"step": step, "train/loss": 1 / step} for step in range(1, 1001)] + [
        {"step": 1000, "val/loss": 0.5}
    ]
    found = curves(rows)
    assert list(found) == ["train/loss"], "a single point is no curve"
    steps, values = found["train/loss"]["step"], found["train/loss"]["value"]
    assert len(steps) == POINTS["train/loss"]
    assert (steps[0], steps[-1]) == (1, 1000)
    assert values == pytest.approx([1 / step for step in steps], rel=1e-4)


def test_two_runs_of_one_process_are_two_wandb_runs(tiny_run):
    """A sweep in one process must not write all its curves into the first run."""
    for seed in (0, 1):
        cfg, _ = tiny_run("model=rope", "logger=wandb", f"seed={seed}", steps=1)
        (folder,) = RunDirectory(cfg).path.glob("wandb/offline-run-*")
        assert folder.name.endswith(RunDirectory(cfg).hash)
        (started,) = {r.run.run_id for r in wandb_records(RunDirectory(cfg).path)} - {""}
        assert started == RunDirectory(cfg).hash


LOGINS = {
    "nothing": ({}, "", "", False),
    "a key": ({"WANDB_API_KEY": KEY}, "", "", True),
    "an empty variable": ({"WANDB_API_KEY": ""}, "", "", False),
    "a token": ({"WANDB_IDENTITY_TOKEN_FILE": "token"}, "", "", True),
    "wandb login": ({}, MACHINE.format("api.wandb.ai"), "", True),
    "another machine's login": ({}, MACHINE.format("github.com"), "", False),
    "a login without its key": ({}, "machine api.wandb.ai login user password", "", False),
    "a damaged netrc": ({}, "machine api.wandb.ai log in", "", False),
    "a server of one's own": (
        {"WANDB_BASE_URL": "http://wandb.lab:8080"},
        MACHINE.format("wandb.lab:8080"),
        "",
        True,
    ),
    "another server's login": (
        {"WANDB_BASE_URL": "http://wandb.lab:8080"},
        MACHINE.format("api.wandb.ai"),
        "",
        False,
    ),
    "wandb login --host": (
        {},
        MACHINE.format("wandb.lab"),
        "[default]\nbase_url = https://wandb.lab\n",
        True,
    ),
    "a key among the settings": ({}, "", f"[default]\napi_key = {KEY}\n", True),
}


@pytest.mark.parametrize("case", LOGINS)
def test_a_login_is_what_wandb_itself_finds(case, tmp_path, monkeypatch, fresh_wandb):
    from wandb.sdk.lib import wbauth

    environment, logins, settings, found = LOGINS[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "netrc").write_text(logins)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings").write_text(settings)
    host = wandb.setup(wandb.Settings(mode="disabled")).settings.base_url
    theirs = wbauth.authenticate_session(host=host, source="test", prompt=False)
    assert logged_in() == found == (theirs is not None)
    assert asks_for_wandb(compose_config([]).logger) == found


def test_a_user_without_a_home_has_no_login(fresh_wandb, monkeypatch):
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # KeyError, as of a number without a name
    with pytest.raises(RuntimeError, match="home"):
        Path.home()
    assert not logged_in()


@pytest.mark.parametrize(
    ("words", "environment", "asks"),
    [
        ([], {}, False),
        ([], {"WANDB_API_KEY": KEY}, True),
        ([], {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}, True),
        ([], {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}, False),
        (["logger=none"], {"WANDB_API_KEY": KEY}, False),
        (["logger=wandb"], {}, True),
        (["logger=auto", "logger.project=mine"], {}, True),
        (["logger=none", "logger.project=mine"], {}, False),
    ],
)
def test_wandb_is_asked_for_by_a_word_or_a_login(
    words, environment, asks, monkeypatch, fresh_wandb
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert asks_for_wandb(compose_config(words).logger) == asks


def test_a_run_is_the_same_with_every_logger():
    composed = [compose_config([f"logger={path.stem}"]) for path in (CONF / "logger").iterdir()]
    assert len({RunDirectory(cfg).hash for cfg in composed}) == 1


VARIABLES = {
    "WANDB_PROJECT": "their_project",
    "WANDB_ENTITY": "their_team",
    "WANDB_NAME": "their name",
    "WANDB_RUN_GROUP": "their group",
    "WANDB_JOB_TYPE": "their job",
    "WANDB_NOTES": "their notes",
    "WANDB_TAGS": "one,two",
    "WANDB_INIT_TIMEOUT": "7",
}
NAMES = ["tape", "arithmetic", "smoke"]
OURS = {
    "project": "tape_exp",
    "entity": None,
    "group": "arithmetic-smoke",
    "job_type": "",
    "notes": "tape on arithmetic, scale smoke, seed 0",
    "tags": NAMES,
    "timeout": 20,
}
THEIRS = {
    "project": "their_project",
    "entity": "their_team",
    "name": "their name",
    "group": "their group",
    "job_type": "their job",
    "notes": "their notes",
    "tags": [*NAMES, "one", "two"],
    "timeout": 7,
}
WORDS = ["project=our_project", "entity=our_team", "notes=ours", "tags=[mine]", "timeout=5"]
GIVEN = {"project": "our_project", "entity": "our_team", "notes": "ours"}


@pytest.mark.parametrize(
    ("variables", "words", "expected"),
    [
        ({}, [], OURS),
        (VARIABLES, [], THEIRS),
        (VARIABLES, WORDS, THEIRS | GIVEN | {"tags": [*NAMES, "mine"], "timeout": 5}),
    ],
    ids=["neither", "their variables", "our keys"],
)
def test_variables_of_wandb_hold_where_no_key_is_set(
    variables, words, expected, tmp_path, monkeypatch, fresh_wandb
):
    """What a run of W&B, begun offline, knows of itself."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cfg = compose_config(
        ["logger=wandb", f"runs={tmp_path}", "logger.mode=offline"]
        + [f"logger.{word}" for word in words]
    )
    directory = RunDirectory(cfg)
    directory.path.mkdir(parents=True)
    *_, logger = make_loggers(cfg, directory, Stopwatch(), 0)
    begun = logger.experiment
    try:
        known = {key: getattr(begun, key) for key in expected if key not in ("tags", "timeout")}
        known |= {"tags": list(begun.tags), "timeout": begun.settings.init_timeout}
        assert begun.id == directory.hash
        # Offline, W&B knows no team but the one that it is told.
        assert known | {"entity": known["entity"] or None} == expected
        assert variables or begun.name == directory.name
    finally:
        begun.finish()


MODES = {  # (logger.mode, WANDB_MODE, whether there is a key): the modes that are tried
    ("auto", None, True): ["online", "offline"],
    ("auto", None, False): ["offline"],
    ("auto", "online", True): ["online", "offline"],
    ("auto", "online", False): ["offline"],
    ("auto", "offline", True): ["offline"],
    ("auto", "dryrun", True): ["offline"],
    ("auto", "disabled", True): [],
    ("auto", "disabled", False): [],
    ("online", "disabled", True): ["online", "offline"],
    ("online", "offline", True): ["online", "offline"],
    ("offline", "online", True): ["offline"],
    ("offline", "disabled", True): ["offline"],
}


@pytest.mark.parametrize(("ours", "theirs", "key"), MODES)
def test_the_mode_is_ours_where_it_is_set_and_else_theirs(
    ours, theirs, key, tmp_path, monkeypatch, fresh_wandb
):
    if theirs:
        monkeypatch.setenv("WANDB_MODE", theirs)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    tried = []

    def init(mode, **_):
        tried.append(mode)
        raise wandb.errors.CommError("no answer")

    monkeypatch.setattr(wandb, "init", init)
    cfg = compose_config(["logger=wandb", f"runs={tmp_path}", f"logger.mode={ours}"])
    assert len(make_loggers(cfg, RunDirectory(cfg), Stopwatch(), 0)) == 1
    assert tried == MODES[ours, theirs, key]


@pytest.mark.long
def test_wandb_is_not_imported_where_nobody_asks_for_it(tmp_path):
    """A newcomer's first run, in a process of its own: no warning and no file of W&B."""
    words = [*SMALL, "model=rope", "trainer=cpu", f"runs={tmp_path}", "task.optim.max_steps=1"]
    words += ["task.train_digits=2", "task.test_digits=3", "task.samples_per_cell=2"]
    lines = ["import sys", "from tape_exp.settings.compose import compose_config"]
    lines += ["from tape_exp.training.run import run", f"run(compose_config({words}))"]
    lines += ["print('wandb' in sys.modules)"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment |= {"NETRC": os.devnull, "WANDB_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert done.stderr == ""
    assert not list(tmp_path.rglob("wandb*"))


class Notebook(Logger):
    """A logger of one's own, which keeps what it is sent."""

    version = None
    written: ClassVar[list] = []

    def __init__(self, save_dir, run_name, colour="blue"):
        super().__init__()
        self.written.append(("made", save_dir, run_name, colour))

    @property
    def name(self):
        return "notebook"

    def log_metrics(self, metrics, step=None):
        self.written.append(("metrics", step, metrics))

    def log_hyperparams(self, params, *_, **__):
        self.written.append(("settings", params))

    def finalize(self, status):
        self.written.append(("end", status))


def test_a_logger_of_ones_own_gets_scalars_settings_and_the_end(tiny_run, tmp_path, monkeypatch):
    """By a YAML of one's own, which names a class that is no class of ours."""
    monkeypatch.setattr(Notebook, "written", [])
    (tmp_path / "mine" / "logger").mkdir(parents=True)
    text = f"name: notebook\n_target_: {__name__}.Notebook\ncolour: red\n"
    (tmp_path / "mine" / "logger" / "notebook.yaml").write_text(text)
    path = f"hydra.searchpath=[file://{tmp_path / 'mine'}]"
    cfg, record = tiny_run("model=rope", path, "logger=notebook")
    directory = RunDirectory(cfg)
    made, *_ = Notebook.written
    assert made == ("made", str(directory.path), directory.name, "red")
    rows = [one[1:] for one in Notebook.written if one[0] == "metrics"]
    own = [
        (row["step"], {k: v for k, v in row.items() if k not in ("step", "seconds")})
        for row in read_metrics(directory.metrics)
    ]
    assert rows == own
    assert record["metrics"].items() <= {k: v for _, row in rows for k, v in row.items()}.items()
    (settings,) = [one[1] for one in Notebook.written if one[0] == "settings"]
    assert settings == directory.identity
    assert Notebook.written[-1] == ("end", "success")


def test_lightnings_csv_has_the_rows_of_metrics_jsonl(tiny_run):
    cfg, _ = tiny_run("model=rope", "logger=csv")
    directory = RunDirectory(cfg)
    with (directory.path / "csv/version_0/metrics.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    own = read_metrics(directory.metrics)
    assert rows == [{k: v for k, v in row.items() if k != "seconds"} for row in own]
    assert "name: rope" in (directory.path / "csv/version_0/hparams.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["+logger.colour=red"], "unexpected keyword argument 'colour'"),
        (["logger._target_=lightning.pytorch.loggers.NoLogger"], "NoLogger cannot be made"),
        (["logger._target_=collections.Counter"], "Counter is no logger of Lightning"),
    ],
)
def test_a_logger_that_cannot_be_made_is_one_sentence_and_leaves_no_folder(
    words, sentence, tmp_path
):
    cfg = compose_config(["model=rope", "trainer=cpu", *SMALL, "logger=csv", *words])
    cfg.runs = str(tmp_path)
    with pytest.raises(ConfigError, match=f"logger=csv: .*{sentence}") as error:
        run(cfg)
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
