"""Special tokens of a tokenizer: those that the files beside ``tokenizer.json`` name, and ids."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal

NAMES = "tokenizer_config.json"  # the file that names a tokenizer's special tokens


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


def special_token(backend: tokenizers.Tokenizer, key: str, name: str) -> int:
    """Return the id of a special token that a key of the settings names."""
    number = backend.token_to_id(name)
    if number is None:
        raise ConfigError(
            f"task.tokenizer.{key}={literal(name)}: the tokenizer has no such token; name "
            f"one that it has, in quotes: \"task.tokenizer.{key}='<s>'\"."
        )
    return int(number)


def add_token(backend: tokenizers.Tokenizer, number: int, token: tokenizers.AddedToken) -> None:
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
