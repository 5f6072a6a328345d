"""The special tokens of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_exp.data.special_tokens import of_transformers
from tape_exp.models.llama.files import GENERATION, TOKENIZER
from tape_exp.settings.errors import ConfigError


@dataclass(frozen=True)
class SpecialTokens:
    """The fields of :class:`~tape_exp.models.llama.config.Llama` that the tokenizer decides."""

    bos: str | None = None
    eos: str | None = None
    add_bos: bool | None = None
    stops: list[str] | None = None
    chat_template: str | None = None


def read_special_tokens(folder: Path, config: Any) -> SpecialTokens:
    """Return the special tokens of the tokenizer in a folder, none where there is none.

    BOS is the token that the tokenizer begins a text with; else BOS, as EOS, is that of
    transformers' tokenizer or by its id in ``config.json``. Without any, EOS is placed before
    documents and nothing before prompts.
    """
    if not (folder / TOKENIZER).is_file():
        return SpecialTokens()
    tokenizer = of_transformers(folder)
    try:
        bos = _named(tokenizer, tokenizer.bos_token, config.bos_token_id)
        eos = _named(tokenizer, tokenizer.eos_token, config.eos_token_id)
        stops = _stops(folder, tokenizer, config, eos)
        prefix = tokenizer.convert_ids_to_tokens(_ids_before_text(tokenizer))
        template = tokenizer.chat_template
    except Exception as error:  # the libraries raise bare exceptions
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); fetch it again."
        ) from error
    if len(prefix) > 1:
        raise ConfigError(
            f"the tokenizer in {folder} begins a text with {' '.join(prefix)}, and one token can; "
            "leave one in the post_processor of its tokenizer.json."
        )
    return SpecialTokens(
        bos=prefix[0] if prefix else bos or eos,
        eos=eos,
        add_bos=bool(prefix),
        stops=stops or None,
        chat_template=template if isinstance(template, str) else None,
    )


def _named(tokenizer: Any, token: str | None, ids: int | list[int] | None) -> str | None:
    """Return the token that a tokenizer names; else that of the first id in ``config.json``."""
    listed = _listed(ids)
    if token is not None or not listed:
        return token
    of_config: str | None = tokenizer.convert_ids_to_tokens(listed[0])
    return of_config


def _stops(folder: Path, tokenizer: Any, config: Any, eos: str | None) -> list[str]:
    """Return the tokens besides EOS that end an answer, as transformers generates."""
    from transformers import GenerationConfig

    ids = config.eos_token_id
    if (folder / GENERATION).is_file():
        ids = GenerationConfig.from_pretrained(folder).eos_token_id
    tokens = [tokenizer.convert_ids_to_tokens(number) for number in _listed(ids)]
    return [token for token in tokens if token not in (None, eos)]


def _ids_before_text(tokenizer: Any) -> list[int]:
    """Return the ids that a tokenizer of transformers puts before a text."""
    bare = tokenizer("a", add_special_tokens=False).input_ids
    ids: list[int] = tokenizer("a", add_special_tokens=True).input_ids
    begin = next(n for n in range(len(ids)) if ids[n : n + len(bare)] == bare)
    return ids[:begin]


def _listed(ids: int | list[int] | None) -> list[int]:
    """Return the ids of a key of transformers that has none, one or several."""
    if ids is None:
        return []
    return ids if isinstance(ids, list) else [ids]
