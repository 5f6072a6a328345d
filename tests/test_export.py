"""``tape-exp export``: the model card of a record, and a push to a server that speaks the hub's
protocol.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml
from safetensors.torch import load

from tape_exp import export
from tape_exp.runs import card
from tape_exp.runs.directory import RunDirectory

TOKEN = "hf_of_this_test"


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload needs: a repository, what is large, its storage, a commit."""

    def do_POST(self):
        told = self.rfile.read(int(self.headers["Content-Length"]))
        hub = self.server
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(told))
            new = hub.created[-1]
            return self.answer({"url": f"{hub.address}/{new['organization']}/{new['name']}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {**one, "uploadMode": "lfs" if one["path"].endswith("tensors") else "regular"}
                for one in json.loads(told)["files"]
            ]
            return self.answer({"files": [{**one, "shouldIgnore": False} for one in files]})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.address}/store/{one['oid']}"}}}
                for one in json.loads(told)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        if "/commit/" in self.path:
            hub.committed += [json.loads(line) for line in told.decode().splitlines()]
            answer = {"commitUrl": f"{hub.address}/me/model/commit/1", "commitOid": "1" * 40}
            return self.answer({**answer, "success": True})
        return self.answer({"error": self.path}, 404)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_GET(self):
        self.answer({"sha": "0" * 40, "siblings": [], "id": "me/model"})

    def answer(self, content, status=200):
        told = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """The server, to which the client of the hub is pointed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.created, server.committed, server.stored = [], [], {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    point_to(server.address, monkeypatch)
    yield server
    server.shutdown()
    server.server_close()


def point_to(address, monkeypatch):
    """Let the client, which reads its settings once, use another hub."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf_api.constants, "ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def finished(tiny_run):
    """A run with TAPE, and its record."""
    cfg, record = tiny_run("model=tape")
    return RunDirectory(cfg).path, record


def test_the_card_has_results_config_and_the_way_to_load_it(finished, tmp_path):
    run, record = finished
    assert export.main([str(run), str(tmp_path / "new")]) == 0
    told = (tmp_path / "new" / "README.md").read_text()
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


def exported(run, folder, capsys):
    """The card of a run, and what was said on stderr."""
    assert export.main([str(run), str(folder)]) == 0
    return (folder / "README.md").read_text(), capsys.readouterr().err


def test_a_record_counts_only_while_the_run_is_done(finished, tmp_path, capsys):
    """One that was begun again has the old record, which may be damaged too, until its end."""
    run, record = finished
    (run / "DONE").unlink()
    for number, left in enumerate((json.dumps(record), "{", None)):
        path = run / "record.json"
        path.unlink() if left is None else path.write_text(left)
        told, said = exported(run, tmp_path / str(number), capsys)
        assert "## Results" not in told
        assert said.startswith(f"warning: {run} is not finished.")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"config_hash": "0123456789"}, "is of other weights than step00000004.ckpt"),
        ({"steps": 400}, "is of other weights than step00000004.ckpt"),
        ({"seed": "x"}, "is not a record (seed: "),
        (..., "is not finished"),
    ],
)
def test_a_record_counts_only_for_the_weights_that_it_is_of(wrong, why, finished, tmp_path, capsys):
    run, record = finished
    if wrong is ...:
        (run / "record.json").unlink()
    else:
        (run / "record.json").write_text(json.dumps(record | wrong))
    told, said = exported(run, tmp_path / "new", capsys)
    assert "## Results" not in told
    assert "from_pretrained(" in told
    assert said.count("warning: ") == 1
    assert why in said


def test_a_run_whose_folder_was_renamed_has_its_results(finished, tmp_path, capsys):
    run, _ = finished
    renamed = run.rename(run.with_name("mine"))
    told, said = exported(renamed, tmp_path / "new", capsys)
    assert "## Results" in told
    assert not said


def test_with_auto_map_no_import_is_needed(finished, tmp_path):
    run, _ = finished
    folder = tmp_path / "new"
    assert export.main([str(run), str(folder), "--auto-map"]) == 0
    from transformers import AutoModelForCausalLM

    assert "import tape_exp" not in (folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert model(torch.zeros(1, 3, dtype=torch.long)).logits.shape[:2] == (1, 3)


def test_a_push_is_what_the_folder_holds(finished, tmp_path, hub, capsys):
    run, _ = finished
    folder = tmp_path / "new"
    assert export.main([str(run), str(folder), "--push", "me/model"]) == 0
    assert f"{hub.address}/me/model" in capsys.readouterr().out
    (created,) = hub.created
    assert (created["name"], created["organization"]) == ("model", "me")
    assert created.get("private") or created.get("visibility") == "private"
    sent = {one["value"]["path"]: one["value"] for one in hub.committed if one["key"] == "file"}
    for path in folder.glob("*.*"):
        if path.suffix != ".safetensors":
            assert base64.b64decode(sent[path.name]["content"]) == path.read_bytes()
    (large,) = [one["value"] for one in hub.committed if one["key"] == "lfsFile"]
    weights = load(hub.stored[large["oid"]])
    assert weights.keys() == load((folder / large["path"]).read_bytes()).keys()
    assert '.from_pretrained("me/model")' in (folder / "README.md").read_text()


def test_a_refused_push_keeps_the_folder(finished, tmp_path, hub, monkeypatch, capsys):
    run, _ = finished
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert export.main([str(run), str(tmp_path / "new"), "--push", "me/model"]) == 2
    told = capsys.readouterr().err
    assert "me/model was not uploaded (" in told
    assert f"`hf upload me/model {tmp_path / 'new'}` uploads it" in told
    assert "hf_wrong" not in told
    assert (tmp_path / "new" / "config.json").is_file()


def test_without_a_network_the_folder_is_complete(finished, tmp_path, monkeypatch, capsys):
    run, _ = finished
    point_to("http://127.0.0.1:9", monkeypatch)
    assert export.main([str(run), str(tmp_path / "a"), "--push", "me/model"]) == 2
    assert "me/model was not uploaded (" in capsys.readouterr().err
    assert (tmp_path / "a" / "config.json").is_file()


def test_intervals_of_the_card_are_of_standard_errors(finished):
    metrics = {"test/exact_match": 30.0, "test/exact_match_stderr": 2.0, "causal/both/x": 1.0}
    metrics |= {"ood/exact_match": 0.0, "ood/exact_match_stderr": 0.0, "val/loss": 1.23456}
    text = card.model_card("", finished[1] | {"metrics": metrics}, 1, "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[2:] == [
        "| test/exact_match | 30 ± 3.9 |",
        "| ood/exact_match | 0 |",
        "| val/loss | 1.235 |",
    ]
