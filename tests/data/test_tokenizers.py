"""Tokenizers: lossless, reproducible, and errors that say what to change."""

import json
import shlex

import pytest

from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError

SAMPLES = [
    "Hello world",
    "def f(x):\n    return x + 1\n",
    "漢字 ünï — \t\r\n  spaces   ",
    "",
    "<s> and </s> are text here",
]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text(
        "the cat sat on the mat, and another dog barked under some wooden table all night long\n"
        * 200
    )
    return Text("tiny", source="local", path=str(tmp_path / "text"))


@pytest.mark.parametrize("kind", ["byte", "bpe", "words"])
def test_decoding_gives_back_every_byte(kind, corpus, tmp_path):
    tokenizer = Tokenization(kind, vocab=280).make(corpus, tmp_path)
    for sample, ids in zip(SAMPLES, tokenizer.encode_documents(SAMPLES), strict=True):
        assert tokenizer.decode(ids) == sample
        assert not {tokenizer.bos, tokenizer.eos} & set(ids.tolist())
        if kind == "byte":
            assert len(ids) == len(sample.encode())


def test_special_tokens_are_letters_in_a_document_and_tokens_in_a_prompt(corpus, tmp_path):
    tokenizer = Tokenization("byte").make(corpus, tmp_path)
    bos, eos = tokenizer.bos, tokenizer.eos
    letters = [tokenizer.backend.token_to_id(letter) for letter in "<s>A</s>"]
    said, token = "<s>A</s>", letters[3]
    assert tokenizer.encode_documents([said])[0].tolist() == letters
    assert tokenizer.encode_prompt(said) == [bos, token, eos], "it begins with BOS once"
    assert tokenizer.encode_prompt("A") == [bos, token]
    assert tokenizer.encode_prompt(f"<s>{said}") == [bos, bos, token, eos]
    assert tokenizer.encode_documents([said])[0].tolist() == letters, "whatever came before"
    without = Tokenization("byte", add_bos=False).make(corpus, tmp_path)
    assert without.encode_prompt("A") == [token]


def test_a_token_that_is_not_there_is_told_as_a_command_line_has_it(corpus, tmp_path):
    made = Tokenization("byte").make(corpus, tmp_path)
    (tmp_path / "tokenizer.json").write_text(made.save())
    with pytest.raises(
        ConfigError, match=r"bos='<\|x\|>': the tokenizer has no such token"
    ) as error:
        Tokenization(bos="<|x|>").load(tmp_path)
    (word,) = shlex.split(str(error.value).partition("in quotes: ")[2].rstrip("."))
    assert compose_config(["task=c4", word]).task.tokenizer.bos == "<s>"
    with pytest.raises(ConfigError, match="needs quotes around its value"):
        compose_config(["task=c4", "task.tokenizer.bos=<|x|>"])


def test_words_of_questions_are_tokens_and_digits_too(corpus, tmp_path):
    tokenizer = Tokenization("words").make(corpus, tmp_path)
    text = "One number of camel is 64723.\nLet winter be camel."
    parts = [tokenizer.decode([n]) for n in tokenizer.encode_documents([text])[0]]
    assert parts[:12] == ["One", " number", " of", " camel", " is", " ", *"64723", "."]
    assert parts[12:] == ["\n", "Let", " winter", " be", " camel", "."]


def test_digits_are_tokens_of_their_own_unless_runs_are_asked_for(tmp_path):
    (tmp_path / "train.txt").write_text("the year 2024 and 2025, x12 " * 200)
    text = Text("years", source="local", path=str(tmp_path))
    said = "the year 2024 and x1225"
    for digits, at_once in (("single", 1), ("runs", 4)):
        tokenizer = Tokenization(vocab=300, digits=digits).make(text, tmp_path)
        tokens = [tokenizer.decode([i]) for i in tokenizer.encode_documents([said])[0]]
        assert "".join(tokens) == said
        assert max(sum(c.isdigit() for c in token) for token in tokens) == at_once


def test_a_damaged_bpe_is_told(corpus, tmp_path):
    Tokenization(vocab=280).make(corpus, tmp_path)
    (kept,) = (tmp_path / "tokenizers").glob("bpe280-tiny-*.json")
    kept.write_text(kept.read_text()[:99])
    with pytest.raises(ConfigError, match=r"\w+\.json is not a tokenizer\.json .*; remove it"):
        Tokenization(vocab=280).make(corpus, tmp_path)


def test_file_gives_the_same_tokenizer(corpus, tmp_path):
    made = Tokenization(vocab=280).make(corpus, tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(made.save())
    loaded = Tokenization("file", path=str(path)).make(corpus, tmp_path)
    assert loaded.fingerprint == made.fingerprint
    assert (
        loaded.encode_documents(["the dog"])[0].tolist()
        == made.encode_documents(["the dog"])[0].tolist()
    )


def test_truncation_and_padding_of_a_file_are_switched_off(corpus, tmp_path):
    """They would cut every document, or fill it up, without a word."""
    plain = Tokenization("byte").make(corpus, tmp_path)
    settings = json.loads(plain.save())
    truncation = {"max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 64}, "pad_to_multiple_of": None, "pad_id": 0}
    padding |= {"pad_type_id": 0, "pad_token": "<s>"}
    settings["truncation"] = truncation | {"direction": "Right"}
    settings["padding"] = padding | {"direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    loaded = Tokenization().load(tmp_path / "tokenizer.json")
    for one, other in zip(
        loaded.encode_documents(SAMPLES), plain.encode_documents(SAMPLES), strict=True
    ):
        assert one.tolist() == other.tolist()
    assert loaded.fingerprint == plain.fingerprint
    assert json.loads(loaded.save())["truncation"] is None
