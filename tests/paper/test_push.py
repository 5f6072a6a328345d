"""What `python -m tape_exp.paper push` sends, read back from W&B's offline run."""

import csv
import json

import pytest

from tape_exp.paper import __main__ as paper
from tape_exp.paper import push as pushing
from tests.runs.test_sinks import wandb_records

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63680000008200817f"
    "ae08ae0000000049454e44ae426082"
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    for name in ("tables", "figures", "records"):
        (folder / name).mkdir(parents=True)
    rows = [
        ["artifact", "holds"],
        ["fig_addition", "not tested, yet"],
        ["tab_ablation", "no (one seed)"],
    ]
    with (folder / "tables" / "claims.csv").open("w") as file:
        csv.writer(file).writerows(rows)
    (folder / "tables" / "claims.md").write_text("not sent")
    (folder / "figures" / "fig_addition-smoke.png").write_bytes(PNG)
    (folder / "records" / "one.json").write_text("{}")
    monkeypatch.setattr(paper, "RESULTS", folder)
    return folder


def test_tables_and_figures_are_read_back(results, tmp_path):
    place = tmp_path / "sent"
    assert (
        paper.main(["push", "--mode", "offline", "--folder", str(place), "--project", "mine"]) == 0
    )
    (files,) = place.glob("wandb/offline-run-*/files")
    table = json.loads(next(files.glob("media/table/tables/claims_*.table.json")).read_text())
    assert table["columns"] == ["artifact", "holds"]
    assert table["data"] == [["fig_addition", "not tested, yet"], ["tab_ablation", "no (one seed)"]]
    assert next(files.glob("media/images/figures/fig_addition-smoke_*.png")).read_bytes() == PNG
    started = next(r.run for r in wandb_records(place) if r.WhichOneof("record_type") == "run")
    assert (started.job_type, started.project) == ("paper", "mine")
    assert started.run_id == f"paper-{pushing.of_records(results / 'records')}"
    assert files.parent.name.endswith(started.run_id)
    assert list(place.glob("wandb/artifacts/staging/*")), (
        "what `wandb sync` sends lies beside the run"
    )


def test_the_same_records_are_the_same_run(results):
    before = pushing.of_records(results / "records")
    (results / "tables" / "claims.csv").write_text("artifact\n")
    assert pushing.of_records(results / "records") == before
    (results / "records" / "two.json").write_text("{}")
    assert pushing.of_records(results / "records") != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entity", "hf_" + "a1B2" * 9], "--entity holds a secret"),
        (["--project", "hf_" + "a1B2" * 9], "--project holds"),
    ],
)
def test_secrets_are_refused(results, tmp_path, arguments, message, capsys):
    assert (
        paper.main(["push", "--mode", "offline", "--folder", str(tmp_path / "sent"), *arguments])
        == 2
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sent").exists()


def test_nothing_to_send(results, tmp_path, capsys):
    (results / "tables" / "claims.csv").unlink()
    (results / "figures" / "fig_addition-smoke.png").unlink()
    assert paper.main(["push", "--mode", "offline", "--folder", str(tmp_path)]) == 2
    assert "`python -m tape_exp.paper render` draws them" in capsys.readouterr().err


def test_a_server_that_cannot_be_reached_leaves_it_offline(results, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    assert pushing.push(results, tmp_path / "sent", "mine", mode="online").startswith("paper-")
    assert list((tmp_path / "sent").glob("wandb/offline-run-*/run-paper-*.wandb"))
