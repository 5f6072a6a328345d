"""Packages of other authors: when they are known, what they may bring, and what a run says of
them.
"""

import importlib
import re
import sys

import pytest
from omegaconf import OmegaConf

from tape_exp import export, library
from tape_exp.paper import artifacts
from tape_exp.report import __main__ as report
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.identity import identity_of
from tape_exp.settings import plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.schema import Arch
from tape_exp.training.run import run

EXAMPLE = ROOT / "examples" / "my_pe"
DOCS = (ROOT / "docs" / "add-a-task.md").read_text()


@pytest.fixture
def site(composed_anew, tmp_path, monkeypatch):
    """A folder that Python imports from; nothing is known before and after."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_named", {})
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_pe", "theirs")]:
        del sys.modules[name]
    monkeypatch.undo()
    importlib.invalidate_caches()


def put(site, files, package="theirs"):
    """A package with files, and an __init__.py."""
    for name, text in {"__init__.py": "", **files}.items():
        path = site / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def example(site, entry_point):
    """The package of examples/, with what pip would write beside it."""
    (site / "my_pe").symlink_to(EXAMPLE / "my_pe")
    if entry_point:
        info = site / "my_pe-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-pe\nVersion: 0.1.0\n")
        (info / "top_level.txt").write_text("my_pe\n")
        group, line = re.search(
            r'entry-points."(.+)"\]\n(.+)\n', (EXAMPLE / "pyproject.toml").read_text()
        ).groups()
        (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")


ENCODING = """
from tape_exp.models.positions.nope import NoPE
class Theirs(NoPE):
    "Nothing."
class Other:
    "No encoding."
