"""Packages of other authors: how their encodings and tasks come in, and what a run says of them."""

import importlib
import re
import sys

import pytest
from omegaconf import OmegaConf

from tape_exp import check, library
from tape_exp.models.conformance import SITUATIONS, outcome_of, random_decoder
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name
from tape_exp.settings.schema import Arch
from tape_exp.training.run import run

EXAMPLE = ROOT / "examples" / "my_pe"
SEARCHED = "hydra.searchpath=[pkg://my_pe.conf]"
SMALL = ["model=soft_window", "logger=none", "trainer=cpu"]
SMALL += ["task.arch.layers=1", "task.optim.max_steps=2", "task.samples_per_cell=1"]
SMALL += ["task.arch.width=16", "task.optim.batch=4"]


@pytest.fixture
def site(composed_anew, tmp_path, monkeypatch):
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_pe", "theirs")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def example(site, entry_point=True):
    """The package of examples/, with what pip would write beside it."""
    (site / "my_pe").symlink_to(EXAMPLE / "my_pe")
    if entry_point:
        info = site / "my_pe-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-pe\nVersion: 0.1.0\n")
        (info / "top_level.txt").write_text("my_pe\n")
        project = (EXAMPLE / "pyproject.toml").read_text()
        group, line = re.search(r'entry-points."(.+)"\]\n(.+)\n', project).groups()
        (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")


def put(site, files):
    """A package ``theirs`` with files."""
    for name, text in {"__init__.py": "", "conf/__init__.py": "", **files}.items():
        path = site / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(("entry_point", "words"), [(True, []), (False, [SEARCHED])])
def test_a_package_comes_in_by_its_entry_point_or_by_hydras_search_path(site, entry_point, words):
    example(site, entry_point)
    cfg = compose_config(["model=soft_window", "model.slope=0.2", *words])
    encoding = build(cfg.model, "model", arch=Arch(layers=1, width=8, heads=2, ffn=8))
    assert type(encoding).__module__ == "my_pe.soft_window"
    assert encoding.slope.flatten().tolist() == pytest.approx([0.2, 0.2])
    section = OmegaConf.to_container(cfg.model)
    begun = random_decoder(section, std=0).blocks()[1].position
    assert begun.slope.flatten().tolist() == pytest.approx([0.2] * 4)
    assert begun.width.flatten().tolist() == [4.0] * 4
    for situation in SITUATIONS:
        outcome = outcome_of(situation, section)
        assert outcome.allowed is None or outcome.difference < outcome.allowed, situation
    assert "soft_window" in plugins.names_in("model")
    assert len(compose_config(["model=[soft_window,nope]", *words]).model.layers) == 2
    with pytest.raises(ConfigError, match=r"model\.slop is not known\. Did you mean 'model.slope'"):
        compose_config(["model=soft_window", "model.slop=1", *words])


@pytest.mark.slow
def test_the_check_of_a_package_names_it_with_its_version_if_it_has_one(site, capsys):
    yaml = "# display: Their RoPE\ndefaults: [rope, _self_]\nname: their_rope\n"
    put(site, {"conf/model/their_rope.yaml": yaml})
    (site / "theirs" / "encoding.py").write_text(
        "from tape_exp.models.positions.rope import RoPE\nclass Theirs(RoPE): pass\n"
    )
    put(site, {"conf/model/steep.yaml": "defaults: [rope]\n"})
    with pytest.raises(ConfigError, match="holds name: rope; write name: steep"):
        compose_config(["model=steep", SEARCHED.replace("my_pe", "theirs")])
    words = ["model=their_rope", "model._target_=theirs.encoding.Theirs"]
    assert check.main([*words, "hydra.searchpath=[pkg://theirs.conf]"]) == 0
    assert "theirs.encoding.Theirs, of the package theirs\n" in capsys.readouterr().out
    assert display_name("their_rope") == "Their RoPE"


@pytest.mark.slow
def test_a_run_says_which_package_it_had(site):
    example(site)
    record = run(compose_config(SMALL))
    sources = record["plugins"]["my_pe"]["sources"]
    assert record["plugins"] == {"my_pe": {"version": "0.1.0", "sources": sources}}
    assert re.fullmatch(r"[0-9a-f]{10}", sources)
    (folder,) = site.glob("runs/*/*/soft_window/*")
    assert len(library.load(folder).attention("1+1=")) == 1


@pytest.mark.slow
def test_the_hash_of_a_package_is_that_of_its_files(site):
    put(site, {"encoding.py": "class Theirs: pass\n"})
    model = {"_target_": "theirs.encoding.Theirs"}
    before = plugins.versions_of({"model": {"layers": [model]}})
    assert before["theirs"]["version"] is None
    (site / "theirs" / ".#encoding.py").symlink_to("user@host.1:2")  # an editor's lock
    assert plugins.versions_of(model) == before
    (site / "theirs" / "encoding.py").write_text("class Theirs: size = 1\n")
    assert plugins.versions_of(model)["theirs"]["sources"] != before["theirs"]["sources"]
    assert plugins.versions_of({"_target_": "tape_exp.models.positions.nope.NoPE"}) == {}


def test_a_yaml_may_begin_with_one_of_ours(site, monkeypatch):
    put(site, {"conf/model/wider.yaml": "defaults: [fire, _self_]\nname: wider\nhidden: 64\n"})
    monkeypatch.setattr(plugins, "packages", lambda: {"theirs": site / "theirs"})
    monkeypatch.setattr("tape_exp.settings.compose.packages", plugins.packages)
    cfg = compose_config(["model=[wider,nope]"])
    assert cfg.model.layers[0].hidden == 64
    assert compose_config(["model=wider"]).model._target_.endswith("FIRE")


def test_a_package_may_bring_a_task(site):
    page = (ROOT / "docs" / "add-a-task.md").read_text()
    code, yaml = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "yaml")
    )
    yaml = yaml.replace("tape_exp.tasks.reverse", "theirs.reverse")
    put(site, {"reverse.py": code, "conf/task/reverse.yaml": yaml})
    cfg = compose_config(["task=reverse", "hydra.searchpath=[pkg://theirs.conf]"])
    task = build(OmegaConf.to_container(cfg.task, resolve=True), "task", seed=0)
    assert task.train_batch(0, 4)["inputs"].shape == (4, 9)
