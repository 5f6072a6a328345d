"""Secrets are left out of what a run writes down: config, manifest, records, logs, error reports,
W&B.

A secret is recognised by its name (a key or an environment variable named token, key, password, …),
by its shape (a token of the hub, of W&B, of GitHub, of AWS, a private key, a JSON web token) or by
its place in a URL. What is left out is shown as ``[hidden]``.
"""

import json
import logging
import os
import re
import traceback
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tape_exp.settings.errors import printable

HIDDEN = "[hidden]"
WORDS = (
    r"(?:token|key|apikeys?|passwords?|passwd|passphrases?|pass|pwd|secrets?|credentials?|creds?"
    r"|auth|authorization|pat|jwts?|webhooks?"
    r"|(?:api|access|auth|hf|private|refresh|ssh)[_\-]?(?:keys|tokens))"
)
_NAMED = re.compile(rf"(?:^|[_.\-]){WORDS}(?:$|[_.\-\d])", re.IGNORECASE)
_PLACES = re.compile(r"_(?:path|file|dir|home|sock)$", re.IGNORECASE)  # names of files
_SHORTEST = 8  # characters of a secret in the environment; a shorter one could be in any text
_URL = re.compile(r"(\b[a-z][a-z0-9+.\-]*://)[^\s/@'\"]+@", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"((?<![A-Za-z0-9])(?:[\w.\-]*[_.\-])?{WORDS}(?:[_.\-\d][\w.\-]*)?['\"]?\s?=\s?['\"]?|"
    rf"['\"](?:[\w.\-]*[_.\-])?{WORDS}['\"]\s*:\s*['\"]|"
    rf"[{{,]\s*(?:[\w.\-]*[_.\-])?{WORDS}\s*:\s*['\"]?)(?!['\"]|\$\{{|\[hidden\])[^\s'\",;&)}}\]]+",
    re.IGNORECASE,
)
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE)
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}"
    r"|\bsk-[A-Za-z0-9_\-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w\-]{16,}"
    r"|\bwandb_v\d_\w{20,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bxox[abprs]-[A-Za-z0-9\-]{10,}"
    r"|\beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_WANDB = re.compile(
    r"(?<![\w/])(?<!revision=)(?<!revision: )(?<!commit )(?<!commit=)[0-9a-f]{40}(?![\w/])"
)
_COMMITS = ("revision", "commit", "later")


def is_secret(name: str) -> bool:
    """Whether a key or variable of that name holds a secret: ``HF_TOKEN``, not ``tokens``."""
    return bool(_NAMED.search(name)) and not _PLACES.search(name) and name != "PWD"


def redact(text: str) -> str:
    """The text without secrets, those of this process's environment included."""
    # The longest first: one may begin with another.
    for value in sorted(_of_environment(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1 {HIDDEN}", text)
    text = _SHAPES.sub(HIDDEN, text)
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    return _WANDB.sub(HIDDEN, text)


def _of_environment() -> set[str]:
    """The secrets of this process's environment: as they are, quoted, and as in a URL."""
    plain = [v for name, v in os.environ.items() if len(v) >= _SHORTEST and is_secret(name)]
    return {
        form
        for value in plain
        for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe=""))
    }


def redact_tree(value: Any, key: str = "") -> Any:
    """Plain containers without secrets, be it under a secret's key or inside another string."""
    if isinstance(value, Mapping):
        return {name: redact_tree(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(inner, key) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    if is_secret(key):
        return HIDDEN
    return value if key in _COMMITS and re.fullmatch("[0-9a-f]{40}", value) else redact(value)


def shown(text: str) -> str:
    """The text as a terminal may get it: with neither secrets nor control characters."""
    return printable(redact(text))


def unmarked(text: Any) -> str:
    """A text of a record on one line, without what Markdown or a browser would take for markup."""
    return printable(" ".join(str(text).split())).translate(dict.fromkeys(map(ord, "`<>|[]")))


def raised(error: BaseException) -> str:
    """Where and what the code of another author raised, as :func:`shown`."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return shown(f"{last.filename}, line {last.lineno}: {type(error).__name__}: {error}")


class RedactingFormatter(logging.Formatter):
    """A formatter whose lines, tracebacks included, are :func:`shown`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without secrets and control characters."""
        return shown(super().format(record))
