"""A tokenizer, as the tasks use it: ids of documents, of prompts and of chats, and their text."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from tape_exp.data.files import as_utf8
from tape_exp.data.special_tokens import Named, add_token, special_token
from tape_exp.machine.files import short_hash
from tape_exp.settings.errors import ConfigError


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
        *,
        bos: str,
        eos: str,
        stops: Sequence[str],
        add_bos: bool,
        named: Named | None = None,
    ) -> None:
        for place, token in named.added if named else ():
            add_token(backend, place, token)
        # Both would change what a document becomes: cut short, or filled up with padding.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.named = named
        self.bos = special_token(backend, "bos", bos)
        self.eos = special_token(backend, "eos", eos)
        self.ends = [self.eos]
        for stop in stops:
            self.ends.append(special_token(backend, "stops", stop))
        self.begin = [self.bos] if add_bos else []
        # A text begins as prompts here do wherever the tokenizer.json is used.
        begun = f"{bos} " if self.begin else ""
        begins = [(bos, number) for number in self.begin]
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