"""
YAML = "name: theirs\n_target_: theirs.encoding.Theirs\n"


@pytest.mark.parametrize(("entry_point", "words"), [(True, []), (False, ["plugins=[my_pe]"])])
def test_a_package_is_known_when_installed_or_named(site, entry_point, words):
    example(site, entry_point)
    cfg = compose_config(["model=soft_window", "model.slope=0.2", *words])
    encoding = build(cfg.model, "model", arch=Arch(layers=1, width=8, heads=2, ffn=8))
    assert type(encoding).__module__ == "my_pe.soft_window"
    assert encoding.slope.tolist() == pytest.approx([0.2, 0.2])
    assert "soft_window" in plugins.names_in("model")
    assert "plugins" not in identity_of(cfg)
    with pytest.raises(ConfigError, match=r"model\.slop is not known\. Did you mean 'model.slope'"):
        compose_config(["model=soft_window", "model.slop=1", *words])


def test_an_unknown_package_is_not_imported(site):
    example(site, entry_point=False)
    with pytest.raises(ConfigError, match="model=soft_window is not known"):
        compose_config(["model=soft_window"])
    with pytest.raises(ConfigError, match=r"install my_pe, or name it as plugins=\[my_pe\]"):
        compose_config(["model._target_=my_pe.soft_window.SoftWindow"])
    assert "my_pe" not in sys.modules


def test_a_run_says_which_package_it_had(site, tmp_path, monkeypatch, capfd):
    example(site, entry_point=True)
    monkeypatch.chdir(tmp_path)
    words = ["model=soft_window", "logger=none", "trainer=cpu", "trainer.progress=none"]
    small = ["task.arch.layers=1", "task.optim.max_steps=2", "task.samples_per_cell=1"]
    record = run(compose_config([*words, *small, "task.arch.width=16", "task.optim.batch=4"]))
    assert record["plugins"] == {
        "my_pe": {"version": "0.1.0", "sources": record["plugins"]["my_pe"]["sources"]}
    }
    assert re.fullmatch(r"[0-9a-f]{10}", record["plugins"]["my_pe"]["sources"])
    (folder,) = tmp_path.glob("runs/*/*/soft_window/*")
    monkeypatch.setattr(plugins, "_hash", lambda folder: "0123456789")
    with pytest.warns(UserWarning, match="The code of my_pe has changed since this run"):
        library.load(folder)
    capfd.readouterr()
    run(compose_config([*words, *small, "task.arch.width=16", "task.optim.batch=4"]))
    assert "Remove its folder to run it anew" in "".join(capfd.readouterr())
    made_with = record["plugins"]["my_pe"]["sources"]
    monkeypatch.setattr(plugins, "_hash", lambda folder: made_with)
    assert len(library.load(folder).attention("1+1=")) == 1


def test_a_run_that_goes_on_with_other_code_names_both(site, tmp_path, monkeypatch, capfd):
    example(site, entry_point=True)
    monkeypatch.chdir(tmp_path)
    words = ["model=soft_window", "logger=none", "trainer=cpu", "trainer.progress=none"]
    words += ["task.arch.layers=1", "task.optim.max_steps=2", "task.samples_per_cell=1"]
    words += ["task.arch.width=16", "task.optim.batch=4"]
    record = run(compose_config(words))
    (folder,) = tmp_path.glob("runs/*/*/soft_window/*")
    for leftover in ("DONE", "record.json"):
        (folder / leftover).unlink()
    monkeypatch.setattr(plugins, "_hash", lambda folder: "0123456789")
    capfd.readouterr()
    again = run(compose_config(words))
    assert "The code of my_pe has changed since this run. Its record names both" in "".join(
        capfd.readouterr()
    )
    assert again["plugins"]["my_pe"] == {**record["plugins"]["my_pe"], "later": ["0123456789"]}


def test_report_and_export_take_the_name_of_a_package(site, tiny_run, monkeypatch, capsys):
    example(site, entry_point=False)
    named = "plugins=[my_pe]"
    cfg, record = tiny_run("model=soft_window", named, steps=1)
    run, page = str(RunDirectory(cfg).path), site / "index.html"
    monkeypatch.setattr(report, "known_records", lambda: [record, {**record, "seed": 1}])
    monkeypatch.setattr(artifacts, "names", lambda: [])
    capsys.readouterr()
    monkeypatch.setattr(plugins, "_named", {})
    assert report.main(["--out", str(page)]) == 0
    told = capsys.readouterr()
    assert told.err == ("warning: 2 runs of my_pe left out; install it, or add plugins=[my_pe].\n")
    assert "0 runs" in told.out
    assert export.main([run, str(site / "new")]) == 2
    assert export.main([run, str(site / "new"), named]) == 0
    monkeypatch.setattr(plugins, "_named", {})
    capsys.readouterr()
    assert report.main(["--out", str(page), named]) == 0
    told = capsys.readouterr()
    assert not told.err
    assert "2 runs" in told.out
    assert f"&#39;{named}&#39;" in page.read_text(), "the command of the run has it too"


@pytest.mark.parametrize("entry_point", [True, False])
def test_the_lines_of_a_model_card_load_a_model_of_a_package(
    entry_point, site, tiny_run, monkeypatch
):
    example(site, entry_point)
    named = [] if entry_point else ["plugins=[my_pe]"]
    cfg, _ = tiny_run("model=soft_window", *named, steps=1)
    assert export.main([str(RunDirectory(cfg).path), str(site / "new"), *named]) == 0
    told = (site / "new" / "README.md").read_text()
    assert "needs the packages `tape_exp` and `my_pe`." in told
    monkeypatch.setattr(plugins, "_named", {})
    monkeypatch.chdir(site)
    (lines,) = re.findall(r"```python\n(.*?)```", told, re.DOTALL)
    made = {}
    exec(lines, made)
    assert "SoftWindow" in {type(module).__name__ for module in made["model"].modules()}


def test_the_hash_of_a_package_is_that_of_its_files(site):
    put(site, {"encoding.py": ENCODING, "conf/model/theirs.yaml": YAML})
    plugins.use(["plugins=[theirs]"])
    model = OmegaConf.to_container(compose_config(["model=theirs"]).model)
    before = plugins.versions_of({"model": [model]})
    assert before["theirs"]["version"] is None
    (site / "theirs" / ".#encoding.py").symlink_to("user@host.1:2")  # an editor's lock
    assert plugins.versions_of(model) == before
    (site / "theirs" / "encoding.py").write_text(ENCODING + "# changed\n")
    assert plugins.versions_of(model)["theirs"]["sources"] != before["theirs"]["sources"]
    assert plugins.versions_of({"model": {"_target_": "tape_exp.models.positions.nope.NoPE"}}) == {}


def test_a_yaml_may_begin_with_one_of_ours(site):
    yaml = "defaults: [fire, _self_]\nname: wider\nhidden: 64\n"
    put(site, {"conf/model/wider.yaml": yaml})
    assert plugins.package_of("theirs.x.Y") is None
    cfg = compose_config(["model=[wider,nope]", "plugins=[theirs]"])
    assert cfg.model.layers[0].hidden == 64
    assert compose_config(["model=wider"]).model._target_.endswith("FIRE")


def test_a_package_may_bring_a_task(site):
    code, yaml = (
        re.findall(rf"```{kind}\n(.*?)```", DOCS, re.DOTALL)[0] for kind in ("python", "yaml")
    )
    yaml = yaml.replace("tape_exp.tasks.reverse", "theirs.reverse")
    put(site, {"reverse.py": code, "conf/task/reverse.yaml": yaml})
    _, task = library.build("rope", "plugins=[theirs]", task="reverse")
    assert task.train_batch(0, 4)["inputs"].shape == (4, 9)


BROKEN = """from tape_exp.models.positions.base import PositionEncoding

