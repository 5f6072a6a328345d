"""The stand-alone scorer: what it prints and writes, where it finds references, one sentence for
each mistake.
"""

import gzip
import json
import subprocess
import sys

import pytest

from tape_exp.settings.folders import ROOT
from tape_exp.tasks.scrolls import main, read_references

DATA = ROOT.parent / "shared" / "data" / "scrolls"
ROWS = [("q1", "Yes"), ("q2", "No"), ("q1", "Yes, it is"), ("q3", "Ünïcode")]
REFERENCES = {"q1": ["Yes", "Yes, it is"], "q2": ["No"], "q3": ["Ünïcode"]}
PREDICTIONS = {"q1": "yes it is!", "q2": "yes", "q3": "ünïcode"}


def rows(content=ROWS) -> str:
    found = ({"id": key, "pid": key, "input": "", "output": output} for key, output in content)
    return "".join(json.dumps(row) + "\n" for row in found)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "validation.jsonl").write_text(rows())
    (tmp_path / "predictions.json").write_text(json.dumps(PREDICTIONS))
    return tmp_path


def run(folder, *options, dataset="quality"):
    words = ["score", folder / "predictions.json", "--dataset", dataset, "--references", folder]
    return main([*map(str, (*words, *options))])


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        ("quality", ["exact_match"]),
        ("qasper", ["f1"]),
        ("qmsum", ["rouge/geometric_mean", "rouge/1", "rouge/2", "rouge/L"]),
    ],
)
def test_every_number_is_printed_and_written(dataset, names, folder, capsys):
    assert run(folder, "--out", folder / "new" / "scores.json", dataset=dataset) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{dataset}: 3 examples")
    assert [line.split()[0] for line in lines] == names
    written = json.loads((folder / "new" / "scores.json").read_text())
    assert [f"{value:.2f}" for value in written["scores"].values()] == [
        line.split()[1] for line in lines
    ]
    assert [row["id"] for row in written["examples"]] == list(REFERENCES)
    if dataset == "quality":
        assert written["scores"]["exact_match"] == pytest.approx(200 / 3)


def test_as_a_command(folder):
    (folder / "data").mkdir()
    words = ["score", "predictions.json", "--dataset", "quality"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"cwd": folder, "capture_output": True, "text": True, "env": environment}
    command = [sys.executable, "-m", "tape_exp.tasks.scrolls", *words]
    done = subprocess.run(command, **options)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --references=data/scrolls is neither a file nor")
    (folder / "data" / "scrolls").mkdir()
    (folder / "validation.jsonl").rename(folder / "data" / "scrolls" / "validation.jsonl")
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    assert "66.67" in done.stdout


@pytest.mark.parametrize("place", ["test.jsonl", "test.jsonl.gz", "quality/test.jsonl.gz"])
def test_references_in_a_folder_or_a_file(place, tmp_path):
    path, content = tmp_path / place, b"\n" + rows().encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert read_references(tmp_path, "quality", "test") == REFERENCES
    assert read_references(path, "qasper", "train") == REFERENCES


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("predictions.json", '{"q1": "yes"}', "predictions are missing for 2 ids, as q2, q3;"),
        ("predictions.json", '{"q1": "a", "q2": "b", "q3": 3}', "no text of 1 ids, as q3;"),
        ("predictions.json", '{"q1": "a", ', "predictions.json cannot be read"),
        ("predictions.json", '["a", "b"]', "predictions.json must be an object"),
        ("validation.jsonl", "{}\n", "row 1 of validation, needs the strings id and output"),
        ("validation.jsonl", rows([("q1", None)]), "row 1 of validation, needs the strings"),
        ("validation.jsonl", rows() + "{", "row 5 of validation, needs the strings"),
        ("validation.jsonl", "", "there are no references"),
        ("scores.json", "kept", "is there already"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(file, content, message, folder, capsys):
    (folder / file).write_text(content)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(folder, "--out", folder / "scores.json") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(not (DATA / "qmsum").exists(), reason="QMSum is not on this machine")
def test_real_references(tmp_path, capsys):
    references = read_references(DATA, "qmsum", "validation")
    perfect = {key: wanted[0] for key, wanted in references.items()}
    (tmp_path / "predictions.json").write_text(json.dumps(perfect))
    words = ["score", tmp_path / "predictions.json", "--dataset", "qmsum", "--references", DATA]
    assert main([*map(str, words)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"qmsum: {len(references)} examples")
    assert printed[1].split() == ["rouge/geometric_mean", "100.00", "[100.00,", "100.00]"]
