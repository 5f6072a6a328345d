"""What `tape-exp paper push` sends, read back from W&B's offline run."""

import json
import shutil

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import artifacts, page
from tape_exp.paper import push as pushing
from tape_exp.runs.record import dump_record
from tape_exp.settings import folders
from tests.paper.test_artifacts import fake_record
from tests.runs.test_loggers import wandb_records

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63680000008200817f"
    "ae08ae0000000049454e44ae426082"
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results with the records of three runs and one figure."""
    folder = tmp_path / "results"
    for name in ("tables", "figures", "records"):
        (folder / name).mkdir(parents=True)
    shutil.copy(artifacts.RESULTS / "paper.yaml", folder)
    for seed, value in enumerate((30.0, 34.0, 32.0)):
        path = folder / "records" / f"{seed}.json"
        path.write_text(dump_record(fake_record("tape", seed, value)))
    (folder / "figures" / "fig_addition-smoke.png").write_bytes(PNG)
    for module in (artifacts, paper):
        monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(folders, "RECORDS", folder / "records")
    monkeypatch.setattr(paper, "names", lambda: ["fig_addition"])
    return folder


def test_tables_and_figures_are_read_back(results, tmp_path):
    place = tmp_path / "sent"
    assert (
        paper.main(["push", "--mode", "offline", "--folder", str(place), "--project", "mine"]) == 0
    )
    (files,) = place.glob("wandb/offline-run-*/files")
    claims = json.loads(next(files.glob("media/table/tables/claims_*.table.json")).read_text())
    assert claims["columns"] == [column.heading for column in page.CLAIMS]
    assert [row[0] for row in claims["data"]] == ["fig_addition"]
    (path,) = files.glob("media/table/tables/fig_addition-smoke_*.table.json")
    table = json.loads(path.read_text())
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
    assert (rows["tape"]["paper"], rows["tape"]["ours"]) == (32.82, 32.0), "numbers are numbers"
    low = rows["tape"]["ours, low (95 % interval over seeds)"]
    assert low == pytest.approx(32 - 4.97, abs=0.01)
    assert (rows["rope"]["paper"], rows["rope"]["ours"], rows["rope"]["seeds"]) == (
        26.32,
        None,
        None,
    )
    assert next(files.glob("media/images/figures/fig_addition-smoke_*.png")).read_bytes() == PNG
    started = next(r.run for r in wandb_records(place) if r.WhichOneof("record_type") == "run")
    assert (started.job_type, started.project) == ("paper", "mine")
    assert started.run_id == f"paper-{pushing.of_records(results / 'records')}"
    assert files.parent.name.endswith(started.run_id)
    assert list(place.glob("wandb/artifacts/staging/*")), "`wandb sync` sends what is there"


def test_the_same_records_are_the_same_run(results):
    before = pushing.of_records(results / "records")
    (results / "tables" / "claims.csv").write_text("artifact\n")
    assert pushing.of_records(results / "records") == before
    (results / "records" / "two.json").write_text("{}")
    assert pushing.of_records(results / "records") != before


def test_nothing_to_send(results, tmp_path, capsys):
    (results / "figures" / "fig_addition-smoke.png").unlink()
    assert paper.main(["push", "--mode", "offline", "--folder", str(tmp_path)]) == 2
    assert "`tape-exp paper render` draws them" in capsys.readouterr().err


def test_a_server_that_cannot_be_reached_leaves_it_offline(results, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(pushing, "TIMEOUT", 3)
    assert pushing.push({}, results, tmp_path / "sent", "mine", mode="online").startswith("paper-")
    assert list((tmp_path / "sent").glob("wandb/offline-run-*/run-paper-*.wandb"))
