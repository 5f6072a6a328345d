"""docs/: the walk-throughs work as printed, every test that is named exists, the hours are those of
the plan, and what we found is what the tables of the records say.
"""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tape_exp.bench.bench import OUT, Bench
from tape_exp.paper.artifact import load
from tape_exp.paper.claims import NO_CLAIM
from tape_exp.paper.pages import costs
from tape_exp.paper.records import read_records
from tape_exp.paper.view import View
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name
from tape_exp.training import plan
from tests.test_readme import PAGES, blocks, files_of

DOCS = {path.name: text for path, text in PAGES.items() if path.parent.name == "docs"}
ENCODING, TASK = DOCS["add-a-positional-encoding.md"], DOCS["add-a-task.md"]
RESULTS = ROOT / "results"
NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the files of both walk-throughs as printed, and no other edit."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("tape_exp", "conf", "results"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    for path, content in {**files_of(ENCODING), **files_of(TASK)}.items():
        (copy / path).write_text(content)  # also where the reader has followed the pages
    return copy


def call(project, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_walk_throughs_add_one_python_file_and_one_yaml_each():
    assert list(files_of(ENCODING)) == ["tape_exp/models/positions/toy.py", "conf/model/toy.yaml"]
    assert list(files_of(TASK)) == [
        "tape_exp/tasks/reverse.py",
        "conf/task/reverse.yaml",
        "conf/paper/tab_reverse.yaml",
    ]


def test_a_task_is_short():
    """Lines of the class and of its YAML, blank ones apart."""
    files = files_of(TASK)
    lines = {
        path: sum(bool(line.strip()) for line in content.splitlines())
        for path, content in files.items()
    }
    assert lines["tape_exp/tasks/reverse.py"] <= 12
    assert lines["conf/task/reverse.yaml"] <= 15


def test_what_they_add_passes_the_checks_of_the_sources(project):
    files = [path for path in {**files_of(ENCODING), **files_of(TASK)} if path.endswith(".py")]
    for words in (["check"], ["format", "--check"]):
        done = call(project, "-m", "ruff", *words, *files)
        assert done.returncode == 0, done.stdout


def test_a_new_encoding_runs_on_a_task_that_is_there(project):
    sizes = ["task.arch.width=32", "task.samples_per_cell=2"]
    done = call(
        project, "train.py", "model=toy", "debug=one_batch", "trainer=cpu", "logger=none", *sizes
    )
    assert done.returncode == 0, done.stderr
    assert "arithmetic-smoke-toy-seed0" in done.stdout


def test_a_new_encoding_and_a_new_task_train_and_appear_in_a_table(project):
    """The command of the page, of one seed; then the table that is kept, of the same runs."""
    (command,) = [line for block in blocks("bash", TASK) for line in block.splitlines()]
    words = [word.replace("seeds=0,1", "seeds=0") for word in shlex.split(command)[1:]]
    done = call(project, *words, "trainer=cpu", "logger=none")
    assert done.returncode == 0, done.stderr
    tables = project / "runs" / ".compare" / "tables"
    with (tables / "compare_reverse-smoke.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["rope", "toy"]
    for row in rows.values():
        assert row["seeds"] == "1"
        assert float(row["id/exact_match"].split()[0]) > 50, "it has not learned"
        assert (
            0 <= float(row["ood/exact_match"].split()[0]) < float(row["id/exact_match"].split()[0])
        )
    (shown,) = blocks("text", TASK)
    head = [line for line in done.stdout.splitlines() if line.startswith("| model")]
    cells = [[cell.strip() for cell in line.split("|")] for line in (shown, head[0])]
    assert cells[0] == [cell for cell in cells[1] if "@" not in cell]
    words = ["run", "tab_reverse", "seeds=0", "trainer=cpu", "logger=none"]
    kept = call(project, "-m", "tape_exp.paper", *words)
    assert kept.returncode == 0, kept.stderr
    drawn = project / "results" / "tables" / "tab_reverse-smoke.csv"
    assert "toy," in drawn.read_text()
    assert "tab_reverse" in (project / "results" / "README.md").read_text()


@pytest.mark.parametrize("page", DOCS)
def test_every_test_that_a_page_names_exists(page):
    for file, name in NAMED.findall(DOCS[page]):
        assert (ROOT / file).exists(), file
        assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), (
            f"{file}::{name}"
        )


def test_every_line_of_the_errata_names_its_test():
    lines = [line for line in DOCS["errata.md"].splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.endswith("| test |")]
    assert len(lines) > 30
    for line in lines:
        assert re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", line), line


def test_the_errata_say_whether_what_the_public_code_computes_has_run():
    every = read_records()
    records = [r for r in every if r["config"]["model"]["name"] == "tape_public_addition"]
    told = "No record of `model=tape_public_addition` exists yet" in DOCS["errata.md"]
    assert told == (not records), "the paragraph below the table of the public code for addition"


HOURS = re.findall(
    r"^\| `task=(\w+)` +\| [^|]+\| ([\d.]+) +\| ([\d.]+) +\| (\d+) GiB( with [^|]+)?",
    DOCS["reproduce-on-a-cluster.md"],
    re.MULTILINE,
)


@pytest.mark.parametrize(("task", "hours", "recomputed", "memory", "how"), HOURS)
def test_hours_and_memory_are_the_plans(task, hours, recomputed, memory, how):
    """Hours of one device; the plan's own tests hold it to what a model computes."""
    words = re.findall(r"`(\w+(?:\.\w+)?=\w+)`", how)
    cfg = compose_config([f"task={task}", "model=tape", "scale=paper", *words])
    decoder, sized = plan.model_and_task(cfg)
    devices = plan.devices_of(cfg, sized)
    for printed, recompute in ((hours, False), (recomputed, True)):
        flops = plan.tokens(sized) * plan.flops_per_token(decoder, sized, recompute)
        planned = plan.hours(flops, devices.peak)
        assert float(printed) == pytest.approx(planned, abs=0.006, rel=0.004)
    needed = plan.memory(decoder, sized, devices, "recomputed" in how)
    assert float(memory) == pytest.approx(sum(needed.values()) / 2**30, abs=0.6)


def test_hours_of_the_sweeps_add_up_to_the_cost_of_all():
    page, known = DOCS["reproduce-on-a-cluster.md"], costs()
    assert len(HOURS) == 5
    rows = re.findall(
        r"^\| [a-d] +\| ([^|]+) \| +(\d+) +\| ([\d.]+|evaluation only)", page, re.MULTILINE
    )
    named = {name for artifacts, _, _ in rows for name in artifacts.strip().split(", ")}
    assert named == {name for name, needed in known.items() if needed["gpu_hours"]}
    hours = sum(float(told) for _, _, told in rows if told != "evaluation only")
    assert float(re.search(r"Together ([\d.]+) GPU-hours", page)[1]) == pytest.approx(hours, abs=1)


FOUND = DOCS["what-we-found.md"]
with (RESULTS / "tables" / "claims.csv").open() as file:
    CLAIMS = {row["artifact"]: row for row in csv.DictReader(file)}


def test_what_we_found_counts_the_verdicts_and_names_every_artifact():
    verdicts = [row["holds"] for row in CLAIMS.values() if row["holds"] != NO_CLAIM]
    kinds = ("yes", "no", "not distinguishable", "at floor (cannot tell)", "not tested")
    text = " ".join(FOUND.split())
    counts = re.search(r"of (\d+) claims (\d+) .* (\d+) .* (\d+) .* (\d+) .* (\d+) are not", text)
    expected = [len(verdicts), *map(verdicts.count, kinds)]
    assert [*map(int, counts.groups())] == expected
    for name in CLAIMS:
        assert f"tables/{name}-" in FOUND or name == "theory", name


def test_hours_of_what_would_settle_a_claim_are_the_costs():
    line = r"^\| (\w.*?) +\| `tape-exp paper run .*\| ([\d., ]+?) +\|$"
    rows = re.findall(line, FOUND, re.MULTILINE)
    assert rows
    for artifacts, hours in rows:
        named = [name for name in re.findall(r"\w+", artifacts) if name in costs()]
        known = {costs()[name]["gpu_hours"] for name in named}
        assert {float(number) for number in hours.split(", ")} <= known, artifacts


def test_longer_words_of_state_tracking_are_those_of_the_records():
    lines = [line for line in DOCS["state-tracking.md"].splitlines() if " letters" in line]
    (head,) = [line for line in lines if line.startswith("|")]
    lengths = [int(number) for number in re.findall(r"(\d+) letters", head)]
    view = View(load("fig_word_groups"), "smoke", read_records())
    rows = {(row.labels["group"], row.labels["model"]): row for row in view.rows}
    for model in ("tape_householder", "path"):
        seeds = view.runs(rows["s5", model])
        shown = [
            ", ".join(f"{run['metrics'][f'test/word@{length}']:.1f}" for run in seeds)
            for length in lengths
        ]
        (row,) = re.findall(rf"^\| `{model}` .*$", DOCS["state-tracking.md"], re.MULTILINE)
        assert [cell.strip() for cell in row.split("|")[2:-1]] == shown
        assert {run["metrics"]["test/word@32"] for run in seeds} == {100.0}


def test_prompts_of_the_battery_are_those_of_the_records():
    """The shares of ``multi_key`` that the page quotes of each seed, at the chosen rates."""
    board = Bench([], OUT).board(shown=True)
    page = re.sub(r"\s+", " ", DOCS["battery.md"])
    found = {
        (model, run["seed"]): run["metrics"]["retrieval/accuracy@256"]
        for model in board.models
        for run in board.chosen[model, "multi_key"]
    }
    for model, verb in {"nope": " solves", "fire": "", "rope": "", "alibi": ""}.items():
        shares = "{:.0f}, {:.0f} and {:.0f} %".format(*(found[model, seed] for seed in range(3)))
        with_seeds = shares + " with seeds 0, 1 and 2" if verb else shares
        assert f"{display_name(model)}{verb} {with_seeds}" in page
