"""mkdocs' hooks: pages whose text is not in docs/, and links that work on the site as in the clone.

A page keeps its path in the repository, less ``docs/``; README.md is the first page. A source file
that a page links to becomes a page below ``source/``, and a link to a folder its plain text.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import conf_pages
import notebook
import python_pages
from links import DRAWN, INCLUDED, ROOT, address, rewritten, sources
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tape_exp.report import __main__ as results

NOTEBOOK = "examples/quickstart.ipynb"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
SENTENCE = 30  # characters of a cell that site.css gives room to


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here: they need no file in docs/."""

    def add(uri: str, content: str | bytes) -> None:
        files.append(File.generated(config, uri, content=content))

    for path in INCLUDED:
        add(address(path), (ROOT / path).read_text())
    for folder in DRAWN:
        for file in sorted((ROOT / folder).glob("*.*")):
            if file.suffix != ".md":
                add(f"{folder}/{file.name}", file.read_bytes())
    for uri, made in {**conf_pages.pages(), **python_pages.pages()}.items():
        add(uri, made)
    for uri, part in notebook.pages(ROOT / NOTEBOOK, address(NOTEBOOK)).items():
        add(uri, part)
    with TemporaryDirectory() as folder:
        results.write(Path(folder) / "paper")
        for file in sorted(Path(folder).rglob("*.*")):
            add(str(file.relative_to(folder)), file.read_bytes())
    for path in sources():
        add(address(path), source(path))
    return files


def source(path: str) -> str:
    """The page of a source file."""
    file = ROOT / path
    language = LANGUAGES.get(file.suffix, "text")
    code = f"````{language}\n{file.read_text()}````\n"
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n{code}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to where the site has what they name."""
    return rewritten(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the cells of tables that hold sentences, and let ``\\|`` be a bar in their code."""

    def cell(match: re.Match[str]) -> str:
        text = match.group(1).replace("\\|", "|")
        long = len(TAG.sub("", text)) >= SENTENCE
        return f'<td class="sentence">{text}</td>' if long else f"<td>{text}</td>"

    return CELL.sub(cell, html)