class Theirs(PositionEncoding):
    def __init__(self, arch):
        raise KeyError("oops")
"""


@pytest.mark.parametrize(
    ("files", "words", "told"),
    [
        ({}, ["plugins=[theirs]"], "has no configs; it needs a conf/model/<name>.yaml"),
        ({}, ["plugins=[absent]"], r"plugins=\[absent\]: there is no package absent here"),
        ({}, ["plugins=theirs"], r"must be a list of packages, as in plugins=\[my_pe\]"),
        ({}, ["plugins=[the irs]"], "must be a list of packages"),
        ({}, ["plugins=[tape_exp]"], "names tape_exp itself"),
        ({}, ["plugins=[json]"], "the package json has no configs"),
        (
            {"conf/model/rope.yaml": YAML.replace("theirs", "rope", 1)},
            ["plugins=[theirs]"],
            "both have a",
        ),
        (
            {"encoding.py": ENCODING, "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs", "model._target_=theirs.encoding.Other"],
            "must name a class inside tape_exp",
        ),
        (
            {"encoding.py": ENCODING, "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs", "model._target_=theirs.__main__.X"],
            "must name a class inside tape_exp",
        ),
        ({"conf/model/other.yaml": YAML}, ["plugins=[theirs]"], "has the name theirs; write name"),
        (
            {"conf/model/other.yaml": "defaults: [rope, _self_]\n"},
            ["plugins=[theirs]"],
            "has no name of its own; write name: other",
        ),
        (
            {"conf/model/theirs.yaml/x": "", "conf/task/x.yaml": ""},
            ["plugins=[theirs]"],
            r"theirs\.yaml cannot be read .*directory",
        ),
        (
            {"conf/model/theirs.yaml": "name: theirs\na: &a [1]\nb: *a\n"},
            ["plugins=[theirs]"],
            r"theirs\.yaml cannot be read \(line 3 has the alias \*a; write its value out\)",
        ),
        (
            {"conf/model/theirs.yaml": "name: theirs\n_target_: [\n"},
            ["plugins=[theirs]", "model=theirs"],
            "a YAML cannot be read",
        ),
        (
            {"conf/config.yaml": "", "conf/model/x.yaml": "name: x\n"},
            ["plugins=[theirs]"],
            "both have a conf/config",
        ),
        (
            {"encoding.py": ENCODING, "conf/model/theirs.yaml": YAML.replace("Theirs", "Other")},
            ["plugins=[theirs]", "model=theirs"],
            "must be a subclass of tape_exp.models.positions.base.PositionEncoding",
        ),
        (
            {"encoding.py": ENCODING, "conf/model/theirs.yaml": YAML.replace("Theirs", "NoPE")},
            ["plugins=[theirs]", "model=theirs"],
            "must name a class that is defined in theirs.encoding",
        ),
        (
            {"encoding.py": "import nothing_like_this", "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs"],
            "cannot be loaded: No module named 'nothing_like_this'",
        ),
        (
            {"encoding.py": "raise SystemExit(3)", "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs"],
            "cannot be loaded: theirs.encoding ends in SystemExit: 3",
        ),
        (
            {"encoding.py": "class Theirs(:", "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs"],
            "cannot be loaded: theirs.encoding ends in SyntaxError",
        ),
        (
            {"encoding.py": BROKEN, "conf/model/theirs.yaml": YAML},
            ["plugins=[theirs]", "model=theirs"],
            r"model: theirs.encoding.Theirs failed .*encoding.py, line 5: KeyError: 'oops'",
        ),
    ],
)
def test_what_a_package_may_not_do_is_told(site, files, words, told):
    put(site, files)
    with pytest.raises(ConfigError, match=told):
        build(compose_config(words).model, "model", arch=Arch(layers=1, width=8, heads=2, ffn=8))


def test_a_broken_package_is_left_out_with_a_warning(site, capsys):
    info = site / "ghost-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tape_exp.positions]\nghost = ghost:X\n")
    example(site, entry_point=True)
    assert compose_config(["model=soft_window"]).model.name == "soft_window"
    assert "there is no package ghost here" in capsys.readouterr().err
