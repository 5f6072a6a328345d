"""docs/: the walk-throughs work as printed, every test that is named exists, the hours are those of
the plan, and what we found is what the tables of the records say.
"""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tape_exp.paper import artifacts, costs
from tape_exp.paper.artifacts import RESULTS, SCALES
from tape_exp.paper.claims import FLOOR, NO, NO_CLAIM, ORDERED, REVERSED, UNCLEAR, UNTESTED, YES
from tape_exp.paper.records import read_records
from tape_exp.paper.words import requested
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name
from tape_exp.training import plan
from tests.test_readme import PAGES, blocks, files_of, words_of

DOCS = {path.name: text for path, text in PAGES.items() if path.parent.name == "docs"}
ENCODING, TASK = DOCS["add-a-positional-encoding.md"], DOCS["add-a-task.md"]
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
    assert lines["tape_exp/tasks/reverse.py"] <= 35
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
    head = [
        line
        for line in (tables / "compare_reverse-smoke.md").read_text().splitlines()
        if line.startswith("| model")
    ]
    assert shown.split() == head[0].split()
    assert head[0] in done.stdout
    words = ["run", "tab_reverse", "seeds=0", "trainer=cpu", "logger=none"]
    kept = call(project, "-m", "tape_exp.paper", *words)
    assert kept.returncode == 0, kept.stderr
    drawn = project / "results" / "tables" / "tab_reverse-smoke.md"
    assert "| Toy " in drawn.read_text()
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
    records = [*(RESULTS / "records").glob("*-tape_public_addition-*.json")]
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
    page, known = DOCS["reproduce-on-a-cluster.md"], costs.read(RESULTS)
    assert len(HOURS) == 5
    rows = re.findall(
        r"^\| [a-d] +\| ([^|]+) \| +(\d+) +\| ([\d.]+|evaluation only)", page, re.MULTILINE
    )
    named = {name for artifacts, _, _ in rows for name in artifacts.strip().split(", ")}
    assert named == {name for name, needed in known["artifacts"].items() if needed["gpu_hours"]}
    hours = sum(float(told) for _, _, told in rows if told != "evaluation only")
    assert hours == pytest.approx(known["all"]["gpu_hours"], abs=1)
    assert (
        float(re.search(r"Together ([\d.]+) GPU-hours", page).group(1)) == known["all"]["gpu_hours"]
    )
    free = sum(needed["runs"] for needed in known["artifacts"].values() if not needed["gpu_hours"])
    assert sum(int(runs) for _, runs, _ in rows) + free == known["all"]["runs"]


FOUND = DOCS["what-we-found.md"]
with (RESULTS / "tables" / "claims.csv").open() as file:
    CLAIMS = {row["artifact"]: row for row in csv.DictReader(file)}
# which verdicts a part of the page is about; other parts are about no claim
PARTS = {
    "What the records decide": {YES, NO},
    "What they decide for small models only": {YES, NO},
    "What they cannot tell": {UNCLEAR, FLOOR, ORDERED, REVERSED},
    "What has not been tested": {UNTESTED},
}
NUMBER = re.compile(r"\d+(?:\.\d+)?e-\d+|\d+\.\d+")


def claim_line(row: dict[str, str]) -> str:
    """The line of docs/what-we-found.md on a claim: a row of results/tables/claims.csv."""
    scale = f"scale {row['scale']}" if row["scale"] in SCALES else row["scale"]
    plural = "" if row["seeds"] == "1" else "s"
    seeds = f"{row['seeds']} seed{plural}" if row["seeds"][-1:].isdigit() else row["seeds"]
    where = ", ".join(filter(None, (scale, seeds)))
    name, claim = row["artifact"], row["the paper's claim"]
    link = f"[{name}](../results/README.md#{name.lower()})"
    return (
        f"**{link}: {row['holds']}**{f' ({where})' if where else ''}. Claim: {claim} "
        f"Paper: {row['paper']}. Ours: {row['ours'] or 'nothing yet'}."
    )


def paragraphs(page: str) -> list[tuple[str, str, str]]:
    """Of each bold line: its part of the page, the line, and the prose up to the next one."""
    found = []
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        for paragraph in re.split(r"^(?=\*\*\[)", text, flags=re.MULTILINE)[1:]:
            line, _, prose = paragraph.partition("\n\n")
            found.append((title, line, prose))
    return found


