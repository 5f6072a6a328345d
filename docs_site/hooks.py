"""mkdocs' hooks: the pages whose text is not in docs/, and links that work as in the clone.

A page keeps its path in the repository, less ``docs/``; README.md is the first page. A link to a
file or a folder that is no page becomes its plain text.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tape_exp.paper.report import write

ROOT = Path(__file__).resolve().parents[1]
PYTHON = {  # page -> title and modules; a package is all of its modules
    "library": ("The library", ["library", "training.loaded_run"]),
    "positions": ("Positional encodings", ["models.positions"]),
    "tasks": ("Tasks", ["tasks"]),
    "models": ("Models", [f"models.{m}" for m in ("decoder", "block", "layers", "generation")]),
    "attention": (
        "Attention",
        [f"models.{m}" for m in ("attention", "backends", "scores", "biases")],
    ),
    "data": ("Data", ["data"]),
    "settings": ("Settings", [f"settings.{m}" for m in ("schema", "compose", "errors")]),
    "runs": ("Runs on disk", ["runs"]),
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
ROLE = re.compile(r":\w+:<code>~?([\w.]*?)(\w+)</code>")
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
SENTENCE = 30  # characters of a cell that site.css gives room to
addresses: dict[str, str] = {}  # path in the repository -> path on the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here: they need no file in docs/."""

    def add(uri: str, content: str | bytes, path: str = "") -> None:
        files.append(File.generated(config, uri, content=content))
        addresses[path or uri] = uri

    addresses.update({f"docs/{file.src_uri}": file.src_uri for file in files})
    add("index.md", (ROOT / "README.md").read_text(encoding="utf-8"), "README.md")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        add(name, (ROOT / name).read_text(encoding="utf-8"))
    for picture in sorted((ROOT / "results").rglob("*.svg")):
        add(str(picture.relative_to(ROOT)), picture.read_bytes())
    with TemporaryDirectory() as folder:
        write(Path(folder) / "paper")
        for file in sorted(Path(folder).rglob("*.*")):
            add(str(file.relative_to(folder)), file.read_bytes())
    addresses["results/README.md"] = "paper/index.md"
    for group in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        choices = sorted(group.rglob("*.yaml"))
        named = [f"## {one.relative_to(group).with_suffix('')}\n\n{code(one)}" for one in choices]
        add(f"reference/conf/{group.name}.md", "\n\n".join([f"# conf/{group.name}", *named]))
    parts = [code(ROOT / "conf" / "config.yaml"), "## Keys of every run, and their defaults"]
    parts.append(code(ROOT / "tape_exp" / "settings" / "schema.py"))
    add("reference/conf/index.md", "\n\n".join(["# conf/config.yaml", *parts]))
    for name, (title, modules) in PYTHON.items():
        parts = [f"# {title}", *(f"::: tape_exp.{module}" for module in modules)]
        add(f"reference/python/{name}.md", "\n\n".join(parts))
    return files


def code(file: Path) -> str:
    """A file as a block of code."""
    return f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}````"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to where the site has what they name."""
    uri = page.file.src_uri
    path = next(path for path, address in addresses.items() if address == uri)

    def link(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups("")
        there = normpath(join(dirname(path), target))
        if there not in addresses:
            return text if (ROOT / there).exists() else match[0]
        return f"{mark}[{text}]({relpath(addresses[there], dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the roles of docstrings; mark cells that hold sentences, and let ``\\|`` be a bar."""

    def cell(match: re.Match[str]) -> str:
        text = match[1].replace("\\|", "|")
        long = len(re.sub(r"<[^>]*>", "", text)) >= SENTENCE
        return f'<td class="sentence">{text}</td>' if long else f"<td>{text}</td>"

    role = r'<autoref optional identifier="\1\2"><code>\2</code></autoref>'
    return CELL.sub(cell, ROLE.sub(role, html))
