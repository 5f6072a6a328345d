"""``tape-exp export``: the model card of a record."""

import json
import re
import shutil

import pytest
import yaml

import tape_exp as te
from tape_exp import export
from tests.conftest import SMALL


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of runs with one of TAPE."""
    runs = tmp_path_factory.mktemp("export") / "runs"
    words = ["model=tape", "trainer=cpu", "logger=none", f"runs={runs}", *SMALL]
    words += ["task.train_digits=1", "task.test_digits=2", "task.samples_per_cell=4"]
    te.train(*words, "task.optim.max_steps=4", quiet=True)
    return runs


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of the run, and its record."""
    shutil.copytree(trained, tmp_path / "runs")
    (record,) = tmp_path.glob("runs/*/*/*/*/record.json")
    return record.parent, json.loads(record.read_text())


def test_the_card_has_results_config_and_the_way_to_load_it(finished, tmp_path):
    run, record = finished
    assert export.main([str(run), str(tmp_path / "new"), "--name", "me/model"]) == 0
    told = (tmp_path / "new" / "README.md").read_text()
    assert '.from_pretrained("me/model")' in told
    head = yaml.safe_load(told.split("---\n")[1])
    assert head["library_name"] == "transformers"
    assert "tape" in head["tags"]
    value, error = (record["metrics"][f"test/exact_match{s}"] for s in ("", "_stderr"))
    spread = f" ± {1.96 * error:.2g}" if error else ""
    assert f"| test/exact_match | {value:.4g}{spread} |" in told
    assert "causal/" not in told
    assert "import tape_exp.models.hf" in told
    assert "path: `tape-exp train model=tape" in told
    (config,) = re.findall(r"```yaml\n(.*?)```", told, re.DOTALL)
    assert yaml.safe_load(config) == record["config"]
    assert not re.search(r"auto_map|modeling", (tmp_path / "new" / "config.json").read_text())
    assert not [*(tmp_path / "new").glob("*.py")]


def test_the_adapter_of_a_run_without_one_is_refused_in_a_sentence(finished, tmp_path, capsys):
    run, _ = finished
    assert export.main([str(run), str(tmp_path / "new"), "--adapter", "some/llama"]) == 2
    assert "error: --adapter is for LoRA on a Llama" in capsys.readouterr().err


@pytest.mark.parametrize("left", [{"config_hash": "0123456789"}, {"steps": 400}, {}, "{", None])
def test_a_record_counts_only_for_its_weights_while_the_run_is_done(
    left, finished, tmp_path, capsys
):
    """One that was begun again has the old record, which may be damaged too, until its end."""
    run, record = finished
    path = run / "record.json"
    path.unlink() if left is None else path.write_text(
        left if isinstance(left, str) else json.dumps(record | left)
    )
    if isinstance(left, dict) and left:
        told = "record.json is of other weights than step00000004.ckpt"
    else:
        (run / "DONE").unlink()
        told = f"warning: {run} is not finished."
    assert export.main([str(run), str(tmp_path / "new")]) == 0
    card, said = (tmp_path / "new" / "README.md").read_text(), capsys.readouterr().err
    assert "## Results" not in card
    assert "from_pretrained(" in card
    assert told in said
    assert said.count("\n") == 1


def test_the_card_names_no_tokenizer_that_is_not_used(finished):
    record = finished[1]
    tokenizer = {"kind": "bpe", "vocab": 2048, "add_bos": True}
    record["config"]["task"]["tokenizer"] = tokenizer
    assert "kind: bpe" in export.model_card("", record, 1, "")
    told = export.model_card("", record | {"llama": "llama-0123456789"}, 1, "")
    assert "kind: bpe" not in told
    assert "vocab: 2048" not in told
    assert "add_bos: true" in told


def test_intervals_of_the_card_are_of_standard_errors(finished):
    metrics = {"test/exact_match": 30.0, "test/exact_match_stderr": 2.0, "causal/both/x": 1.0}
    metrics |= {"ood/exact_match": 0.0, "ood/exact_match_stderr": 0.0, "val/loss": 1.23456}
    text = export.model_card("", finished[1] | {"metrics": metrics}, 1, "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[2:] == [
        "| test/exact_match | 30 ± 3.9 |",
        "| ood/exact_match | 0 |",
        "| val/loss | 1.235 |",
    ]
