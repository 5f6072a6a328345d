"""Perplexity: by hand on a known model, each token once, windows, bits per byte, errors."""

import json
import math

import numpy as np
import pytest
import torch

from tape_exp.data.batch import IGNORE
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.data.tokens import tokenise
from tape_exp.models.conformance import randomise
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.tasks.perplexity import Windows, _units, bootstrap, perplexity, score
from tests.conftest import SMALL, make_decoder, silent
from tests.tasks.in_two import evaluate


@pytest.fixture
def tokenizer(text_folder):
    return Tokenization("byte").make(Text("set"), text_folder)


def scoring(model):
    """A model as the evaluation calls it."""

    def scores(tokens, output, sampler=None):
        return output.compute(model(tokens), torch.nn.Identity())

    return scores


def one_by_one(model, ids: torch.Tensor, length: int, stride: int, mode: str) -> float:
    """exp of the mean of what every window's plain logits give, one window at a time, summed in
    fp64.

    Windows of ``length`` tokens begin every ``stride``; ``all`` tokens of a window are scored, or
    those that are ``new``: that no window before has scored.
    """
    total, count, reached = 0.0, 0, 0
    for start in range(0, len(ids), stride):
        window = ids[start : start + length + 1]
        nll = torch.nn.functional.cross_entropy(
            model(window[None, :-1])[0].double(), window[1:], reduction="none"
        )
        scored = nll[reached - start :] if mode == "new" and start else nll
        total, count = total + float(scored.sum()), count + len(scored)
        reached = start + len(window) - 1
        if reached == len(ids) - 1:
            return math.exp(total / count)
    raise AssertionError("the windows end before the text")


@pytest.mark.parametrize(("mode", "stride"), [("all", 32), ("new", 32), ("all", None)])
@pytest.mark.parametrize("name", ["rope", "tape"])
@torch.no_grad()
def test_perplexity_is_that_of_one_window_at_a_time(
    name, mode, stride, text_folder, tokenizer, caplog
):
    """Lengths that are and are not multiples of the stride, one beyond the text, of which one is
    told, and a text of 457 tokens, a prime.
    """
    text = Text("set", source="local", path=str(text_folder))
    tokens = tokenise(text, "test", tokenizer, text_folder / "cache", 457)
    assert len(tokens) == 457
    model = make_decoder(
        name, Arch(2, 32, 4, 48, vocab=tokenizer.vocab, max_length=600, train_length=96)
    )
    randomise(model)
    lengths = (33, 64, 96, 200, 600)
    found = perplexity(
        model,
        tokens,
        tokenizer.decode,
        Windows(lengths, stride, mode, tokens_per_batch=300),
        "set",
        silent,
    )
    told = [record.getMessage() for record in caplog.records if record.name == "tape_exp"]
    assert told[-1:] == ["Text set has only 457 tokens: its perplexity@600 is of shorter contexts."]
    ids = torch.from_numpy(tokens[:])
    expected = {n: one_by_one(model, ids, n, stride or n, mode) for n in lengths}
    assert len({round(value, 3) for value in expected.values()}) == len(lengths)
    for length in lengths:
        assert found[f"set/perplexity@{length}"] == pytest.approx(expected[length], rel=1e-5), (
            length
        )


@torch.no_grad()
def test_a_token_that_is_not_scored_is_only_read(text_folder, tokenizer):
    """BOS, as of a Llama: the same logits, and one target less for each document but the first."""
    text = Text("set", source="local", path=str(text_folder))
    tokens = tokenise(text, "test", tokenizer, text_folder / "cache")
    model = make_decoder("rope", Arch(2, 32, 4, 48, vocab=tokenizer.vocab, max_length=64))
    randomise(model)
    read = (tokens, tokenizer.decode, Windows((64,)), "set", silent, None, tokenizer.bos)
    found = perplexity(model, *read)
    ids = torch.from_numpy(tokens[:])
    windows = [ids[start : start + 65] for start in range(0, len(ids) - 1, 64)]
    nll, ignored = 0.0, {"ignore_index": tokenizer.bos, "reduction": "sum"}
    for window in windows:
        logits = model(window[None, :-1])[0].double()
        nll += float(torch.nn.functional.cross_entropy(logits, window[1:], **ignored))
    documents = [json.loads(line)["text"] for line in (text_folder / "test.jsonl").open()]
    scored = len(ids) - len(documents)
    assert found["set/tokens"] == scored
    assert found["set/perplexity@64"] == pytest.approx(math.exp(nll / scored), rel=1e-5)
    size = sum(len(document.encode()) for document in documents)
    assert found["set/bits_per_byte@64"] == pytest.approx(nll / math.log(2) / size, rel=1e-5)
    share = np.unique(ids[ids != tokenizer.bos], return_counts=True)[1] / scored
    unigram = math.exp(-(share * np.log(share)).sum())
    assert found["set/unigram_perplexity"] == pytest.approx(unigram)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pg19_sliding", "proof_pile_sliding"])
