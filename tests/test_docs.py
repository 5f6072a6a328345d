"""docs/: walk-throughs work as printed, named tests exist, numbers are the records'."""

import csv
import doctest
import importlib
import re
import sys
import types

import pytest
import yaml

from tape_exp import tasks
from tape_exp.artifacts import __main__ as compare
from tape_exp.artifacts.artifact import load
from tape_exp.artifacts.view import View
from tape_exp.bench.bench import OUT, Bench
from tape_exp.experiments import local
from tape_exp.models import positions
from tape_exp.models.conformance import SITUATIONS, outcome_of, random_decoder
from tape_exp.paper import __main__ as paper
from tape_exp.paper.pages import costs
from tape_exp.paper.verdicts import NO_CLAIM
from tape_exp.results.store import read_records
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name
from tape_exp.training import plan
from tape_exp.training.optimizer import decays
from tests.artifacts.fakes import train_here
from tests.test_readme import PAGES, README, blocks, conf, conf_with_toys, files_of  # noqa: F401

DOCS = {path.name: text for path, text in PAGES.items() if path.parent.name == "docs"}
ENCODING, TASK = files_of(DOCS["add-a-positional-encoding.md"]), files_of(DOCS["add-a-task.md"])
FOUND = DOCS["what-we-found.md"]
EXAMPLES = [  # modules
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("tape_exp/**/*.py"))
    if ">>> " in path.read_text()
]
with (ROOT / "results" / "tables" / "claims.csv").open() as claims:
    CLAIMS = [*csv.DictReader(claims)]


def test_an_encoding_in_fourteen_lines_and_a_task_in_a_few_more():
    assert files_of(README) == ENCODING
    files = {**ENCODING, **TASK}
    lines = {path: len(re.findall(r"^.*\S", text, re.MULTILINE)) for path, text in files.items()}
    assert sum(lines[path] for path in ENCODING) == 14
    assert lines["tape_exp/tasks/reverse.py"] <= 12
    assert lines["conf/task/reverse.yaml"] <= 15


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_readmes_encoding_does_what_every_one_must(situation, monkeypatch):
    outcome = outcome_of(situation, readmes_encoding(monkeypatch))
    assert outcome.allowed is None or outcome.difference < outcome.allowed


def test_the_readmes_encoding_begins_with_the_values_of_its_constructor(monkeypatch):
    """A penalty of 1 on every head, and no weight decay, as of any number of a head."""
    decoder = random_decoder(readmes_encoding(monkeypatch), std=0)
    toy = decoder.blocks()[0].position
    assert toy.r.flatten().tolist() == [1.0] * 4
    assert not decays(decoder, "layers.0.position.r")


def readmes_encoding(monkeypatch):
    """The section ``model`` of README's YAML, whose class can be imported."""
    for path, content in ENCODING.items():
        if path.endswith(".py"):
            module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
            exec(content, vars(module))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        else:
            section = yaml.safe_load(content)
    return section


