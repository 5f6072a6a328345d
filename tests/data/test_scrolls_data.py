"""SCROLLS: every source gives the same examples; prompts keep their question whole and a beginning
of their document.
"""

import gzip
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers as library
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, trainers

from tape_exp.data.batch import IGNORE
from tape_exp.data.builtin.scrolls import scrolls_rows
from tape_exp.data.scrolls import DATASETS, Example, as_row, encode, prompt, read
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.settings.errors import ConfigError

ASKING = [name for name, form in DATASETS.items() if "{question}" in form.closing]


def row(number: int, text: str, output: str | None, reference: int = 0) -> dict:
    return {"id": f"e{number}", "pid": f"e{number}_{reference}", "input": text, "output": output}


def write(path: Path, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{path.stem}/train.jsonl", content)
        return
    path.write_bytes(content)


@pytest.fixture(scope="module")
def byte(tmp_path_factory) -> Tokenizer:
    return Tokenization("byte").make(Text("none"), tmp_path_factory.mktemp("byte"))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "train.txt").write_text(
        "\n".join(e.document for e in read("qmsum", "train") + read("qasper", "train"))
    )
    return Tokenization("bpe", vocab=500).make(
        Text("tiny", source="local", path=str(folder)), folder
    )


@pytest.fixture(scope="module")
def marking() -> Tokenizer:
    """Built as Llama-2's is: a mark before every text, words that hold the space before them, bytes
    for what is unknown.
    """
    special = ["<unk>", "<s>", "</s>"]
    words = {w for e in read("qasper", "train") for w in f"{e.document} {e.closing}".split()}
    trained = library.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Prepend("▁")
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256))]
    trained.train_from_iterator(
        sorted(words),
        trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False),
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    backend = library.Tokenizer(
        models.BPE(model["vocab"], merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    backend.add_special_tokens(special)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(parts)
    return Tokenization().tokenizer_of(backend)


def test_rows_of_one_id_are_references_of_one_example(tmp_path):
    rows = [
        row(1, "Why?\n\nOne\n\ntwo", "a"),
        row(2, "How?\n\nOne\n\ntwo", "b"),
        row(1, "Why?\n\nOne\n\ntwo", "c", 1),
    ]
    write(tmp_path / "train.jsonl", rows)
    first, second = read("qasper", "train", "local", str(tmp_path))
    assert first == Example("qasper", "e1", "Why?", "One\n\ntwo", ["a", "c"])
    assert second == Example("qasper", "e2", "How?", "One\n\ntwo", ["b"])
    assert first.document is second.document


@pytest.mark.parametrize(
    "options",
    ["\n\n(A) x\n(B) y\n(C) z\n(D) w\n\n", "\n\n (A) x\n\n (B) y\n\n (C) z\n\n (D) w\n\n\n"],
)
def test_options_of_quality_belong_to_its_question(options, tmp_path):
    write(tmp_path / "train.jsonl", [row(1, f"Which?{options}A story\n\n(A) tale", "x")])
    (example,) = read("quality", "train", "local", str(tmp_path))
    assert (example.question, example.document) == (
        f"Which?{options}".strip(),
        "A story\n\n(A) tale",
    )


@pytest.mark.parametrize(
    "name",
    ["qasper/train.jsonl", "qasper/train.jsonl.gz", "train.jsonl", "train.jsonl.gz", "qasper.zip"],
)
def test_every_layout_gives_the_same_examples(name, tmp_path):
    write(tmp_path / name, list(scrolls_rows("qasper", "train")))
    assert read("qasper", "train", "local", str(tmp_path)) == read("qasper", "train")


def test_a_wrong_row_names_its_file(tmp_path):
    write(tmp_path / "train.jsonl", [row(3, "Why?\n\nOne \ud800", "so")])
    (example,) = read("qasper", "train", "local", str(tmp_path))
    assert example.document == "One ?"  # a lone surrogate cannot be tokenised
    for wrong, told in (
        (row(2, "none", "so"), "e2 has no blank line"),
        ({"id": "e1"}, "no field 'input'; a row of SCROLLS has"),
        (row(2, "Why?\n\nOne", None), "'output' is empty"),
        (row(2, "Why?\n\nOne", 5), "'output' is 5, of type int, no text"),
        ("{", "line 1 is not JSON"),
    ):
        write(tmp_path / "train.jsonl", [wrong])
        with pytest.raises(ConfigError, match=rf"train\.jsonl cannot be read: .*{told}"):
            read("qasper", "train", "local", str(tmp_path))


def test_special_tokens_of_a_prompt_are_tokens_and_those_of_an_answer_letters(byte):
    example = Example("qasper", "e", "Where is </s>?", "<s>Here it is.", ["At </s> it is"])
    asked, answer = encode(example, byte, 400)
    assert [asked.count(token) for token in (byte.bos, byte.eos)] == [1, 1]
    assert answer.count(byte.eos) == 1, "its end"
    assert byte.decode(answer[:-1]) == " At </s> it is"
    assert prompt(example, byte, 400, len(answer)) == asked


def check(example: Example, tokenizer: Tokenizer, encoded, max_length: int) -> None:
    """What holds of every example and length."""
    asked, answer = encoded
    assert len(asked) + len(answer) <= max_length
    assert asked[0] == tokenizer.bos
    assert answer[-1] == tokenizer.eos
    text = tokenizer.decode(asked)
    assert text.endswith(example.closing)
    assert example.document.startswith(text.removesuffix(example.closing))
    assert example.references[0].startswith(tokenizer.decode(answer).strip())


@pytest.mark.parametrize("kind", ["byte", "bpe", "marking"])
@given(data=st.data())
@settings(deadline=None, max_examples=80)
def test_every_example_is_cut_to_every_length(kind, request, data):
    tokenizer = request.getfixturevalue(kind)
    letters = st.sampled_from("ab ce. \nThe漢ü€😀")
    words = st.text(letters, max_size=60).map(lambda s: f"x{s}x")
    dataset = data.draw(st.sampled_from(sorted(DATASETS)))
    question = data.draw(words) if dataset in ASKING else None
    example = Example(dataset, "e1", question, data.draw(words), [data.draw(words)])
    max_length, limit = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 80))
    told = ""
    try:
        encoded = encode(example, tokenizer, max_length, limit)
    except ConfigError as error:
        told = str(error)
    if told:
        fits = int(re.search(r"is too short for \w+ e1: task\.max_length=(\d+) leaves", told)[1])
        assert fits > max_length
        max_length = fits
        encoded = encode(example, tokenizer, max_length, limit)
    assert len(encoded[1]) <= limit + 1
    check(example, tokenizer, encoded, max_length)


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_fits_is_kept_whole(dataset, bpe):
    for example in read(dataset, "validation"):
        for number, reference in enumerate(example.references):
            encoded = encode(example, bpe, 2000, reference=number)
            assert bpe.decode(encoded[0]) == example.document + example.closing
            assert bpe.decode(encoded[1]) == " " + reference


