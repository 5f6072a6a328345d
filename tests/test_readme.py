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
from tape_exp.artifacts import __main__ as compare
from tape_exp.artifacts import comparison, runs
from tape_exp.artifacts.requests import requested as of_artifacts
from tape_exp.artifacts.requests import specs_of_words
from tape_exp.experiments import grid, local
from tape_exp.paper import __main__ as paper
from tape_exp.settings import choices, folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.folders import CONF, ROOT
from tape_exp.tune.__main__ import options_of
from tape_exp.tune.search import search_from
from tests.artifacts.fakes import train_here
from tests.conftest import make_decoder

PAGES = {path: path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
README = PAGES[ROOT / "README.md"]


def blocks(language: str, page: str = README) -> list[str]:
    """The contents of the fenced blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [content for kind, content in fenced if kind == language]


def files_of(page: str) -> dict[str, str]:
    """The files that a page says to write: path -> content of the block that follows it."""
    return dict(re.findall(r"`([\w/.]+)`:\n\n```(?:python|yaml)\n(.*?)```\n", page, re.DOTALL))


def commands(start: str) -> list[str]:
    """The lines of all bash blocks that begin so."""
    lines = "".join(block for page in PAGES.values() for block in blocks("bash", page)).splitlines()
    return list(dict.fromkeys(line for line in lines if line.startswith(start)))


GRIDS = [line for verb in ("sweep", "status", "collect") for line in commands(f"tape-exp {verb}")]
TRAIN = [*commands("tape-exp train"), *commands("tape-exp plan"), *commands("tape-exp check")]
TUNE = commands("tape-exp tune")
PAPER = [*commands("tape-exp paper"), *commands("python -m tape_exp.paper")]
PAPER += [line.replace("tape-exp", "tape-exp paper", 1) for line in commands("tape-exp compare")]


def words_of(line: str) -> list[str]:
    """The words of a command after its name, without options and their values."""
    named = line.replace("python -m tape_exp.", "tape-exp ")
    options = "cap|cores|minutes|cfg|metrics|tasks|rates|after"
    bare = re.sub(rf" --({options}) \S+| --?\w[\w-]*", "", named)
    return shlex.split(bare, comments=True)[2:]


@pytest.fixture(scope="module")
def conf_with_toys(tmp_path_factory):
    """conf/ with the YAMLs that the walk-throughs add."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(CONF, project / "conf")
    for path, content in files_of("".join(PAGES.values())).items():
        if path.startswith("conf/"):
            (project / path).write_text(content)
    return project / "conf"


@pytest.fixture
def conf(conf_with_toys, composed_anew, monkeypatch):
    """These are the configs, and the example's package is installed."""
    package = ROOT / "examples" / "my_pe" / "my_pe"
    monkeypatch.syspath_prepend(package.parent)
    for module in (folders, grid):
        monkeypatch.setattr(module, "CONF", conf_with_toys)
    for module in (plugins, choices):
        monkeypatch.setattr(module, "packages", lambda: {"my_pe": package})
    return conf_with_toys


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pictures_and_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", PAGES[path]):
        there = path.parent / target if target else path
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text().lower(), re.MULTILINE)
            known = [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles]
            assert anchor in known, anchor


def test_make_targets_exist():
    described = subprocess.check_output(["make", "help"], cwd=ROOT, text=True)
    for target in re.findall(r"(?:`|^)make ([a-z0-9-]+)", "\n".join(PAGES.values()), re.MULTILINE):
        assert f"make {target} " in described, target


def test_commands_and_modules_exist():
    for line in commands("tape-exp "):
        assert line.split()[1] in (*COMMANDS, "--help"), line
    for line in commands("python -m "):
        assert importlib.util.find_spec(line.split()[2]), line


@pytest.mark.slow
@pytest.mark.parametrize("line", [*commands("python train.py"), *TRAIN])
def test_train_commands_compose(line, conf):
    words = [word for word in words_of(line) if not word.startswith("hydra")]
    cfg = compose_config([w if "[" in w else w.split(",")[0] for w in words])
    for word in words:
        group, choices = word.split("=")
        for choice in choices.split(","):
            key = group.removeprefix("+")
            assert plugins.yaml_of(key, choice) or OmegaConf.select(cfg, key) is not None


@pytest.mark.parametrize("line", TUNE)
def test_searches_can_run(line, conf):
    search = search_from(options_of(shlex.split(line, comments=True)[2:]))
    assert search.space
    search.check()


@pytest.mark.parametrize("line", GRIDS)
def test_sweeps_name_runs(line, conf):
    """Of a grid the first choice of every comma, of artifacts all."""
    words = words_of(line)
    if any("=" not in word for word in words):
        assert of_artifacts([word for word in words if not word.startswith("slurm.")])[0]
    elif words:  # without words: every sweep
        assert specs_of_words([word.split(",")[0] for word in words])


@pytest.mark.long
@pytest.mark.parametrize("line", PAPER)
def test_commands_on_artifacts_name_runs(line, conf):
    verb, *words = words_of(line)
    if verb == "compare":
        artifact, scale, seeds = comparison.requested(words)
        jobs = runs.specs_of_artifacts([artifact], scale, seeds, records=[])
        assert len(jobs) >= len(artifact.rows[0].dimensions["model"]) * len(seeds)
    elif verb == "run":
        assert of_artifacts(words)[0]
    else:
        assert verb in paper.COMMANDS


@pytest.mark.slow
def test_what_readme_prints_has_the_columns_of_its_command(tmp_path, monkeypatch, capsys):
    """The command with one model and step: the numbers are of another machine's longer training."""
    (line,) = re.findall(r"^tape-exp compare .*$", README, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    words = line.replace("max_steps=400", "max_steps=1").replace("rope,alibi,", "").split()[2:]
    monkeypatch.setattr(local, "start", train_here)
    assert compare.main([*words, "task.samples_per_length=2", "trainer=cpu"]) == 0
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
