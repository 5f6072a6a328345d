"""Length diagnostics of planted models, whose losses and attention are known; wrong settings."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.drawing.diagnostics import diagnostic_panels
from tape_exp.models.attention import ByDistance, ByKey
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.tape_householder import HouseholderTAPE
from tape_exp.models.trace import attention_use
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.tasks.diagnostics import Diagnostics, context_rows, effective_context, ranges
from tape_exp.training.module import OnDevice
from tape_exp.training.run import save_artifacts

V, PERIOD, LENGTH, SCALE = 16, 8, 64, 1.0
ARCH = Arch(
    layers=1,
    width=2 * V,
    heads=2,
    ffn=2,
    vocab=V,
    max_length=LENGTH,
    train_length=32,
    norm_eps=1e-12,
)


class Back(PositionEncoding):
    """Looks at the token seven before its query; where there is none, everywhere."""

    def bias(self, *_):
        return ByDistance(lambda x: torch.where(x == PERIOD - 1, 0.0, -1e4).expand(2, -1))


class First(PositionEncoding):
    """Looks at the first token."""

    def bias(self, q_BTHD, k_BSHD, x_BTC, positions_BS):
        return ByKey(-1e4 * (positions_BS > 0).float()[..., None].expand(-1, -1, 2))


def planted(position) -> OnDevice:
    """A decoder whose queries are 0 and whose prediction is the tokens that it looks at: logit v is
    SCALE · √(2 V) times the attention on v, over the root mean square of what the head is shown.
    """
    decoder = Decoder(ARCH, position)
    eye, none = torch.eye(V), torch.zeros(V, V)
    (block,) = decoder.blocks()
    with torch.no_grad():
        decoder.embedding.weight.copy_(torch.cat([eye, none], 1))
        decoder.head.weight.copy_(SCALE * torch.cat([none, eye], 1))
        for weight in (block.q.weight, block.down.weight, block.v.weight, block.o.weight):
            weight.zero_()
        block.v.weight[:V, :V] = eye  # the first head
        block.o.weight[V:, :V] = eye
    return OnDevice(decoder.eval(), torch.device("cpu"))


def loss_of(seen: int) -> float:
    """Of the planted decoder that looks seven back, of a row that repeats itself after eight."""
    size = math.sqrt(2 * V)  # of a token after the norm, which attention averages
    if seen >= PERIOD:
        logit = SCALE * size / math.sqrt((1 + size**2) / (2 * V))
        return math.log(math.exp(logit) + V - 1) - logit
    logit = SCALE * size / seen / math.sqrt((1 + size**2 / seen) / (2 * V))
    return math.log(seen * math.exp(logit) + V - seen)


def made(**options) -> Diagnostics:
    """The task on a text that nobody reads."""
    text = {"text": Text("set", source="local"), "tokenizer": Tokenization("byte")}
    return Diagnostics(arch=ARCH, seed=0, train_length=32, **text, **options)


def diagnosed(position, **options):
    """The evaluation of a planted model on two rows of eight tokens each, again and again."""
    task = made(**{"length": LENGTH, "rows": 2, "tokens_per_batch": 100} | options)
    rows = torch.stack([torch.arange(LENGTH + 1) % PERIOD, 8 + torch.arange(LENGTH + 1) % PERIOD])
    task.sample, task.labels = rows[:, :-1], rows[:, 1:]
    with torch.no_grad():
        return task.evaluate(planted(position), lambda items, _: items)


def test_a_model_that_looks_eight_tokens_back_has_that_effective_context():
    evaluation = diagnosed(Back)
    by_position = evaluation.tables["loss_by_position"]
    assert [row["to"] for row in by_position][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert by_position[-1]["to"] == LENGTH
    for row in by_position:
        known = np.mean([loss_of(seen) for seen in range(row["from"], row["to"] + 1)])
        assert row["loss"] == pytest.approx(known, rel=1e-4)
        assert row["low"] == pytest.approx(known, rel=1e-4)
        assert row["high"] == pytest.approx(known, rel=1e-4)
    by_context = evaluation.tables["loss_by_context"]
    assert [row["context"] for row in by_context] == [1, 2, 4, 8, 16, 32, 64]
    for row in by_context:
        assert row["loss"] == pytest.approx(loss_of(row["context"]), rel=1e-4)
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]), rel=1e-4)
        assert row["excess"] == pytest.approx(row["loss"] - loss_of(LENGTH), abs=1e-4)
    assert evaluation.metrics["set/effective_context"] == PERIOD
    (layer,) = evaluation.tables["attention_layers"]
    assert layer["distance"] == layer["distance_high"] == pytest.approx(7, abs=1e-4)
    found = {row["to"]: row["probability"] for row in evaluation.tables["attention_distance"]}
    assert found == pytest.approx({to: float(to == 8) for to in found}, abs=1e-5)
    assert evaluation.tables["summary"][0]["model"] == "untrained"
    assert "frequency_use" not in evaluation.tables


def test_attention_that_is_uniform_is_what_the_tables_call_uniform():
    tables = diagnosed(PositionEncoding).tables
    for row in tables["attention_entropy"]:
        logs = [math.log(n) for n in range(row["from"], row["to"] + 1)]
        assert row["entropy"] == pytest.approx(np.mean(logs), abs=1e-5)
        assert row["uniform"] == pytest.approx(np.mean(logs), abs=1e-5)
    for row in tables["attention_sinks"]:
        shares = [min(4 / n, 1) for n in range(row["from"], row["to"] + 1)]
        assert row["probability"] == pytest.approx(np.mean(shares), abs=1e-5)
        assert row["uniform"] == pytest.approx(np.mean(shares), abs=1e-5)
    for row in tables["attention_distance"]:
        there = range(row["from"], row["to"] + 1)
        known = np.mean([sum(d < n for d in there) / n for n in range(33, 65)])
        assert row["probability"] == pytest.approx(known, abs=1e-5)
        assert row["uniform"] == pytest.approx(known, abs=1e-5)
    assert sum(row["probability"] for row in tables["attention_distance"]) == pytest.approx(1)


def test_attention_on_the_first_token_alone():
    evaluation = diagnosed(First, sinks=1, traced=1)
    (layer,) = evaluation.tables["attention_layers"]
    assert layer["sinks"] == pytest.approx(1)
    assert layer["entropy"] == pytest.approx(0, abs=1e-5)
    assert layer["distance"] == pytest.approx(np.arange(32, 64).mean(), rel=1e-5)
    assert evaluation.metrics["attention/sinks@1"] == pytest.approx(100)
    assert evaluation.tables["summary"][0]["traced"] == 1


def test_norms_are_those_of_the_pairs_that_turn_together():
    """Queries of one channel after the norm: every pair but the second is empty."""
    decoder = planted(RoPE).decoder
    (block,) = decoder.blocks()
    with torch.no_grad():
        block.k.weight.zero_()
        for head in range(2):
            block.k.weight[16 * head + 1, :V] = 3
            block.k.weight[16 * head + 1 + 8, :V] = 4
    norms = attention_use(decoder, torch.arange(12)[None], 1, [0, 12])[1].norms
    assert norms.shape == (2, 8)
    assert not norms[0].any()
    expected = [0, 5 * math.sqrt(2 * V), 0, 0, 0, 0, 0, 0]
    assert norms[1].tolist() == pytest.approx(expected, rel=1e-4)
    blocks = planted(partial(HouseholderTAPE, R=8)).decoder
    assert attention_use(blocks, torch.arange(12)[None], 1, [0, 12])[1].norms is None


def test_margins_and_windows_decide_on_the_effective_context():
    losses = np.array([[3.0, 2.0, 1.5, 1.4], [5.0, 3.0, 2.5, 2.4]])
    rows = context_rows([1, 2, 4, 8], losses)
    assert [effective_context(rows, m) for m in (0.0, 0.11, 0.61, 1.0)] == [8, 4, 2, 2]
    assert rows[0]["excess"] == pytest.approx(2.1)
    harmed = context_rows([1, 2, 4, 8], losses[:, [0, 1, 3, 0]])
    assert effective_context(harmed, 0.0) == 4, "longer contexts do harm"
    assert [row["excess"] for row in harmed] == pytest.approx([2.1, 0.6, 0, 2.1])
    half = 12.7062047 * np.std([1.6, 2.6], ddof=1) / math.sqrt(2)
    assert rows[0]["excess_low"] == pytest.approx(2.1 - half, rel=1e-5)
    assert context_rows([1, 2], losses[:1, :2])[0]["low"] is None
    assert ranges(10, 1, 5) == [(1, 1), (2, 2), (3, 4), (5, 5), (6, 8), (9, 10)]


class Table(nn.Module):
    reach = 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": (8, 65)}, r"contexts=\[8, 65\] must be from 1 to task\.length=64"),
        ({}, r"task\.length=64 is more than the 40 positions that the model has; set .*=40"),
    ],
)
def test_wrong_settings_name_the_key(options, message):
    def evaluate():
        task = made(**{"length": LENGTH} | options)
        return task.evaluate(OnDevice(Table(), torch.device("cpu")), lambda items, _: items)

    with pytest.raises(ConfigError, match=message):
        evaluate()


def test_tables_reach_the_record_and_each_is_drawn(tmp_path):
    evaluation = diagnosed(RoPE, traced=1)
    tables = evaluation.for_record()["tables"]
    assert json.loads(json.dumps(tables)) == evaluation.tables
    directory = RunDirectory(compose_config(["task=diagnostics", "model=rope", f"runs={tmp_path}"]))
    directory.artifacts.mkdir(parents=True)
    evaluation.matrices = {"attention@1": np.eye(4)}
    images = save_artifacts(directory, evaluation)
    assert [image.stem for image in images] == [
        "patterns",
        "loss_by_position",
        "loss_by_context",
        "attention_sinks",
        "attention_distance",
        "attention_entropy",
        "frequency_use",
    ]
    assert all(image.stat().st_size > 1000 for image in images)
    assert {path.stem for path in directory.artifacts.glob("*.json")} == set(tables)
    assert diagnostic_panels({"places": []}) == {}
    for trained, marks in ((32, [32]), (LENGTH + 1, [])):
        tables["summary"][0]["trained_length"] = trained
        assert [*diagnostic_panels(tables)["loss_by_position"][0].marks] == marks


def test_a_text_that_is_too_short_says_what_fits(monkeypatch):
    task = made(length=64)
    monkeypatch.setattr(task, "tokens", lambda *_: np.arange(200))
    with pytest.raises(ConfigError, match=r"200 tokens, and .* need .*\. Set task\.rows=3, or a"):
        task.prepare()
