"""The stand-alone scorer: what it prints and writes, where it finds references, one sentence for
each mistake.
"""

import gzip
import json
import subprocess
import sys

import pytest

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.tasks.scrolls import main, read_predictions, read_references

DATA = ROOT.parent / "shared" / "data" / "scrolls"
ROWS = [("q1", "Yes"), ("q2", "No"), ("q1", "Yes, it is"), ("q3", "Ünïcode")]
PREDICTIONS = {"q1": "yes it is!", "q2": "yes", "q3": "ünïcode"}


def rows(content=ROWS) -> str:
    found = [
        {"id": key, "pid": f"{key}_{n}", "input": "", "output": output}
        for n, (key, output) in enumerate(content)
    ]
    return "".join(json.dumps(row) + "\n" for row in found)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "validation.jsonl").write_text(rows())
    (tmp_path / "predictions.json").write_text(json.dumps(PREDICTIONS))
    return tmp_path


def run(folder, *options, dataset="quality", references="validation.jsonl"):
    command = [
        "score",
        str(folder / "predictions.json"),
        "--dataset",
        dataset,
        "--references",
        str(folder / references),
    ]
    return main([*command, *map(str, options)])


def test_scores_are_printed_and_written(folder, capsys):
    assert run(folder, "--out", folder / "new" / "scores.json") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("quality: 3 examples")
    assert printed[1].split() == ["exact_match", "66.67", "[0.00,", "100.00]"]
    written = json.loads((folder / "new" / "scores.json").read_text())
    assert written["scores"]["exact_match"] == pytest.approx(200 / 3)
    assert written["intervals"]["exact_match"] == [0, 100]
    assert [row["id"] for row in written["examples"]] == ["q1", "q2", "q3"]
    assert written["examples"][0] == {
        "id": "q1",
        "prediction": "yes it is!",
        "references": ["Yes", "Yes, it is"],
        "scores": {"exact_match": 100},
    }
    assert [path.name for path in (folder / "new").iterdir()] == ["scores.json"]


@pytest.mark.parametrize(
    ("dataset", "names"), [("qasper", ["f1"]), ("qmsum", ["geometric_mean", "1", "2", "L"])]
)
def test_every_number_has_a_line(dataset, names, folder, capsys):
    assert run(folder, dataset=dataset) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0].removeprefix("rouge/") for line in lines] == names
    assert all(line.endswith("]") for line in lines)


def test_as_a_command(folder, monkeypatch, capsys):
    words = ["score", "predictions.json", "--dataset", "quality"]
    (folder / "data").mkdir()
    (folder / "data" / "scrolls").mkdir()
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"cwd": folder, "capture_output": True, "text": True, "env": environment}
    monkeypatch.chdir(folder)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error: --references=data/scrolls is neither")
    (folder / "validation.jsonl").rename(folder / "data" / "scrolls" / "validation.jsonl")
    done = subprocess.run([sys.executable, "-m", "tape_exp.tasks.scrolls", *words], **options)
    assert done.returncode == 0, done.stderr
    assert "66.67" in done.stdout


