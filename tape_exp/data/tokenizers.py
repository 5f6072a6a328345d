"""Tokenizers: of the hub or a ``tokenizer.json``, bytes, words, or a BPE trained on the corpus."""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tokenizers
from annotated_types import Interval, MinLen
from filelock import FileLock
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from tape_exp.data.files import as_utf8
from tape_exp.data.hub import OFFLINE, download
from tape_exp.data.retrieval import vocabulary
from tape_exp.data.text import Text
from tape_exp.machine.files import short_hash, write_atomically
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal
from tape_exp.settings.schema import Count

log = logging.getLogger("tape_exp")
NAMES = "tokenizer_config.json"  # the file that names a tokenizer's special tokens
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

    def make(self, text: Text, cache: Path) -> "Tokenizer":
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
        return Tokenizer(backend, self)

    def _of_file(self) -> "Tokenizer":
        """Load the file that ``path`` names."""
        if self.path is None:
            raise ConfigError("task.tokenizer.kind=file needs task.tokenizer.path.")
        return self.load(Path(self.path).expanduser())

    def _of_hub(self) -> "Tokenizer":
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

    def _of_corpus(self, text: Text, cache: Path) -> "Tokenizer":
        """Load the BPE of the corpus from the cache, trained first where it is not there yet."""
        key = short_hash([f"{text.fingerprint('train')} {self} 1"])[:12]
        path = cache / "tokenizers" / f"bpe{self.vocab}-{text.name}-{key}.json"
        if not path.exists():
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():  # another process may have made it meanwhile
                    write_atomically(path, self._trained(text).to_str())
        return self.load(path)

    def load(self, path: Path) -> "Tokenizer":
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
        return Tokenizer(backend, self, named_in(path.parent))

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


@dataclass(frozen=True)
class Named:
    """The special tokens that the files beside a ``tokenizer.json`` name, as transformers reads
    them; null: none. ``added``: tokens that they have besides those of ``tokenizer.json``, by id.
    """

    bos: str | None
    eos: str | None
    pad: str | None
    added: tuple[tuple[int, tokenizers.AddedToken], ...] = ()

    def config(self) -> str:
        """Write the ``tokenizer_config.json`` of a tokenizer that has the added ones itself."""
        tokens = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **tokens}, indent=2) + "\n"


def named_in(folder: Path) -> Named | None:
    """Read what the files of a tokenizer name; None where there is only its ``tokenizer.json``."""
    if not (folder / NAMES).is_file():
        return None
    tokenizer = of_transformers(folder)
    config = json.loads((folder / NAMES).read_text(encoding="utf-8"))
    named = {token["content"] for token in config.get("added_tokens_decoder", {}).values()}
    named |= {tokenizer.bos_token, tokenizer.eos_token}
    added = []
    for number, token in sorted(tokenizer.added_tokens_decoder.items()):
        if token.content in named:
            added.append((number, token))
    return Named(tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tuple(added))


