"""Packing: every document once, BOS before each, exact bytes, and nothing lost when a process is
killed.
"""

import copy
import errno
import json
import logging
import multiprocessing
import os

import numpy as np
import pytest

from tape_exp.data import packing, tokenizers
from tape_exp.data.packing import tokenise
from tape_exp.data.sources import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.settings.errors import ConfigError

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
def small_shards(monkeypatch):
    monkeypatch.setattr(packing, "SHARD", 1000)
    monkeypatch.setattr(packing, "AT_ONCE", 200)


def expected(tokenizer) -> np.ndarray:
    return np.concatenate([[tokenizer.bos, *ids] for ids in tokenizer.encode(DOCUMENTS)])


def test_every_document_once_with_bos(corpus, tokenizer, tmp_path, small_shards):
    tokens = tokenise(corpus, "train", tokenizer, tmp_path)
    whole = expected(tokenizer)
    assert len(list(tmp_path.glob("tokens/*/*.bin"))) > 5
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
    assert tokens.facts["documents"] == len(DOCUMENTS)


def test_another_token_before_documents_is_another_cache(corpus, tokenizer, tmp_path):
    """Its id is no part of the tokenizer's fingerprint."""
    other = copy.copy(tokenizer)
    other.bos = 7
    first = [int(tokenise(corpus, "train", each, tmp_path)[:1][0]) for each in (tokenizer, other)]
    assert first == [tokenizer.bos, 7]


def test_bytes_are_exact(corpus, tokenizer, tmp_path, small_shards):
    assert tokenise(corpus, "train", tokenizer, tmp_path).bytes(tokenizer.decode) == sum(
        len(d.encode()) for d in DOCUMENTS
    )
    cut = tokenise(corpus, "train", tokenizer, tmp_path, needed=1007)
    assert len(cut) == 1007
    documents = int((cut[:] == tokenizer.bos).sum())
    assert cut.bytes(tokenizer.decode) == 1007 - documents  # a byte a token


def test_the_second_start_reads_the_cache(corpus, tokenizer, tmp_path, monkeypatch):
    first = tokenise(corpus, "train", tokenizer, tmp_path)
    monkeypatch.setattr(
        Text, "documents", lambda *_, **__: pytest.fail("the corpus was read again")
    )
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], first[:])


def test_only_what_is_needed_is_read_and_more_is_added_later(
    corpus, tokenizer, tmp_path, small_shards
):
    few = tokenise(corpus, "train", tokenizer, tmp_path, needed=500)
    assert len(few) == 500
    assert few.facts["documents"] < 100
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


def test_killed_while_tokenising_goes_on(corpus, tokenizer, tmp_path, small_shards, monkeypatch):
    """A process that dies after three files leaves those three; the next one writes the rest and
    nothing twice.
    """

    def dies():
        calls = 0
        replace = os.replace

        def counted(*arguments):
            nonlocal calls
            calls += str(arguments[1]).endswith(".bin")
            if calls == 4:
                os._exit(9)
            replace(*arguments)

        os.replace = counted
        tokenise(corpus, "train", tokenizer, tmp_path)

    process = multiprocessing.get_context("fork").Process(target=dies)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(list(tmp_path.glob("tokens/*/[0-9]*.json"))) == 3
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))
    assert not list(tmp_path.glob("tokens/*/.[0-9]*"))


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-2])


def copied(path):
    """The content of the file before, as a careless copy of the folder would have it."""
    path.write_bytes(path.with_name(f"{int(path.stem) - 1:05d}{path.suffix}").read_bytes())


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [zeroed, cut_short, copied, flipped, os.unlink])
@pytest.mark.parametrize("suffix", [".bin", ".npy", ".json"])
def test_a_damaged_file_is_made_again(
    damage, suffix, corpus, tokenizer, tmp_path, small_shards, monkeypatch, caplog
):
    monkeypatch.setattr(logging.getLogger("tape_exp"), "propagate", True)
    tokenise(corpus, "train", tokenizer, tmp_path)
    (folder,) = (tmp_path / "tokens").iterdir()
    files = {path.name: path.read_bytes() for path in folder.glob("[0-9]*")}
    damage(folder / f"00002{suffix}")
    tokens = tokenise(corpus, "train", tokenizer, tmp_path)
    assert np.array_equal(tokens[:], expected(tokenizer))
    assert tokens.bytes(tokenizer.decode) == sum(len(d.encode()) for d in DOCUMENTS)
    assert {path.name: path.read_bytes() for path in folder.glob("[0-9]*")} == files
    assert "is damaged: tokenising again from there" in caplog.text or damage is os.unlink


def test_a_cache_without_checksums_is_made_again(corpus, tokenizer, tmp_path, small_shards):
    """Caches of before may hold what a tokenizer with truncation has left of the documents."""
    tokenise(corpus, "train", tokenizer, tmp_path)
    for index in tmp_path.glob("tokens/*/[0-9]*.json"):
        facts = json.loads(index.read_text())
        del facts["sha256"], facts["size"]
        index.write_text(json.dumps(facts))
        index.with_suffix(".bin").write_bytes(b"??" * facts["tokens"])
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))


def test_a_full_disk_under_the_cache_is_named(corpus, tokenizer, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"cache=\S+ cannot be written \(No space left on"):
            tokenise(corpus, "train", tokenizer, tmp_path)
    assert not list(tmp_path.glob("tokens/*/.[0-9]*"))
    assert np.array_equal(tokenise(corpus, "train", tokenizer, tmp_path)[:], expected(tokenizer))


def test_a_warm_cache_is_only_read(corpus, tmp_path, monkeypatch):
    """It may be on a file system that cannot be written."""
    bpe = Tokenization("bpe", vocab=300)
    whole = tokenise(corpus, "train", bpe.make(corpus, tmp_path), tmp_path)[:]

    def refused(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for module in (packing, tokenizers):
        monkeypatch.setattr(module, "file_lock", refused)
    again = tokenise(corpus, "train", bpe.make(corpus, tmp_path), tmp_path)
    assert np.array_equal(again[:], whole)


def test_processes_that_start_together_write_once(corpus, tokenizer, tmp_path, small_shards):
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


def test_an_empty_corpus_and_skipped_rows_are_told(
    corpus, tokenizer, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("tape_exp"), "propagate", True)
    (tmp_path / "text" / "train.jsonl").write_text('\n\n{"text": ""}\n')
    with pytest.raises(ConfigError, match="text tiny: its split train holds no document"):
        tokenise(corpus, "train", tokenizer, tmp_path)
    (tmp_path / "text" / "train.jsonl").write_text('{"text": "kept"}\nbroken\nbroken\n')
    tokenise(corpus, "train", tokenizer, tmp_path)
    assert "2 rows were skipped, 1 documents are used" in caplog.text