def test_pieces_are_tokenised_as_in_running_text(marking):
    """The mark of a text's beginning stands at the beginning only."""
    example = Example(
        "qasper", "e1", "What is the size of the tree?", "The size of the tree is old.", ["old"]
    )
    encoded = encode(example, marking, 400)
    whole = marking.encode_documents([f"{example.document}{example.closing} old"])[0].tolist()
    assert [*encoded[0][1:], *encoded[1][:-1]] == whole


def test_the_answer_leaves_the_document_its_half(bpe):
    document, summary = ("It is the line and the method. " * 200, "The line. " * 400)
    example = Example("gov_report", "e1", None, document, [summary])
    encoded = encode(example, bpe, 256)
    closing = len(bpe.encode_documents([example.closing])[0])
    assert len(encoded[1]) - 1 == (256 - 2 - closing) // 2
    assert len(encoded[0]) == 256 - len(encoded[1])
    for dataset, limit in (("gov_report", 1000), ("qasper", 200)):
        longer = replace(example, dataset=dataset, question="Why?")
        assert len(encode(longer, bpe, 8192)[1]) == limit + 1
    assert prompt(example, bpe, 256, 100) == prompt(replace(example, references=[]), bpe, 256, 100)


def test_only_the_answer_has_labels(byte):
    example = Example("qasper", "e1", "Why?", "Because of it.", ["it"])
    encoded = encode(example, byte, 64)
    kept = as_row(*encoded, 80)
    tokens = encoded[0] + encoded[1]
    assert kept["inputs"].shape == kept["labels"].shape == (80,)
    assert kept["inputs"][: len(tokens) - 1].tolist() == tokens[:-1]
    scored = kept["labels"] != IGNORE
    assert kept["labels"][scored].tolist() == encoded[1]
    assert scored.nonzero()[0] == len(encoded[0]) - 1
    assert torch.equal(
        scored.nonzero().flatten().diff(), torch.ones(len(encoded[1]) - 1, dtype=torch.long)
    )
    assert torch.equal(
        as_row(*encoded, len(tokens) - 1)["labels"], kept["labels"][: len(tokens) - 1]
    )