@pytest.mark.parametrize(
    "artifact", [name for name, row in CLAIMS.items() if row["the paper's claim"] != NO_CLAIM]
)
def test_what_we_found_on_a_claim_is_its_row(artifact):
    """A new verdict may need new prose: nobody but a reader can tell, so the line is not drawn."""
    row = CLAIMS[artifact]
    lines = [
        (part, line) for part, line, _ in paragraphs(FOUND) if line.startswith(f"**[{artifact}](")
    ]
    assert [line for _, line in lines] == [claim_line(row)], (
        f"docs/what-we-found.md: the line that begins with **[{artifact}] must be, once,\n"
        f"{claim_line(row)}\nThen read the paragraph below it again."
    )
    ((part, _),) = lines
    assert row["holds"] in PARTS[part], (
        f'docs/what-we-found.md: "{artifact}: {row["holds"]}" does not belong below "## {part}": '
        "move its line and paragraph, and read them again."
    )


@pytest.mark.parametrize(("line", "prose"), [(line, prose) for _, line, prose in paragraphs(FOUND)])
def test_what_we_found_quotes_only_numbers_of_the_tables(line, prose):
    """Every number with decimals is in a table that the paragraph names; hours are of the costs."""
    anchors = re.findall(r"results/README\.md#(\w+)", line + prose)
    named = {name for name in CLAIMS if name.lower() in anchors}
    files = [path for name in named for path in (RESULTS / "tables").glob(f"{name}-*.md")]
    known = set(NUMBER.findall(" ".join([line, *(path.read_text() for path in files)])))
    quoted = set(NUMBER.findall(re.sub(r"[\d.]+ H100-hours", "", prose)))
    assert quoted <= known, (
        f"docs/what-we-found.md, below {line[:40]}…: no table of {', '.join(sorted(named))} has "
        f"{', '.join(sorted(quoted - known))}: read the table and correct the paragraph."
    )
    commands = re.findall(r"`(python -m tape_exp\.[^`]+)`", prose)
    assert commands, f"docs/what-we-found.md, below {line[:40]}…: name the run that would settle it"
    runs = [words_of(command, 4) for command in commands if " run " in command]
    artifacts = [artifact for words in runs for artifact in requested(words)[0]]
    prices = {a.name: costs.read(RESULTS)["artifacts"][a.name]["gpu_hours"] for a in artifacts}
    for hours in re.findall(r"([\d.]+) H100-hours", prose):
        assert float(hours) in prices.values(), (
            f"{line[:40]}… {hours}: results/costs.json: {prices}"
        )


def test_longer_words_of_state_tracking_are_those_of_the_records():
    lines = [line for line in DOCS["state-tracking.md"].splitlines() if " letters" in line]
    (head,) = [line for line in lines if line.startswith("|")]
    lengths = [int(number) for number in re.findall(r"(\d+) letters", head)]
    runs = artifacts.load("fig_word_groups").collect("smoke", read_records())
    for model in ("tape_householder", "path"):
        seeds = runs[f"{model}/s5"]
        shown = [
            ", ".join(f"{run['metrics'][f'test/word@{length}']:.1f}" for run in seeds)
            for length in lengths
        ]
        (row,) = re.findall(rf"^\| `{model}` .*$", DOCS["state-tracking.md"], re.MULTILINE)
        assert [cell.strip() for cell in row.split("|")[2:-1]] == shown
        assert {run["metrics"]["test/word@32"] for run in seeds} == {100.0}


def test_prompts_of_the_battery_are_those_of_the_records():
    """The shares of ``multi_key`` that the page quotes of each seed, at the chosen rates."""
    search = json.loads((RESULTS / "bench" / "quick-smoke-search.json").read_text())
    tried = search["tasks"]["multi_key"]
    page = re.sub(r"\s+", " ", DOCS["battery.md"])
    found = {}
    for run in read_records(RESULTS / "bench" / "records"):
        model, task = run["config"]["model"]["name"], run["config"]["task"]
        if task["name"] == "retrieval_training" and task["optim"]["lr"] == tried[model]["chosen"]:
            found[model, run["seed"]] = run["metrics"]["retrieval/accuracy@256"]
    for model, verb in {"nope": " solves", "fire": "", "rope": "", "alibi": ""}.items():
        shares = "{:.0f}, {:.0f} and {:.0f} %".format(*(found[model, seed] for seed in range(3)))
        with_seeds = shares + " with seeds 0, 1 and 2" if verb else shares
        assert f"{display_name(model)}{verb} {with_seeds}" in page