@pytest.mark.parametrize(
    "place", ["test.jsonl", "test.jsonl.gz", "quality/test.jsonl", "quality/test.jsonl.gz"]
)
def test_references_in_a_folder(place, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        gzip.compress(rows().encode()) if path.suffix == ".gz" else b"\n" + rows().encode()
    )
    expected = {"q1": ["Yes", "Yes, it is"], "q2": ["No"], "q3": ["Ünïcode"]}
    assert (
        read_references(tmp_path, "quality", "test")
        == read_references(path, "qasper", "train")
        == expected
    )
    with pytest.raises(
        ConfigError, match=r"nor a folder with validation\.jsonl or validation\.jsonl\.gz"
    ):
        read_references(tmp_path, "quality", "validation")


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    path = tmp_path / "predictions.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(PREDICTIONS, ensure_ascii=False).encode())
    assert read_predictions(path) == PREDICTIONS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q1": "yes"}', "predictions are missing for 2 of 3 ids: q2, q3;"),
        (
            '{"q1": "a", "q2": "b", "q1": "c", "q3": "d"}',
            "predictions.json has ids more than once, 1 in all: q1.",
        ),
        (
            '{"q1": "a", "q2": "b", "q3": "c", "z1": "d", "z2": "e", "z3": "f", "z4": "g"}',
            "predictions have no reference for 4 of 7 ids: z1, z2, z3, …;",
        ),
        ('{"q1": "a", "q2": "b", "q3": 3}', "the prediction of q3 must be a string, not 3."),
        ('{"q1": "a", "q2": "b", "q3": null}', "the prediction of q3 must be a string, not None."),
        ('{"q1": "a", "q2": ', "predictions.json is not JSON"),
        ('["a", "b"]', "predictions.json must hold one JSON object"),
        ("", "predictions.json is not JSON"),
        (b"\xff\xfe\xfa", "predictions.json is not JSON"),
        ("[" * 100_000, "predictions.json is not JSON"),
        (None, "predictions.json cannot be read (No such file or directory)"),
    ],
)
def test_wrong_predictions(content, message, folder, capsys):
    path = folder / "predictions.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(folder, capsys, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", "validation.jsonl line 1 needs the strings id and output"),
        (rows([("q1", None)]).encode(), "validation.jsonl line 1 needs the strings id and output"),
        (rows().encode() + b"{", "validation.jsonl cannot be read from line 5"),
        (b'"\xff"', "validation.jsonl line 1 needs the strings id and output"),
        (b"", "there are no references"),
    ],
)
def test_wrong_references(content, message, folder, capsys):
    (folder / "validation.jsonl").write_bytes(content)
    assert_refused(folder, capsys, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows().encode(), "cannot be read from line 1"),
        (gzip.compress(rows().encode())[:-9], "validation.jsonl.gz cannot be read from line"),
        (
            gzip.compress(rows().encode())[:10] + b"\xff" * 40,
            "validation.jsonl.gz cannot be read from line",
        ),
    ],
    ids=[
        "not compressed",
        "cut short",
        "damaged",
    ],  # a gzip header holds the time: the two workers would disagree
)
def test_damaged_gzip(content, message, folder, capsys):
    (folder / "validation.jsonl.gz").write_bytes(content)
    assert_refused(folder, capsys, message, references="validation.jsonl.gz")


def test_unknown_dataset(folder, capsys):
    assert_refused(
        folder, capsys, "--dataset=qualty is not known. Did you mean 'quality'?", dataset="qualty"
    )


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("predictions.json", "would overwrite what is read"),
        ("validation.jsonl", "would overwrite what is read"),
        (".", "cannot be written"),
        ("predictions.json/scores.json", "cannot be written"),
    ],
)
def test_out_that_cannot_be_written(out, message, folder, capsys):
    assert_refused(folder, capsys, message, out=out)


def assert_refused(folder, capsys, message, out="scores.json", **options):
    """One sentence, exit code 2, and no file new or changed."""
    if out == "scores.json":
        (folder / out).write_text("kept")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(folder, "--out", folder / out, **options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(not (DATA / "qmsum").exists(), reason="QMSum is not on this machine")
def test_real_references(tmp_path, capsys):
    references = read_references(DATA, "qmsum", "validation")
    (tmp_path / "predictions.json").write_text(
        json.dumps({key: wanted[0] for key, wanted in references.items()})
    )
    assert (
        main(
            [
                "score",
                str(tmp_path / "predictions.json"),
                "--dataset",
                "qmsum",
                "--references",
                str(DATA),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"qmsum: {len(references)} examples")
    assert printed[1].split() == ["rouge/geometric_mean", "100.00", "[100.00,", "100.00]"]
