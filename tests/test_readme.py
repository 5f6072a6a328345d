"""README and docs/: links lead somewhere, commands exist and compose, numbers are the records'."""

import csv
import importlib.util
import re
import shlex
import shutil
import subprocess

import pytest
import torch
from omegaconf import OmegaConf

from tape_exp.__main__ import COMMANDS
from tape_exp.launch import grid
from tape_exp.paper import __main__ as paper
from tape_exp.paper import compare, runner
from tape_exp.paper.words import requested as of_artifacts
from tape_exp.settings import compose, folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.folders import CONF, ROOT
from tape_exp.tune.search import search_from
from tests.conftest import make_decoder

PAGES = {path: path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
README = PAGES[ROOT / "README.md"]


def blocks(language: str, page: str = README) -> list[str]:
    """The contents of the fenced blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [content for kind, content in fenced if kind == language]


def files_of(page: str) -> dict[str, str]:
    """The files that a page says to write: path -> content of the block that follows it."""
    found = re.findall(r"`([\w/.]+)`:\n\n```(?:python|yaml)\n(.*?)```\n", page, re.DOTALL)
    return dict(found)


def commands(start: str) -> list[str]:
    """The lines of all bash blocks that begin so."""
    lines = (
        line
        for page in PAGES.values()
        for block in blocks("bash", page)
        for line in block.splitlines()
    )
    return list(dict.fromkeys(line for line in lines if line.startswith(start)))


GRIDS = [*commands("tape-exp sweep"), *commands("tape-exp status")]
TRAIN = [*commands("tape-exp train"), *commands("tape-exp plan"), *commands("tape-exp check")]
TUNE = commands("tape-exp tune")
PAPER = [*commands("tape-exp paper"), *commands("python -m tape_exp.paper")]


def words_of(line: str, first: int) -> list[str]:
    """The words of a command from one on, without options and their values."""
    words = iter(shlex.split(line, comments=True)[first:])
    plain = []
    for word in words:
        if word in ("--cap", "--cores", "--minutes", "--mode"):
            next(words)
        elif not word.startswith("-"):
            plain.append(word)
    return [word for word in plain if word != "job"]  # of --cfg


@pytest.fixture(scope="module")
def conf_with_toys(tmp_path_factory):
    """conf/ with the YAMLs that the walk-throughs add."""
    conf = tmp_path_factory.mktemp("project") / "conf"
    shutil.copytree(CONF, conf)
    for page in PAGES.values():
        for path, content in files_of(page).items():
            if path.startswith("conf/"):
                (conf.parent / path).write_text(content)
    return conf


@pytest.fixture
def conf(conf_with_toys, composed_anew, monkeypatch):
    for module in (folders, grid):
        monkeypatch.setattr(module, "CONF", conf_with_toys)
    package = ROOT / "examples" / "my_pe" / "my_pe"
    monkeypatch.syspath_prepend(package.parent)
    for module in (plugins, compose):
        monkeypatch.setattr(module, "packages", lambda: {"my_pe": package})
    return conf_with_toys


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pictures_and_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", PAGES[path]):
        there = path.parent / target if target else path
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
            ], anchor


def test_make_targets_exist():
    words = ["make", "help"]
    described = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for page in PAGES.values():
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE):
            assert target == "help" or f"make {target} " in described, target


def test_commands_and_modules_exist():
    for line in commands("tape-exp "):
        assert line.split()[1] in (*COMMANDS, "--help"), line
    for line in commands("python -m "):
        assert importlib.util.find_spec(line.split()[2]), line


@pytest.mark.parametrize("line", [*commands("python train.py"), *TRAIN])
def test_train_commands_compose(line, conf):
    words = [word for word in words_of(line, 2) if not word.startswith("hydra")]
    cfg = compose_config([w if "[" in w else w.split(",")[0] for w in words])
    for word in words:
        group, choices = word.split("=")
        for choice in choices.split(","):
            key = group.removeprefix("+")
            assert plugins.yaml_of(key, choice) or OmegaConf.select(cfg, key) is not None


@pytest.mark.parametrize("line", TUNE)
def test_searches_can_run(line, conf):
    search = search_from([word for word in words_of(line, 2) if not word.isdigit()])
    assert search.space
    search.check()


@pytest.mark.parametrize("line", GRIDS)
def test_sweeps_name_runs(line, conf):
    """Of a grid the first choice of every comma, of artifacts all."""
    words = words_of(line, 2)
    if any("=" not in word for word in words):
        assert of_artifacts([word for word in words if not word.startswith("slurm.")])[0]
    elif words:  # without words: every sweep
        assert grid.jobs_of([word.split(",")[0] for word in words])


@pytest.mark.parametrize("line", PAPER)
def test_commands_on_artifacts_name_runs(line, conf):
    first = 3 if line.startswith("python") else 2
    verb, words = line.split()[first], words_of(line, first + 1)
    if verb == "compare":
        artifact, scale, seeds = compare.requested(words)
        jobs = runner.jobs_of([artifact], scale, seeds, records=[])
        assert len(jobs) >= len(artifact.rows["model"]) * len(seeds)
    elif verb == "run":
        assert of_artifacts(words)[0]
    else:
        assert verb in paper.COMMANDS


def test_what_readme_prints_has_the_columns_of_its_command(tmp_path, monkeypatch, capsys):
    """The command with one step: the numbers are those of another machine's longer training."""
    (line,) = commands("tape-exp paper compare task=battery task.problem=sort")[:1]
    assert line in README
    monkeypatch.chdir(tmp_path)
    words = line.replace("max_steps=400", "max_steps=1").split()[2:]
    assert paper.main([*words, "task.samples_per_length=2", "trainer=cpu"]) == 0
    (shown,) = blocks("text")
    head, *_ = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| model")]
    assert re.split(r"\s*\|\s*", head) == re.split(r"\s*\|\s*", shown.splitlines()[0])


def test_numbers_below_the_figure_are_those_of_its_table():
    with (ROOT / "results" / "tables" / "fig_addition-smoke.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert {row["seeds"] for row in rows.values()} == {"3"}
    shown = re.findall(r"([\d.]+) %", README.partition("fig_addition-smoke.svg")[2])
    models = ("randpe", "fire", "nope", "rope", "tape")
    assert shown == [f"{float(rows[model]['out of distribution']):.2f}" for model in models]


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_scale_table_is_true(scale):
    task = build(compose_config([f"scale={scale}"]).task, "task", seed=0)
    with torch.device("meta"):
        millions = make_decoder("rope", task.arch).parameter_count() / 1e6
    page = PAGES[ROOT / "docs" / "concepts.md"]
    (shown,) = re.findall(rf"^\| `{scale}`.*?([\d.]+) M parameters", page, re.MULTILINE)
    assert float(shown) == pytest.approx(millions, rel=0.02)
