"""Docstrings as mkdocstrings reads them: the roles of Sphinx become Markdown."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`(~?)([\w.]+)`")
LITERAL = re.compile(r"::[ \t]*$", re.MULTILINE)


class Roles(griffe.Extension):
    """``:class:`~a.B``` is the code B, a link where the site has it; ``::`` ends in one colon."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object once."""
        if obj.docstring:
            obj.docstring.value = LITERAL.sub(":", ROLE.sub(link, obj.docstring.value))


def link(role: re.Match[str]) -> str:
    """A reference that need not be on the site."""
    short, name = role.groups()
    text = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{name}"><code>{text}</code></autoref>'
