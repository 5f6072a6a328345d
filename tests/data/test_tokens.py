"""Tokens of a split: every document once, BOS before each, exact bytes, a file whole or absent."""

import errno
import json
import multiprocessing
import os

import numpy as np
import pytest

from tape_exp.data import tokenization
from tape_exp.data import tokens as tokens_module
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.data.tokens import tokenise

DOCUMENTS = [f"document {i}: " + "ü word " * (i % 17) for i in range(300)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    return Text("tiny", source="local", path=str(folder))


@pytest.fixture
def tokenizer(corpus, tmp_path):
    return Tokenization("byte").make(corpus, tmp_path)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(tokens_module, "AT_ONCE", 5)


def expected(tokenizer) -> np.ndarray:
    return np.concatenate([[tokenizer.bos, *ids] for ids in tokenizer.encode_documents(DOCUMENTS)])


def test_every_document_once_with_bos(corpus, tokenizer, tmp_path, small_batches):
    tokens = tokenise(corpus, "train", tokenizer, tmp_path)
    whole = expected(tokenizer)
    assert np.array_equal(tokens[:], whole)
    for start, stop in (
        (0, 5),
        (990, 1010),
        (1234, 4567),
        (len(whole) - 3, len(whole) + 9),
        (7, 7),
    ):
        assert np.array_equal(tokens[start:stop], whole[start:stop])
    assert np.array_equal(tokens.blocks(np.array([3, 1500]), 40), [whole[3:43], whole[1500:1540]])


def test_a_limit_holds_for_every_way_to_read(corpus, tokenizer, tmp_path):
    whole = expected(tokenizer)
    tokenise(corpus, "train", tokenizer, tmp_path)
    tokens = tokenise(corpus, "train", tokenizer, tmp_path, needed=100)
    assert len(tokens) == 100
    assert np.array_equal(tokens[90:200], whole[90:100])
    assert np.array_equal(tokens.blocks(np.array([60]), 40), [whole[60:100]])
    with pytest.raises(IndexError):
        tokens.blocks(np.array([61]), 40)


def test_bytes_are_exact(corpus, tokenizer, tmp_path, small_batches):
    assert tokenise(corpus, "train", tokenizer, tmp_path).bytes(tokenizer.decode) == sum(
        len(d.encode()) for d in DOCUMENTS
    )
    cut = tokenise(corpus, "train", tokenizer, tmp_path, needed=1007)
    assert len(cut) == 1007
    documents = int((cut[:] == tokenizer.bos).sum())
    assert cut.bytes(tokenizer.decode) == 1007 - documents  # a byte a token


def test_only_what_is_needed_is_read_and_more_is_added_later(
    corpus, tokenizer, tmp_path, small_batches
):
    few = tokenise(corpus, "train", tokenizer, tmp_path, needed=500)
    assert len(few) == 500
    assert few._ids.size < 2000
    more = tokenise(corpus, "train", tokenizer, tmp_path, needed=3000)
    assert np.array_equal(more[:500], few[:])
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path, needed=500)[:], few[:])


def test_a_changed_corpus_or_tokenizer_is_tokenised_anew(corpus, tokenizer, tmp_path):
    tokenise(corpus, "train", tokenizer, tmp_path)
    bpe = Tokenization(vocab=300).make(corpus, tmp_path)
    assert len(tokenise(corpus, "train", bpe, tmp_path)) < len(expected(tokenizer))
    (tmp_path / "text" / "train.jsonl").write_text(json.dumps({"text": "new"}) + "\n")
    assert tokenizer.decode(tokenise(corpus, "train", tokenizer, tmp_path)[1:]) == "new"


def test_killed_while_tokenising_begins_again(corpus, tokenizer, tmp_path, small_batches):
    def dies():
        os.replace = lambda *_: os._exit(9)
        tokenise(corpus, "train", tokenizer, tmp_path)

    process = multiprocessing.get_context("fork").Process(target=dies)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert not list(tmp_path.glob("tokens/*.npz"))
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))


def test_a_full_disk_under_the_cache_is_named(corpus, tokenizer, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '\S+/tokens/tiny-train-"):
            tokenise(corpus, "train", tokenizer, tmp_path)
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))


def test_a_warm_cache_is_only_read(corpus, tmp_path, monkeypatch):
    """It may be on a file system that cannot be written."""
    bpe = Tokenization("bpe", vocab=300)
    whole = tokenise(corpus, "train", bpe.make(corpus, tmp_path), tmp_path)[:]

    def refused(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for module in (tokens_module, tokenization):
        monkeypatch.setattr(module, "FileLock", refused)
    again = tokenise(corpus, "train", bpe.make(corpus, tmp_path), tmp_path)
    assert np.array_equal(again[:], whole)


def test_processes_that_start_together_write_once(corpus, tokenizer, tmp_path, small_batches):
    def work(queue):
        queue.put(tokenise(corpus, "train", tokenizer, tmp_path).fingerprint())

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(queue,)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {queue.get(timeout=900) for _ in processes}
    for process in processes:
        process.join()
    assert found == {tokenise(corpus, "train", tokenizer, tmp_path).fingerprint()}
