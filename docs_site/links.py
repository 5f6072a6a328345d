"""A page of the repository as a page of the site: its links, and its long commands."""

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
DRAWN = ("results/figures", "results/bench")  # folders of pictures, and of tables beside them
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
ANCHOR = re.compile(r"\]\(#([^)\s]+)\)")
BESIDE = re.compile(r"^(\S.*?) {2,}(# .*)$")
WIDTH = 80  # characters of a line of code that fits
FENCE = re.compile(r"(^ *(`{3,}).*?^ *\2`*$)", re.MULTILINE | re.DOTALL)


PAGES = {"README.md": "index.md", "results/README.md": "paper/index.md"}


def address(path: str) -> str:
    """Of a file of the repository: the path of its page, as if it were in docs/."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    drawn = path.startswith(tuple(f"{folder}/" for folder in DRAWN)) and not path.endswith(".md")
    if path in INCLUDED or drawn:
        return path
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def origin(uri: str) -> str | None:
    """The opposite, of a page that somebody wrote."""
    if uri == "index.md":
        return "README.md"
    if uri in INCLUDED:
        return uri
    return f"docs/{uri}" if (ROOT / "docs" / uri).is_file() else None


def sources() -> list[str]:
    """The files that pages link to and that are no page themselves."""
    found = set()
    for path in (*INCLUDED, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        for target in targets((ROOT / path).read_text()):
            there = joined(path, target)
            if (ROOT / there).is_file() and address(there).startswith("source/"):
                found.add(there)
    return sorted(found)


def rewritten(markdown: str, uri: str) -> str:
    """The text of a page with the links of the site, outside code in fences."""
    path = origin(uri)
    if path is None:
        return markdown

    def link(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        there = joined(path, target)
        if (ROOT / there).is_dir():
            return text
        href = posixpath.relpath(address(there), posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({href}{(anchor or '').lower()})"

    def prose(text: str) -> str:
        return ANCHOR.sub(lambda m: f"](#{m.group(1).lower()})", LINK.sub(link, text))

    parts = FENCE.split(markdown)  # prose, fence, its backticks, prose, …
    parts[::3] = map(prose, parts[::3])
    parts[1::3] = map(stacked, parts[1::3])
    del parts[2::3]
    return "".join(parts)


def stacked(fence: str) -> str:
    """Commands with their comments above them, where beside them lines would be too long."""
    lines = fence.splitlines()
    if not lines[0].startswith("```bash") or max(map(len, lines)) <= WIDTH:
        return fence
    return "\n".join(BESIDE.sub(r"\2\n\1", line) for line in lines)


def joined(path: str, target: str) -> str:
    """A path of the repository, from the page that names it relative to itself."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def targets(text: str) -> Iterable[str]:
    """What the links of a text name, outside code in fences."""
    for part in FENCE.split(text)[::3]:
        for match in LINK.finditer(part):
            yield match.group(3)