@pytest.mark.slow
def test_a_new_encoding_and_a_new_task_train_and_appear_in_a_table(
    conf,  # noqa: F811
    tmp_path,
    monkeypatch,
    capsys,
):
    """With the files of both walk-throughs beside the package: the table that is kept, with one
    seed and two steps; then the command of the page, which finds the same runs.
    """
    for path, content in {**ENCODING, **TASK}.items():
        place = (conf.parent if path.startswith("conf/") else tmp_path) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(re.sub(r"max_steps: \d+", "max_steps: 2", content))
    for package in (positions, tasks):
        place = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [str(place), *package.__path__])
    monkeypatch.setattr(folders, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "results" / "records")
    monkeypatch.setattr(local, "start", train_here)
    monkeypatch.chdir(tmp_path)
    page, fixed = DOCS["add-a-task.md"], ["trainer=cpu", "logger=none"]
    assert paper.main(["run", "tab_reverse", "seed=0", *fixed]) == 0
    assert "toy," in (tmp_path / "results/tables/tab_reverse-smoke.csv").read_text()
    command = blocks("bash", page)[0].partition("#")[0].replace("seed=0,1", "seed=0")
    capsys.readouterr()
    monkeypatch.setattr(local, "start", None)  # nothing runs again
    assert compare.main([*command.removeprefix("tape-exp compare ").split(), *fixed]) == 0
    with (tmp_path / "runs/.compare/tables/compare_reverse-smoke.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["rope", "toy"]
    (shown,) = blocks("text", page)
    printed = capsys.readouterr().out.splitlines()
    head = next(line for line in printed if line.startswith("| model"))
    cells = [[cell.strip() for cell in line.split("|")] for line in (shown, head)]
    assert cells[0] == [cell for cell in cells[1] if "@" not in cell]


def test_every_finding_of_the_errata_names_a_test_that_exists():
    entries = re.findall(r"^- \*\*.*\n(?:  .*\n)*", DOCS["errata.md"], re.MULTILINE)
    assert entries
    for entry in entries:
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", entry), entry
    for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", "".join(PAGES.values())):
        assert re.search(rf"^def {name}", (ROOT / file).read_text(), re.MULTILINE), (file, name)


def test_architecture_names_every_room_and_functions_that_exist():
    page = DOCS["architecture.md"]
    rooms = {path.parent.name for path in ROOT.glob("tape_exp/*/__init__.py")}
    assert rooms <= {*re.findall(r"`(\w+)`", page.partition("## The rooms")[2])}
    for file, name in re.findall(r"`([\w/]+\.py)::(?:\w+\.)?(\w+)`", page):
        assert f"def {name}(" in (ROOT / "tape_exp" / file).read_text(), (file, name)


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
    decoder, sized = plan.blank_parts(cfg)
    devices = plan.devices_of(cfg, sized)
    for printed, recompute in ((hours, False), (recomputed, True)):
        flops = plan.tokens(sized) * plan.flops_per_token(decoder, sized, recompute)
        planned = plan.hours(flops, devices.peak)
        assert float(printed) == pytest.approx(planned, abs=0.006, rel=0.004)
    needed = sum(plan.memory(decoder, sized, devices, "recomputed" in how).values())
    assert float(memory) == pytest.approx(needed / 2**30, abs=0.6)


def test_hours_of_the_sweeps_add_up_to_the_cost_of_all():
    page, known = DOCS["reproduce-on-a-cluster.md"], costs()
    assert len(HOURS) == 5
    rows = re.findall(r"(?m)^\| [1-5] +\| ([^|]+) \| +(\d+) +\| ([\d.]+|evaluation only)", page)
    named = {name for artifacts, _, _ in rows for name in artifacts.strip().split(", ")}
    assert named == {name for name, needed in known.items() if needed["gpu_hours"]}
    hours = sum(float(told) for _, _, told in rows if told != "evaluation only")
    assert float(re.search(r"Together ([\d.]+) GPU-hours", page)[1]) == pytest.approx(hours, abs=1)


def test_what_we_found_counts_the_verdicts_and_names_every_artifact():
    verdicts = [row["holds"].partition(" (")[0] for row in CLAIMS if row["holds"] != NO_CLAIM]
    kinds = ("yes", "no", "no difference shown", "cannot tell")
    counts = [f"{kind} for {verdicts.count(kind)}" for kind in kinds]
    told = f"Of {len(verdicts)} claims the verdict is {', '.join(counts)}"
    assert f"{told}, and {verdicts.count('not tested')} are not tested" in " ".join(FOUND.split())
    for name in {row["artifact"] for row in CLAIMS}:
        assert name in FOUND or name == "theory", name


def test_hours_of_what_would_settle_a_claim_are_the_costs():
    line = r"^\| (\w.*?) +\| `tape-exp paper run .*\| ([\d., ]+?) +\|$"
    rows = re.findall(line, FOUND, re.MULTILINE)
    assert rows
    for artifacts, hours in rows:
        known = {costs()[n]["gpu_hours"] for n in re.findall(r"\w+", artifacts) if n in costs()}
        assert {float(number) for number in hours.split(", ")} <= known, artifacts


def test_longer_words_of_state_tracking_are_those_of_the_records():
    page = DOCS["state-tracking.md"]
    lengths = re.findall(r"(\d+) letters +(?=\|)", page)
    view = View(load("fig_word_groups"), "smoke", read_records())
    rows = {(row.labels["group"], row.labels["model"]): row for row in view.rows}
    for model in ("tape_householder", "path"):
        seeds = view.runs(rows["s5", model])
        shown = [
            ", ".join(f"{run['metrics'][f'test/word@{n}']:.1f}" for run in seeds) for n in lengths
        ]
        (row,) = re.findall(rf"^\| `{model}` .*$", page, re.MULTILINE)
        assert [cell.strip() for cell in row.split("|")[2:-1]] == shown
        assert {run["metrics"]["test/word@32"] for run in seeds} == {100.0}


@pytest.mark.slow
def test_prompts_of_the_battery_are_those_of_the_records():
    """The shares of ``multi_key`` that the page quotes of each seed, at the chosen rates."""
    board = Bench([], OUT).board(shown=True)
    page = re.sub(r"\s+", " ", DOCS["battery.md"])
    for model in ("nope", "fire", "rope", "alibi"):
        runs = sorted(board.chosen[model, "multi_key"], key=lambda run: run["seed"])
        shares = [run["metrics"]["retrieval/accuracy@256"] for run in runs]
        assert "{} {:.0f}, {:.0f} and {:.0f} %".format(display_name(model), *shares) in page


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_worked_examples_of_a_module_are_right(module):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.attempted
    assert not results.failed
