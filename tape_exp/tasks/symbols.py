"""Rows of symbols as text: a task whose vocabulary is a list of symbols reads and writes it."""

import re
from collections.abc import Sequence

from tape_exp.settings.errors import ConfigError


def spaced(vocabulary: Sequence[str]) -> bool:
    """Say whether symbols have more than one letter, apart from ``<pad>`` and ``<eos>``.

    >>> spaced(["<pad>", "<eos>", "0", "1"]), spaced(["<pad>", "<eos>", "push", "pop"])
    (False, True)
    """
    return any(len(symbol) > 1 and symbol[0] != "<" for symbol in vocabulary)


def encode_symbols(text: str, vocabulary: Sequence[str]) -> list[int]:
    """Return the tokens of a row; symbols of more than a letter have spaces between them.

    >>> encode_symbols("01<eos>", ["<pad>", "<eos>", "0", "1"])
    [2, 3, 1]
    >>> encode_symbols("push pop", ["<pad>", "<eos>", "push", "pop"])
    [2, 3]

    Raises:
        ConfigError: the text has another symbol.
    """
    symbols = text.split() if spaced(vocabulary) else re.findall(r"<\w+>|.", text, re.DOTALL)
    number_of = {symbol: token for token, symbol in enumerate(vocabulary)}
    for symbol in symbols:
        if symbol not in number_of:
            raise ConfigError(
                f"{symbol!r} is not a symbol of the task; its symbols are {' '.join(vocabulary)}"
            )
    return [number_of[symbol] for symbol in symbols]


def decode_symbols(ids: Sequence[int], vocabulary: Sequence[str]) -> str:
    """Return what tokens say, without padding.

    >>> decode_symbols([2, 3, 1, 0, 0], ["<pad>", "<eos>", "0", "1"])
    '01<eos>'
    """
    symbols = [vocabulary[token] for token in ids]
    between = " " if spaced(vocabulary) else ""
    return between.join(symbol for symbol in symbols if symbol != "<pad>")
