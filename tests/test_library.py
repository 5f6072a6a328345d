"""The package as a library: what its functions give, and what they say of mistakes."""

import io
import json
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import matplotlib
import pytest
import torch

import tape_exp as te
from tape_exp.data.batch import IGNORE
from tape_exp.library import pictures
from tape_exp.results.metric_names import is_result
from tape_exp.results.store import add_records, read_records
from tape_exp.settings import folders
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.training.loaded_run import LoadedRun
from tests.conftest import SMALL, on_text


def test_an_import_loads_nothing_else():
    code = "import sys; before = {*sys.modules}, [*sys.meta_path]; import tape_exp; "
    code += "print({*sys.modules} - before[0], sys.meta_path == before[1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'tape_exp'} True\n"
    assert {*dir(te)} == {*te.__all__, "__version__"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert te.__version__ == project["version"]
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        _ = te.lode


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """With twenty steps instead of those that learn addition, and without windows for pictures."""
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    program = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    assert program.count("STEPS = 800") == 1
    program = program.replace("STEPS = 800", "STEPS = 20")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    exec(program, {})
    printed = capsys.readouterr().out
    assert "86,368 parameters; logits (4, 9, 14)" in printed
    (stored,) = cells[-1]["outputs"]
    assert printed.endswith("".join(stored["text"])), "the table shows the committed records"
    shown = [o for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(shown) == 3, "the committed notebook has its pictures"


def test_what_is_built_computes_the_loss_of_a_batch():
    decoder, task = te.build("tape", *SMALL, "task.train_digits=2", "task.test_digits=3")
    batch = task.train_batch(0, 4)
    logits = decoder(batch["inputs"])
    assert logits.shape == (*batch["inputs"].shape, task.arch.vocab)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE
    )
    loss.backward()
    assert decoder.blocks()[0].position.update_net["p"].grad.abs().sum() > 0
    with pytest.raises(ConfigError, match=r"model=tap\W.*Did you mean 'tape'"):
        te.build("tap")


STEPS = ("task.optim.max_steps=3", "task.optim.batch=64")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A small model of addition of one digit that is trained for a moment."""
    folder = tmp_path_factory.mktemp("library")
    words = ["trainer=cpu", "logger=none", f"runs={folder}", *SMALL]
    words += ["task.train_digits=1", "task.test_digits=2", "task.samples_per_cell=4"]
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        run = te.train("model=tape", *words, *STEPS, quiet=True)
    assert said.getvalue() == ""
    return run


def test_a_loaded_run_is_the_one_that_was_trained(loaded):
    run = te.load(loaded.folder)
    assert run.record == loaded.record
    assert "DONE" in (run.folder / "log.txt").read_text()
    assert run.config["task"]["train_digits"] == 1
    ids = run.task.encode("5+3=")
    assert run.task.decode(ids) == "5+3="
    with torch.no_grad():
        logits = run.model(torch.tensor([ids]))[0, -1]
    first = run.task.decode([int(logits.argmax())])
    assert run.generate("5+3=", new_tokens=1) == ("" if first == "<eos>" else first)
    assert run.generate(ids, new_tokens=3) == run.generate("5+3=", new_tokens=3)
    sampled = {run.generate("5+3=", 4, temperature=2.0, seed=seed) for seed in range(8)}
    assert len(sampled) > 1
    assert run.generate("5+3=", 4, 2.0, seed=3) == run.generate("5+3=", 4, 2.0, seed=3)


def test_attention_and_positions_of_a_text(loaded):
    attention, positions = loaded.attention("12+34="), loaded.positions("12+34=")
    assert attention.keys() == positions.keys() == {1, 2}
    for layer in (1, 2):
        assert attention[layer].shape == positions[layer].shape == (2, 6, 6)
        assert torch.allclose(attention[layer].sum(-1), torch.ones(2, 6))
        assert attention[layer].triu(1).abs().sum() == 0
    assert torch.allclose(positions[1].diagonal(dim1=1, dim2=2), torch.ones(2, 6), atol=1e-5)


def test_a_model_is_evaluated_on_its_own_task_a_longer_one_and_another(loaded):
    """The run's own measurement again, and a decoder of a loop of one's own like the run's."""
    again = te.evaluate(loaded)
    assert again["metrics"].items() <= loaded.record["metrics"].items()
    assert again["heatmap"] == loaded.record["heatmap"]
    words = ("task.test_digits=3", "task.samples_per_cell=2")
    longer = te.evaluate(loaded, *words)
    named = te.evaluate(loaded, "task=arithmetic", *words)
    assert named == longer
    assert len(longer["heatmap"]) == longer["config"]["task"]["test_digits"] == 3
    _, task = te.build("tape", "task.train_digits=1", *words, *SMALL)
    assert te.evaluate(loaded.model.train(), task=task)["metrics"] == longer["metrics"]
    assert loaded.model.training
    loaded.model.eval()


def test_a_decoder_goes_on_training_after_an_evaluation_that_failed(monkeypatch):
    def fails(*_):
        assert not decoder.training
        raise RuntimeError("out of memory")

    decoder, task = te.build("rope", *SMALL, "task.train_digits=1", "task.test_digits=2")
    monkeypatch.setattr(task, "evaluate", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        te.evaluate(decoder.train(), task=task)
    assert decoder.training


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["task=battery", "task.problem=sort"],
            "symbols are not the 14 that the model was trained",
        ),
        *(
            ([word], f"{word} cannot change in an evaluation")
            for word in (
                *("task.arch.layers=6", "scale=paper", "task.optim.lr=4", "model=rope"),
                *("seed=5", "checkpoint=/none"),
            )
        ),
        (["task.train_digits=2"], r"task\.train_digits=2 says what the model was trained on"),
        (["task=arithmetic", "++task.hold_out=true"], "hold_out=true says what the model was"),
    ],
)
def test_what_does_not_concern_the_evaluation_of_a_run_is_refused(words, message, loaded):
    with pytest.raises(ConfigError, match=message):
        te.evaluate(loaded, *words)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: te.compare(), "compare takes runs"),
        (
            lambda run: te.compare(run, {"config": {"task": {"name": "c4"}}}),
            "of one task, and these are of arithmetic and c4",
        ),
        (lambda run: te.plot("rope"), "plot takes a run, as te.load gives it, or a record"),
        (lambda run: te.plot(te.evaluate(run), "1+2="), "plot shows attention to a text of a run"),
        (lambda run: te.plot({"metrics": {}}), "no result of this run is by length"),
        (lambda run: te.compare("alibi", "rope"), "compare takes runs"),
        (
            lambda run: te.compare(te.evaluate(run.model, task=run.task)),
            "of a decoder has no config",
        ),
        (lambda run: te.train(["model=rope"]), "each key=value as an argument of its own"),
        (lambda run: run.generate([99]), "99 is no token"),
        (lambda run: te.train("checkpoint=llama/model.safetensors"), "name its folder: llama"),
        (lambda run: te.evaluate(run.model), "evaluate takes a run, or a decoder and task="),
        (lambda run: te.evaluate(run, task=run.task), "of a run it takes overrides"),
    ],
)
def test_a_call_without_what_it_needs_is_refused(call, message, loaded):
    with pytest.raises(ConfigError, match=message):
        call(loaded)


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    words = [f"runs={tmp_path}", "trainer=cpu", "logger=none", *SMALL]
    with pytest.raises(ConfigError, match="does not divide"):
        te.train(*words, "task.optim.batch=4", "trainer.micro_batch=3", quiet=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", ["/proc/none", "file/below"])
def test_a_folder_that_cannot_be_written_is_one_sentence(place, tmp_path):
    (tmp_path / "file").write_text("")
    runs = tmp_path / place  # an absolute path stays itself
    with pytest.raises(ConfigError, match=r"cannot be written \(.*\): runs=<folder> names another"):
        te.train(f"runs={runs}", "trainer=cpu", "logger=none", *SMALL, quiet=True)


def test_other_experiments_are_no_seeds_of_the_first():
    """Of other lengths, which have no mean; two seeds of one are one line."""
    (first,) = [r for r in read_records() if r["config"]["task"]["name"] == "word_problem"][:1]
    longer, seeds = first["metrics"] | {"test/exact_match@77": 1.0}, []
    for seed, problem in enumerate(("sort", "copy", "copy")):
        task = first["config"]["task"] | {"problem": problem}
        changed = {"seed": seed, "config": first["config"] | {"task": task, "seed": seed}}
        seeds.append(first | changed | ({"metrics": longer} if problem == "sort" else {}))
    table, figure = te.compare(*seeds)
    assert table["problem"].tolist() == ["sort", "copy"]
    assert table["seed"].tolist() == [0, "1, 2"]
    assert figure.width > 500


def test_a_comparison_names_metrics_on_built_in_text_as_tables_do():
    (first,) = [r for r in read_records() if r["config"]["task"]["name"] == "word_problem"][:1]
    seeds = []
    for seed, perplexity in enumerate((7.0, 9.0)):
        metrics = {"builtin_github/perplexity@256": perplexity}
        config = first["config"] | {"seed": seed}
        seeds.append(first | {"metrics": metrics, "seed": seed, "config": config})
    for records, mean in (seeds[:1], 7.0), (seeds, 8.0):
        table, _ = te.compare(*records)
        assert table["github/perplexity@256"].tolist() == [mean]
        assert not [name for name in table if name.startswith("builtin_")]


@pytest.mark.slow
def test_runs_side_by_side_and_pictures(loaded):
    table, figure = te.compare(loaded, loaded.record, te.evaluate(loaded))
    assert figure is None, "of an addition that nobody has learned"
    assert table["model"].tolist() == ["tape"] * 3
    assert {"test/exact_match"} < {*filter(is_result, table)} == {*table}
    committed = {record["config"]["task"]["name"]: record for record in read_records()}
    for name in ("arithmetic", "word_problem"):
        table, figure = te.compare(committed[name], committed[name])
        assert figure.width > 500
    pictures = [te.plot(loaded), te.plot(loaded, "1+2="), te.plot(committed["word_problem"])]
    assert all(len(picture.getcolors(1 << 24)) > 5 for picture in pictures)
    with pytest.raises(ConfigError, match="no result of this run is by length"):
        te.plot(committed["benchmarks"])


def test_a_grid_has_a_mean_and_measures_over_length_have_none(monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "image_of", lambda draw: draw(tmp_path / "a.svg").read_text())
    shared = {"title": "right (%)", "column_label": "length", "trained": [2, 1]}
    names = {"rows": ["exact match", "token accuracy"], "columns": ["4", "8"]}
    for row_label, has_mean in (("digits", True), ("", False)):
        axes = {**shared, **names, "row_label": row_label}
        record = {"heatmap": [[100.0, 40.0], [100.0, 80.0]], "axes": axes}
        drawn = re.findall(r">([^<]+)</text>", te.plot(record))
        assert ("mean 80.0 %" in drawn) == has_mean


def test_the_losses_of_a_run_and_of_a_record(loaded):
    curve = {"val/loss": {"step": [1, 2], "value": [2.5, 2.0]}}
    recorded = {**loaded.record, "curves": curve}
    pictures = [te.plot(run, losses=True) for run in (loaded, recorded)]
    assert all(len(picture.getcolors(1 << 24)) > 5 for picture in pictures)
    with pytest.raises(ConfigError, match="this run has no losses"):
        te.plot({**loaded.record, "curves": {}}, losses=True)


def test_a_decoder_of_ones_own_loop_beside_a_run_and_means_over_seeds(loaded):
    """The run's own model scores as the run; two seeds are one row, their mean."""
    again = te.evaluate(loaded.model, task=loaded.task)
    metric = "test/exact_match"
    better = {**again, "metrics": {**again["metrics"], metric: again["metrics"][metric] + 50}}
    table, _ = te.compare(loaded, mine=loaded.model, others=[again, better])
    assert table["model"].tolist() == ["tape", "mine", "others"]
    assert table["seed"].tolist() == [0, 0, "0, 1"]
    score = loaded.record["metrics"][metric]
    assert table[metric].tolist() == pytest.approx([score, score, score + 25])
    table, _ = te.compare(loaded, tape=[again, better])  # the run's name, and not its seeds
    assert table[metric].tolist() == pytest.approx([score, score + 25])
    with pytest.raises(ConfigError, match="mine is a decoder, and is evaluated on the task of the"):
        te.compare(loaded.record, mine=loaded.model)
    with pytest.raises(ConfigError, match="mine= beside a run or a record of the same task"):
        te.compare(mine=again)


@pytest.mark.long
def test_a_bias_has_no_positions_and_a_text_task_has_words(text_folder, tmp_path):
    words = [*on_text(text_folder), "trainer=cpu", "logger=none"]
    words += ["task.optim.max_steps=1", f"runs={tmp_path}"]
    run = te.train("model=alibi", "task=c4", *words)
    with pytest.raises(ConfigError, match="alibi has no position state"):
        run.positions("w1 w2")
    assert run.attention("w1 w2")[2].shape == (2, 6, 6), "BOS and five bytes"
    assert run.task.decode(run.task.encode("w1 w2")) == "w1 w2"
    assert isinstance(run.generate("w1", new_tokens=4), str)
    words = [*on_text(text_folder, "github"), "trainer=cpu", "logger=none", f"runs={tmp_path}"]
    data = ("scale.text", "cache", "task.text", "task.windows", "task.tokenizer", "task.train")
    data = [word for word in words if word.startswith(data)]
    words = ["model=alibi", "task=github", f"checkpoint={run.folder}", *words]
    measured = te.train(*words, quiet=True)
    assert te.evaluate(run, "task=github", *data)["metrics"] == measured.record["metrics"]
    assert measured.model.head.weight.equal(run.model.head.weight)


@pytest.mark.parametrize(
    ("record", "done", "message"),
    [
        ({}, False, r"is not finished\."),  # the run has begun again
        ({"config_hash": "0123456789"}, True, r"record\.json is of other weights than step0"),
        *((text, True, r"\.json .*restore or remove it") for text in ("{", "[]", '{"run": "x"}')),
    ],
)
def test_what_is_no_finished_run_is_refused(record, done, message, loaded, tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run: it has no config"):
        te.load(tmp_path)
    for name in ("config.yaml", "checkpoints", *["DONE"] * done):
        (tmp_path / name).symlink_to(loaded.folder / name)
    text = record if isinstance(record, str) else json.dumps(loaded.record | record)
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        te.load(tmp_path)


def test_records_are_a_table(loaded, tmp_path, monkeypatch):
    add_records(tmp_path, [loaded.record])
    table = te.records(tmp_path)
    assert table.loc[0, ["model", "task", "scale", "seed"]].tolist() == [
        "tape", "arithmetic", "smoke", 0
    ]  # fmt: skip
    accuracy = loaded.record["metrics"]["test/exact_match"]
    assert table.loc[0, "test/exact_match"] == pytest.approx(accuracy)
    with pytest.raises(ConfigError, match=r"there is no record in .*absent"):
        te.records(tmp_path / "absent")
    assert {"rope", "tape"} <= {*te.records()["model"]}, "those of the clone"
    monkeypatch.setattr(folders, "RECORDS", tmp_path / "results" / "records")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no record in results/records and runs/"):
        te.records()
    (tmp_path / "runs").symlink_to(loaded.folder.parents[3])
    assert te.records()["run"].tolist() == table["run"].tolist(), "the finished runs"
    for folder in ("runs", "runs/arithmetic", loaded.folder):
        assert te.records(folder)["run"].tolist() == table["run"].tolist()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="there is no record in empty"):
        te.records("empty")


def test_a_folder_of_runs_and_records_has_a_row_for_each_run(loaded, tmp_path, monkeypatch):
    """With metrics as tables name them, and in the home of a user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "both"
    of_text = loaded.record | {"metrics": {"builtin_github/perplexity@256": 7.0}}
    add_records(folder, [of_text])
    (folder / "record.json").write_text(json.dumps(of_text))
    table = te.records("~/both")
    assert table["github/perplexity@256"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "pg19"),  # the text on which the run was measured
        (["task=passkey"], "c4"),  # the other task's own
        (["scale.text=local", "task.text.path=/books"], "pg19"),
    ],
)
def test_the_text_of_a_run_stays_that_of_its_evaluations(words, name):
    typed = ["task=perplexity", "text@task.text=pg19", "model=rope", "scale=smoke"]
    run = SimpleNamespace(checkpoint=None, record={"config": {}})
    run.config = {"overrides": typed, "task": {"name": "perplexity"}}
    task, _ = LoadedRun.on(run, *words)
    assert task.text.name == name
