"""What README and docs/ say: the map is complete, links work, commands exist and compose."""

import csv
import importlib.util
import re
import shlex
import shutil
import subprocess

import pytest
from omegaconf import OmegaConf

from tape_exp.__main__ import COMMANDS
from tape_exp.launch import grid
from tape_exp.paper import compare, runner
from tape_exp.paper.words import requested as of_artifacts
from tape_exp.settings import compose, folders, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import CONF, ROOT
from tape_exp.tune.search import search_from

README = (ROOT / "README.md").read_text()
PAGES = {
    path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}


def blocks(language: str, page: str = README) -> list[str]:
    """The contents of the fenced blocks of a language."""
    contents, inside, content = [], None, ""
    for line in page.splitlines(keepends=True):
        if line.startswith("```"):
            if inside == language:
                contents.append(content)
            inside, content = (line[3:].strip() if inside is None else None), ""
        else:
            content += line
    return contents


def files_of(page: str) -> dict[str, str]:
    """The files that a page says to write: path -> content of the block that follows it."""
    return {
        path: content
        for path, _, content in re.findall(
            r"`([\w/.]+)`:\n\n```(python|yaml)\n(.*?)```\n", page, re.DOTALL
        )
    }


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
TRAIN = [*commands("tape-exp train"), *commands("tape-exp check")]
TUNE = commands("tape-exp tune")
PAPER = [*commands("tape-exp paper"), *commands("python -m tape_exp.paper")]


def words_of(line: str, first: int) -> list[str]:
    """The words of a command from one on, without options and their values."""
    words = iter(shlex.split(line, comments=True)[first:])
    plain = []
    for word in words:
        if word in ("--cap", "--cores", "--minutes", "--mode"):
            next(words)
        elif not word.startswith("--"):
            plain.append(word)
    return plain


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


def test_readme_fits_a_few_screens():
    assert len(README.splitlines()) <= 180


def test_architecture_names_every_folder_and_no_other():
    folders = set()
    for top in ("tape_exp", "conf"):
        folders |= {
            f"{path.relative_to(ROOT)}/"
            for path in (ROOT / top).rglob("*")
            if path.is_dir() and path.name != "__pycache__"
        }
    page = PAGES[ROOT / "docs" / "architecture.md"]
    rows = re.findall(r"^\| `((?:tape_exp|conf)/[\w/]*)` +\| \S", page, re.MULTILINE)
    assert sorted(rows) == sorted(folders)


def test_architecture_names_paths_and_commands_that_exist():
    page = PAGES[ROOT / "docs" / "architecture.md"]
    around = page.partition("## Around the package")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w.-]+[/.][\w./-]*|Makefile)`", around)
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path
    for module in re.findall(r"`python -m ([\w.]+)", page):
        assert importlib.util.find_spec(module), module


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


def test_every_page_of_docs_is_named_in_readme():
    for path in PAGES:
        assert path.name == "README.md" or f"](docs/{path.name})" in README


def test_make_targets_exist():
    help_text = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for page in PAGES.values():
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE):
            assert target == "help" or f"make {target} " in help_text, target
    for target in ("setup", "demo", "test", "slurm-test", "lint", "tables", "gpu", "clean"):
        assert re.search(rf"make {target} +\S", help_text), f"{target} does not describe itself"


def test_commands_of_the_package_exist():
    for line in commands("tape-exp "):
        assert line.split()[1] in (*COMMANDS, "--help"), line
        assert line in (*GRIDS, *PAPER, *TRAIN, *TUNE, *commands("tape-exp --help")), line


def test_modules_of_commands_exist():
    for line in commands("python -m tape_exp"):
        assert importlib.util.find_spec(line.split()[2]), line


@pytest.mark.parametrize("line", [*commands("python train.py"), *TRAIN])
def test_train_commands_compose(line, conf):
    words = [w for w in words_of(line, 2) if w != "-m" and not w.startswith("hydra/")]
    cfg = compose_config([w if "[" in w else w.split(",")[0] for w in words])
    for word in words:
        group, choices = word.split("=")
        for choice in choices.split(","):
            key = group.removeprefix("+")
            assert plugins.yaml_of(key, choice) or OmegaConf.select(cfg, key) is not None


@pytest.mark.parametrize("line", TUNE)
def test_searches_can_run(line, conf):
    options = ("--minutes", "--cores")
    words = [word for word in words_of(line, 2) if not word.isdigit() and word not in options]
    search = search_from(words)
    assert search.space
    search.check()


@pytest.mark.parametrize("line", [*GRIDS, *PAPER])
def test_commands_on_grids_and_artifacts_name_runs(line, conf):
    """The first run of each artifact; of a grid the first choice of every comma."""
    rest = line.replace("tape-exp ", "python -m ", 1).split()[3:]
    words = words_of(line, len(line.split()) - len(rest) + (line in PAPER))
    if line in PAPER and rest[0] == "compare":
        artifact, scale, seeds = compare.requested(words)
        jobs = runner.jobs_of([artifact], scale, seeds, records=[])
        assert len(jobs) >= len(artifact.rows["model"]) * len(seeds)
    elif words and all("=" in word for word in words):
        assert grid.jobs_of([word.split(",")[0] for word in words])
    elif words:
        assert of_artifacts(words)[0]
    else:
        assert rest == [] or rest[0] in ("list", "render", "cost") or rest[0].startswith("#"), line


def test_results_at_a_glance_are_the_claims():
    with (ROOT / "results" / "tables" / "claims.csv").open() as file:
        claims = {row["artifact"]: row for row in csv.DictReader(file)}
    rows = re.findall(
        r"^\| \[(\w+)\]\(results/README\.md\) +\| (.+?) +\| (.+?) +\| (.+?) +\|$",
        README,
        re.MULTILINE,
    )
    assert len(rows) > 5
    measured = {
        "smoke": "scale smoke",
        "ladder": "a ladder of scales",
        "": "a count at the paper's size",
        "on a GPU": "training steps on a GPU",
    }
    for artifact, claim, holds, at in rows:
        known = claims[artifact]
        assert [claim, holds] == [known["the paper's claim"], known["holds"]], (
            f"{artifact}: copy its row from claims.csv"
        )
        assert at == measured[known["scale"]], f"{artifact}: its scale is {known['scale']}"


def test_numbers_below_the_figure_are_those_of_its_table():
    with (ROOT / "results" / "tables" / "fig_addition-smoke.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert {row["seeds"] for row in rows.values()} == {"3"}
    caption = README.partition("fig_addition-smoke.svg")[2].partition("## ")[0]
    shown = re.findall(r"([\d.]+) %", caption)
    models = ("randpe", "fire", "nope", "rope", "tape")
    numbers = [float(rows[model]["out of distribution"]) for model in models]
    assert shown == [f"{number:.2f}" for number in numbers]


def test_scale_table_is_true():
    from tape_exp.settings.construct import build
    from tests.conftest import make_decoder

    for scale in ("smoke", "small", "paper"):
        import torch

        task = build(compose_config([f"scale={scale}"]).task, "task", seed=0)
        with torch.device("meta"):
            millions = make_decoder("rope", task.arch).parameter_count() / 1e6
        row = next(line for line in README.splitlines() if line.startswith(f"| `{scale}`"))
        shown = float(re.search(r"([\d.]+) M parameters", row).group(1))
        assert shown == pytest.approx(millions, rel=0.02), scale