def of_transformers(folder: Path) -> Any:
    """Load the tokenizer of a folder as transformers reads it; nothing of it is run."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); fetch it again."
        ) from error


class Tokenizer:
    """A tokenizer with the ids of its two special tokens (``bos``, ``eos``), of those before a
    prompt (``begin``), and of those that end an answer (``ends``).

    A text of a corpus and the text of a prompt follow different rules. In a document, and in an
    answer that is trained, ``<s>`` is three letters: what it says neither begins a document nor
    ends an answer (:meth:`encode_documents`). In a prompt it is the token, as in the libraries that
    models are used with, so that the form of a chat can be written out (:meth:`encode_prompt`).
    ``embedded`` is the number of tokens that the model has, by :meth:`serve`, and until then that
    of the tokenizer; a prompt may hold no further ones. ``needed`` are those that documents and
    answers have. ``fingerprint`` names what decides the ids.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: Tokenization,
        named: Named | None = None,
    ) -> None:
        for place, token in named.added if named else ():
            _add(backend, place, token)
        # Both would change what a document becomes: cut short, or filled up with padding.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.named = named
        self.bos = _special(backend, "bos", settings.bos)
        self.eos = _special(backend, "eos", settings.eos)
        self.ends = [self.eos, *(_special(backend, "stops", stop) for stop in settings.stops)]
        self.begin = [self.bos] if settings.add_bos else []
        # A text begins as prompts here do wherever the tokenizer.json is used.
        begun = f"{settings.bos} " if self.begin else ""
        begins = [(settings.bos, number) for number in self.begin]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begun}$A", pair=f"{begun}$A $B", special_tokens=begins
        )
        self.vocab = backend.get_vocab_size()
        self.embedded = self.vocab
        self.needed = _needed(backend, [self.bos, *self.ends])
        self.fingerprint = _fingerprint(backend)

    def serve(self, embedded: int, bos_ends: bool) -> None:
        """Take what the model says that reads the ids: how many tokens it has, and whether it ends
        an answer by BOS too, where it begins another document.
        """
        self.embedded = embedded
        if bos_ends:
            self.ends = [*dict.fromkeys([*self.ends, self.bos])]

    @property
    def prefix(self) -> int:
        """Return what precedes a text without a context in lm-eval, as in its ``HFLM``: BOS, or EOS
        where the tokenizer's files name no BOS, as Qwen's do not.
        """
        name = self.named and (self.named.bos or self.named.eos)
        token = self.backend.token_to_id(name) if name else None
        return self.bos if self.begin or token is None else token

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of texts of a corpus, without BOS; in parallel over the cores."""
        self.backend.encode_special_tokens = True
        encodings = self.backend.encode_batch_fast([*texts], add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a prompt. It begins with ``begin``, once: also where the text says so
        itself.
        """
        return self.begun(self.pieces(text, prompt=True).ids)

    def chat(self, template: str, turns: list[dict[str, str]], answers: bool = True) -> str:
        """Write the prompt for turns of a chat (``role`` and ``content``), by transformers.

        Args:
            template: the Jinja template that a model has.
            answers: whether the assistant's turn begins after them; else the last turn is open.

        Raises:
            ConfigError: the template refuses these turns.
        """
        from jinja2 import TemplateError

        options = {"add_generation_prompt": answers, "continue_final_message": not answers}
        try:
            text = self._with_template.apply_chat_template(
                turns, chat_template=template, tokenize=False, **options
            )
        except TemplateError as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise ConfigError(
                f"the model's template of a chat refuses turns of {roles}: {error}."
            ) from error
        return str(text)

    @cached_property
    def _with_template(self) -> Any:
        """Make the tokenizer of transformers, for the names of special tokens in a template."""
        from transformers import PreTrainedTokenizerFast

        bos = self.backend.id_to_token(self.bos)
        eos = self.backend.id_to_token(self.eos)
        if self.named is not None:
            bos = self.named.bos
            eos = self.named.eos
        return PreTrainedTokenizerFast(tokenizer_object=self.backend, bos_token=bos, eos_token=eos)

    def begun(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a prompt's text as a prompt begins."""
        before = [] if [*ids[: len(self.begin)]] == self.begin else self.begin
        return [*before, *ids]

    def pieces(self, text: str, prompt: bool) -> tokenizers.Encoding:
        """Return the ids of a text, by the rule of a prompt or of a document, and where in it each
        is; nothing is put before it. Raises :class:`ConfigError` where a prompt says a token that
        the model does not have.
        """
        self.backend.encode_special_tokens = not prompt
        encoding = self.backend.encode(as_utf8(text), add_special_tokens=False)
        most = max(encoding.ids, default=0)
        if prompt and most >= self.embedded:
            raise ConfigError(
                f"a prompt says {self.backend.id_to_token(most)}, the token {most} of the "
                f"tokenizer, and the model has only {self.embedded} tokens; leave it out."
            )
        return encoding

    def decode(self, ids: "np.ndarray | list[int]") -> str:
        """Return the text of ids, without special tokens."""
        return self.backend.decode(list(map(int, ids)))

    @property
    def dtype(self) -> type:
        """Return the smallest type of integer that holds an id."""
        return np.uint16 if self.vocab <= 1 << 16 else np.uint32

    def save(self) -> str:
        """Return the content of its ``tokenizer.json``."""
        return self.backend.to_str()


def _special(backend: tokenizers.Tokenizer, key: str, name: str) -> int:
    """Return the id of a special token that a key of the settings names."""
    number = backend.token_to_id(name)
    if number is None:
        raise ConfigError(
            f"task.tokenizer.{key}={literal(name)}: the tokenizer has no such token; name "
            f"one that it has, in quotes: \"task.tokenizer.{key}='<s>'\"."
        )
    return int(number)


def _needed(backend: tokenizers.Tokenizer, named: Sequence[int]) -> int:
    """Return how many tokens a model must have: all up to the last of those that documents and
    answers have.

    No document has a special token but the ``named`` ones: one that was added, as ``<pad>``, needs
    no embedding.
    """
    added = backend.get_added_tokens_decoder().items()
    special = {number for number, token in added if token.special}
    return 1 + max({*backend.get_vocab().values()} - special | {*named})


def _fingerprint(backend: tokenizers.Tokenizer) -> str:
    """Hash the JSON without what does not change the ids, so that it names the tokenizer wherever
    it lies.
    """
    content = json.loads(backend.to_str())
    deciding = [content[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
    return short_hash([json.dumps(deciding)])


def _add(backend: tokenizers.Tokenizer, number: int, token: tokenizers.AddedToken) -> None:
    """Add a token as transformers does, unless it is there."""
    present = backend.get_added_tokens_decoder().get(number)
    if present is None or (present.content, present.special) != (token.content, token.special):
        add = backend.add_special_tokens if token.special else backend.add_tokens
        add([token])
    assigned = backend.token_to_id(token.content)
    if assigned != number:
        raise ConfigError(
            f"{token.content} is token {assigned} by tokenizer.json and {number} by {NAMES}; "
            "AutoTokenizer.from_pretrained(<folder>).save_pretrained(<folder>) writes both anew."
        )


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
