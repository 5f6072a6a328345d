"""Packages of other authors: how their encodings and tasks come in, and what a run says of them."""

import importlib
import json
import re
import sys
from contextlib import nullcontext

import pytest
from lightning import Callback
from lightning.pytorch.callbacks import LambdaCallback
from omegaconf import OmegaConf

from tape_exp import check, library
from tape_exp.artifacts import __main__ as compare
from tape_exp.experiments import local
from tape_exp.models.conformance import SITUATIONS, outcome_of, random_decoder
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name
from tape_exp.settings.schema import Arch
from tape_exp.training.loaded_run import load
from tape_exp.training.run import run
from tests.artifacts.fakes import train_here

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
    assert "soft_window" in plugins.names_in("model")
    assert len(compose_config(["model=[soft_window,nope]", *words]).model.layers) == 2
    with pytest.raises(ConfigError, match=r"model\.slop is not known\. Did you mean 'model.slope'"):
        compose_config(["model=soft_window", "model.slop=1", *words])


@pytest.mark.parametrize(
    ("yaml", "lacks"), [("# display: Steep\n", "is empty"), ("slope: 1\n", "has no name")]
)
def test_a_yaml_that_lacks_its_name_is_told_with_its_path(site, yaml, lacks):
    put(site, {"conf/model/steep.yaml": yaml})
    with pytest.raises(ConfigError, match=rf"conf/model/steep\.yaml {lacks}: write name: steep"):
        compose_config(["model=steep", SEARCHED.replace("my_pe", "theirs")])


@pytest.mark.slow
def test_the_example_does_what_every_encoding_must(site):
    example(site)
    section = OmegaConf.to_container(compose_config(["model=soft_window"]).model)
    for situation in SITUATIONS:
        outcome = outcome_of(situation, section)
        assert outcome.allowed is None or outcome.difference < outcome.allowed, situation


@pytest.mark.long
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
    monkeypatch.setattr("tape_exp.settings.choices.packages", plugins.packages)
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


def test_sources_are_the_files_of_the_classes_that_a_config_names(site):
    put(site, {"one.py": "class A: pass", "two.py": "class B: pass"})
    layers = [{"_target_": "theirs.one.A"}, {"_target_": "theirs.two.B", "name": "b"}]
    found = plugins.sources_of([{"layers": layers}, {"_target_": "nowhere.at.all.C"}])
    assert list(found) == ["theirs.one", "theirs.two"]
    assert plugins.changed_sources(found) == []
    (site / "theirs" / "one.py").write_text("class A: 'edited'")
    assert plugins.changed_sources(found) == ["one.py"]
    (site / "theirs" / "two.py").unlink()
    assert plugins.changed_sources(found) == ["one.py"], "what is gone tells nothing"
    assert plugins.changed_sources({}) == []


class StopAt(Callback):
    """A run that fails at a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise RuntimeError("stopped")


RIPPLE = """
from tape_exp.models.positions.rope import RoPE
class Ripple(RoPE): pass
"""
TOLD = "began with another version of ripple.py; rerun=true runs it anew."


@pytest.fixture
def ripple(site):
    """Runs of an encoding of one's own: a function that trains it and returns its record and the
    first and last step that were trained, and one that edits its file.
    """
    yaml = "name: ripple\n_target_: theirs.ripple.Ripple\n"
    put(site, {"conf/model/ripple.yaml": yaml, "ripple.py": RIPPLE})
    words = ["hydra.searchpath=[pkg://theirs.conf]", "model=ripple", *SMALL[1:], f"runs={site}/r"]
    words += ["task.optim.max_steps=4", "trainer.checkpoint_every=1", "trainer.log_every=1"]

    def train(*further, stop=None):
        cfg = compose_config([*words, *further])
        directory, seen = RunDirectory(cfg), []
        watch = LambdaCallback(on_train_batch_end=lambda trainer, *_: seen.append(0))
        stops = [] if stop is None else [StopAt(stop)]
        with nullcontext() if stop is None else pytest.raises(RuntimeError, match="stopped"):
            record = run(cfg, [watch, *stops])
        return directory, record if stop is None else None, len(seen)

    def edit():
        with (site / "theirs" / "ripple.py").open("a") as file:
            file.write("# another version\n")

    return train, edit


@pytest.mark.long
def test_a_finished_run_of_an_edited_encoding_says_so_and_is_made_anew_by_a_word(ripple, capsys):
    train, edit = ripple
    directory, record, steps = train()
    assert (steps, list(record["sources"])) == (
        4,
        ["tape_exp.tasks.arithmetic", "theirs.ripple"],
    )
    assert "rerun" not in record
    left = directory.artifacts / "left.txt"
    left.touch()
    assert train()[1:] == (record, 0)
    assert TOLD not in capsys.readouterr().out
    edit()
    assert train()[1:] == (record, 0)
    assert TOLD in capsys.readouterr().out
    again, new, steps = train("rerun=true")
    assert (again.path, steps) == (directory.path, 4)
    assert new["sources"] != record["sources"]
    assert new["config_hash"] == record["config_hash"]
    assert not left.exists()
    assert len(read_metrics(directory.metrics)) == len({*map(str, read_metrics(directory.metrics))})
    assert train()[1:] == (new, 0)
    assert TOLD not in capsys.readouterr().out
    assert train("rerun=true")[2] == 4, "whenever one asks for it"


@pytest.mark.long
def test_an_unfinished_run_of_an_edited_encoding_goes_on_or_begins_anew(ripple, capsys):
    train, edit = ripple
    train(stop=2)
    edit()
    train(stop=3)
    assert TOLD in capsys.readouterr().out
    assert train("rerun=true", stop=2)[2] == 2, "from the first step"
    assert train("rerun=true", stop=3)[2] == 2, "after its checkpoint, as a job that is requeued"
    edit()
    assert train("rerun=true")[2] == 4
    assert TOLD not in capsys.readouterr().out


@pytest.mark.slow
def test_weights_that_an_edited_encoding_reads_are_told(ripple, caplog):
    train, edit = ripple
    directory, _, _ = train()
    load(directory.path)
    assert "another version" not in caplog.text
    edit()
    load(directory.path)
    assert "trained with another version of ripple.py." in caplog.text


@pytest.mark.slow
def test_records_that_say_nothing_of_their_files_are_told_of_nothing(ripple, capsys):
    train, edit = ripple
    directory, record, _ = train()
    older = {key: record[key] for key in record if key != "sources"}
    (directory.path / "record.json").write_text(json.dumps(older))
    edit()
    assert train()[1:] == (older, 0)
    assert "another version" not in capsys.readouterr().out


@pytest.mark.long
def test_a_comparison_tells_of_edited_encodings_and_makes_their_runs_anew(
    site, ripple, capsys, monkeypatch
):
    monkeypatch.setattr(local, "start", train_here)
    _, edit = ripple
    words = ["hydra.searchpath=[pkg://theirs.conf]", "task=arithmetic", "model=ripple,rope"]
    command = [*words, *SMALL[1:], f"runs={site}/c", "metrics=val/loss"]
    assert compare.main(command) == 0
    edit()
    monkeypatch.setattr(local, "start", None)  # nothing runs again
    assert compare.main(command) == 0
    told = "1 of 2 runs are recorded with another version of ripple.py."
    assert told in capsys.readouterr().err
    monkeypatch.setattr(local, "start", train_here)
    assert compare.main([*command, "rerun=true"]) == 0
    monkeypatch.setattr(local, "start", None)
    assert compare.main(command) == 0
    assert capsys.readouterr().err == ""
