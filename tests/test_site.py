"""The site of docs/: it is built without a warning and without a network, its links lead somewhere,
a browser loads nothing from elsewhere, and a search works from disk.
"""

import logging
import re
import socket
import tomllib
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tape_exp.settings.folders import CONF, ROOT

LOADED = {  # what a browser loads by itself: tag -> attributes; a link only as these
    "link": ("href",),
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "object": ("data",),
    "video": ("src", "poster"),
    "audio": ("src",),
}
HINTS = ("next", "prev", "canonical")  # these links are not loaded


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a":
            assert found.keys() & {"href", "id"}, f"text is taken for a tag: {attributes}"
            self.links += filter(None, [found.get("href")])
        if found.get("rel") not in HINTS:
            self.loads += [found[key] for key in LOADED.get(tag, ()) if found.get(key)]


class Said(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built where nothing outside this machine can be reached."""
    folder, said = tmp_path_factory.mktemp("site"), Said()

    def refuse(*_):
        raise AssertionError("the site is built without a network")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(socket.socket, "connect", refuse)
        logging.getLogger("mkdocs").addHandler(said)
        try:
            config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
            config.plugins.on_startup(command="build", dirty=False)
            build(config)
        finally:
            logging.getLogger("mkdocs").removeHandler(said)
    assert said.lines == []
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Path below the site -> page."""
    return {
        path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")
    }


def test_every_page_of_docs_is_in_the_navigation(site, pages):
    text = re.sub(r"(?s)<article.*?</article>", "", (site / "start.html").read_text())
    listed = Page(text).links
    for path in (ROOT / "docs").glob("*.md"):
        assert f"{path.stem}.html" in listed, f"{path.name}: give it a place in mkdocs.yml"


def test_links_lead_somewhere(site, pages):
    for name, page in pages.items():
        if name == "404.html":  # its links begin at the top of a server
            continue
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (site / name).parent / unquote(parts.path) if parts.path else site / name
            path = path.resolve()
            assert path.exists(), f"{name}: {link}"
            assert link not in page.loads or path.suffix != ".html", f"{name}: {link} is a page"
            there = pages.get(path.relative_to(site.resolve()).as_posix())
            if parts.fragment and there:
                anchor = unquote(parts.fragment)
                assert anchor in there.ids or anchor.startswith("__"), f"{name}: {link}"


def test_a_browser_loads_nothing_from_elsewhere(site, pages):
    for name, page in pages.items():
        for link in page.loads:
            assert not urlsplit(link).netloc, f"{name}: {link}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", path.read_text()), path


def test_the_reference_has_every_yaml(pages):
    for path in CONF.rglob("*.yaml"):
        group, *rest = path.relative_to(CONF).with_suffix("").parts
        if rest and (group != "local" or rest == ["example"]):  # git ignores the others
            heading = "".join(rest).lower()
            assert heading in pages[f"reference/conf/{group}.html"].ids, path


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


def test_the_image_has_what_the_package_is_built_from():
    """Each path that the Dockerfile copies is there, and .dockerignore lets it through."""
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    paths = [path for line in copied for path in line.split()]
    assert {"pyproject.toml", "tape_exp", "conf", "results/paper.yaml"} <= set(paths)
    for path in paths:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in kept, path
