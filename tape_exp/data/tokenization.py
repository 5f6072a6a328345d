"""How a task cuts text into tokens: by a tokenizer of the hub or of a file, by bytes, by words, or
by a BPE that is trained on the corpus.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tokenizers
from annotated_types import Interval, MinLen
from filelock import FileLock
from tokenizers import decoders, models, pre_tokenizers, trainers

from tape_exp.data.hub import OFFLINE, download
from tape_exp.data.retrieval import vocabulary
from tape_exp.data.special_tokens import NAMES, Named, named_in
from tape_exp.data.text import Text
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import short_hash, write_atomically
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count

log = logging.getLogger("tape_exp")
NotEmpty = Annotated[str, MinLen(1)]


@dataclass(frozen=True)
class Tokenization:
    """How text is cut into tokens. A task that begins from a run's checkpoint uses that run's
    tokenizer instead. Of a Llama's tokenizer ``bos``, ``eos`` and ``add_bos`` are what its own
    files say, unless they are given here.
    """

    # bpe: byte-level, trained on the corpus; words: bytes, and a token for each word of
    # task=retrieval_training; file: a tokenizer.json
    kind: Literal["bpe", "byte", "words", "file", "hub"] = "bpe"
    vocab: Annotated[int, Interval(ge=258, le=1_000_000)] = 2048  # of bpe, with 256 bytes
    path: NotEmpty | None = None  # file: of the tokenizer.json; hub: the repository
    bos: NotEmpty = "<s>"  # before a document
    eos: NotEmpty = "</s>"  # after an answer
    add_bos: bool = True  # whether a prompt begins with BOS too
    stops: tuple[str, ...] = ()  # further tokens that end an answer
    # bpe: each is a token, as in Llama-2's tokenizer; or runs grow together, so that a number is
    # cut at places which differ from number to number.
    digits: Literal["single", "runs"] = "single"
    sample_mb: Count = 32  # bpe: of the corpus, from its beginning, that it is trained on

    def make(self, text: Text, cache: Path) -> Tokenizer:
        """Make the tokenizer; a BPE is trained on ``text`` once and kept in ``cache``."""
        if self.kind == "file":
            return self._of_file()
        if self.kind == "hub":
            return self._of_hub()
        if self.kind == "bpe":
            return self._of_corpus(text, cache)
        backend = _byte_level(self)
        if self.kind == "words":  # a word is one token, with a space before it or without
            words: list[str] = []
            for word in vocabulary():
                words += [f" {word}", word]
            backend.add_tokens(words)
        return self.tokenizer_of(backend)

    def _of_file(self) -> Tokenizer:
        """Load the file that ``path`` names."""
        if self.path is None:
            raise ConfigError("task.tokenizer.kind=file needs task.tokenizer.path.")
        return self.load(Path(self.path).expanduser())

    def _of_hub(self) -> Tokenizer:
        """Load the files of the repository that ``path`` names."""
        file = "tokenizer.json"
        folder = download(
            str(self.path),
            [file, NAMES],
            lambda here: [here / file],
            what=f"task.tokenizer.path={self.path}",
            instead=f"task.tokenizer.kind=bpe, byte or file need no network. {OFFLINE}",
        )
        return self.load(folder)

    def _of_corpus(self, text: Text, cache: Path) -> Tokenizer:
        """Load the BPE of the corpus from the cache, trained first where it is not there yet."""
        key = short_hash([f"{text.fingerprint('train')} {self} 1"])[:12]
        path = cache / "tokenizers" / f"bpe{self.vocab}-{text.name}-{key}.json"
        if not path.exists():
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():  # another process may have made it meanwhile
                    write_atomically(path, self._trained(text).to_str())
        return self.load(path)

    def load(self, path: Path) -> Tokenizer:
        """Load a ``tokenizer.json``, or a folder with one, and what the files beside it say
        (:func:`named_in`). Raises :class:`ConfigError` where it is none, or lacks one of the two
        special tokens.
        """
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(
                f"the tokenizer {path} does not exist; task.tokenizer.kind=bpe trains one."
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ConfigError(
                f"{path} is not a tokenizer.json of the tokenizers library ({error}); remove it."
            ) from error
        return self.tokenizer_of(backend, named_in(path.parent))

    def tokenizer_of(self, backend: tokenizers.Tokenizer, named: Named | None = None) -> Tokenizer:
        """Give the library's tokenizer the special tokens of the settings."""
        return Tokenizer(
            backend,
            bos=self.bos,
            eos=self.eos,
            stops=self.stops,
            add_bos=self.add_bos,
            named=named,
        )

    def _trained(self, text: Text) -> tokenizers.Tokenizer:
        """Train a BPE on the beginning of the corpus."""
        log.info("Training a BPE of %d tokens on %s.", self.vocab, text.label)
        began = time.monotonic()
        tokenizer = _byte_level(self)
        if self.digits == "single":
            digits = pre_tokenizers.Digits(individual_digits=True)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab,
            special_tokens=[self.bos, self.eos],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_beginning(text, self.sample_mb << 20), trainer)
        log.info("%d tokens, %.1f s.", tokenizer.get_vocab_size(), time.monotonic() - began)
        return tokenizer


def _byte_level(settings: Tokenization) -> tokenizers.Tokenizer:
    """Make a BPE over bytes: no text is unknown to it, and decoding gives back every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {t: n for n, t in enumerate([settings.bos, settings.eos, *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([settings.bos, settings.eos])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _beginning(text: Text, limit: int) -> Iterator[str]:
    """Yield training documents until ``limit`` characters are reached."""
    seen = 0
    for document in text.documents("train"):
        yield document[: limit - seen]
        seen += len(document)
        if seen >= limit:
            return