def test_the_sliding_tasks_have_the_papers_protocol(task):
    windows = compose_config([f"task={task}", "scale=paper"]).task.windows
    assert [*windows.lengths] == [1024, 2048, 4096, 8192]
    assert (windows.stride, windows.score, windows.tokens) == (256, "all", 2**22)


def test_bits_per_byte_are_of_the_text_whatever_the_tokenizer(text_folder):
    """All bits that a uniform model spends on a split, over the bytes of its documents."""
    text = Text("set", source="local", path=str(text_folder))
    documents = [
        json.loads(line)["text"] for line in (text_folder / "test.jsonl").read_text().splitlines()
    ]
    size = sum(len(document.encode()) for document in documents)
    for tokenization in (Tokenization("byte"), Tokenization(vocab=300)):
        tokenizer = tokenization.make(text, text_folder / "cache")
        tokens = tokenise(text, "test", tokenizer, text_folder / "cache")
        assert len(tokens) == sum(len(ids) + 1 for ids in tokenizer.encode_documents(documents))

        def uniform(ids, vocab=tokenizer.vocab):
            return torch.zeros(*ids.shape, vocab)

        bits = perplexity(
            scoring(uniform), tokens, tokenizer.decode, Windows((32,)), "set", silent
        )["set/bits_per_byte@32"]
        scored = len(tokens) - 1
        assert bits == pytest.approx(math.log2(tokenizer.vocab) * scored / size)


def test_bootstrap_agrees_with_the_delta_method():
    generator = np.random.default_rng(1)
    nll, count = generator.normal(300, 30, 400), np.full(400, 100.0)
    expected = math.exp(3) * (nll / count).std() / 400**0.5
    assert bootstrap(nll, count) == pytest.approx(expected, rel=0.1)
    assert bootstrap(nll, count) == bootstrap(nll, count)
    assert bootstrap(nll[:1], count[:1]) == 0


@pytest.mark.parametrize("mode", ["all", "new"])
def test_the_error_counts_a_token_once_however_many_windows_score_it(mode):
    """Tokens whose losses are independent: the error of their mean is σ / √n.

    What overlaps is not counted as further tokens: as units of a window's length that begin a
    window apart, of which neighbours share tokens, it would come out a fifth too small.
    """
    ids = np.random.default_rng(0).integers(0, 50, 40_001)
    losses = torch.linspace(1, 3, 50)

    def model(inputs, output, sampler):
        labels = output.labels
        return torch.where(labels == IGNORE, 0.0, losses[labels.clamp(min=0)])

    windows = Windows((64,), 16, mode)
    nll, count = score(model, ids, windows, 64, "", silent)
    assert count.max() == (64 if mode == "all" else 16)
    expected = math.exp(2) * float(losses.std()) / 200
    assert bootstrap(*_units(nll, count, windows, 64)) == pytest.approx(expected, rel=0.1)


def test_a_stride_that_leaves_tokens_out_is_refused():
    with pytest.raises(ConfigError, match=r"stride=33 is above 32"):
        Windows(lengths=(64, 32), stride=33)


def test_metrics_are_named_after_the_text_that_was_read(tmp_path):
    """Built-in text is not the corpus in whose place it is read."""
    words = ["task=pg19", "task.windows.lengths=[16]", "task.windows.tokens=100", *SMALL[:4]]
    words += ["task.train_length=16", "task.tokenizer.kind=byte", f"cache={tmp_path}"]
    metrics = evaluate(words)
    assert "builtin_pg19/perplexity@16" in metrics
    assert not [name for name in metrics if name.startswith("pg19/")]
