"""The site of docs/: built without a warning or a network, its links lead somewhere, and a browser
loads nothing from elsewhere. The files around the package agree with each other.
"""

import re
import socket
import tomllib
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tape_exp.machine.files import write_atomically
from tape_exp.paper import report
from tape_exp.settings.folders import CONF, ROOT


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = {key: value for key, value in attributes if value}
        self.ids.update(found[key] for key in ("id", "name") if key in found)
        if tag == "a":
            assert found.keys() & {"href", "id"}, f"text is taken for a tag: {attributes}"
            self.links += [found[key] for key in found if key == "href"]
        elif tag == "link" and found.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(found["href"])
        self.loads += [found[key] for key in ("src", "srcset", "data", "poster") if key in found]


def sketch(path):
    """In place of a figure, which tests of artifacts draw."""
    write_atomically(path, "<svg/>")
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built where nothing outside this machine can be reached; `strict`
    ends the build at a warning.
    """
    folder = tmp_path_factory.mktemp("site")

    def refuse(*_):
        raise AssertionError("the site is built without a network")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(report, "figures", lambda view: [("", sketch)])
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Path below the site -> page."""
    files = site.rglob("*.html")
    return {path.relative_to(site).as_posix(): Page(path.read_text()) for path in files}


@pytest.mark.long
def test_every_page_of_docs_is_in_the_navigation(site):
    text = re.sub(r"(?s)<article.*?</article>", "", (site / "start.html").read_text())
    listed = Page(text).links
    for path in ROOT.glob("docs/*.md"):
        assert f"{path.stem}.html" in listed, f"{path.name}: give it a place in mkdocs.yml"


@pytest.mark.long
def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert not [link for link in page.loads if urlsplit(link).netloc], name
        for link in {*page.links, *page.loads} if name != "404.html" else ():
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (site / name).parent / unquote(parts.path) if parts.path else site / name
            assert path.exists(), f"{name}: {link}"
            there = pages.get(path.resolve().relative_to(site.resolve()).as_posix())
            if parts.fragment and there:
                anchor = unquote(parts.fragment)
                assert anchor in there.ids or anchor.startswith("__"), f"{name}: {link}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", path.read_text()), path


@pytest.mark.long
def test_the_reference_has_every_yaml(pages):
    for path in CONF.glob("*/**/*.yaml"):
        group, *rest = path.relative_to(CONF).with_suffix("").parts
        known = pages[f"reference/conf/{group}.html"].ids
        assert "".join(rest).lower() in known or group == "local", path  # git ignores these


@pytest.mark.slow
def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


@pytest.mark.slow
def test_the_image_has_what_the_package_is_built_from():
    """Each path that the Dockerfile copies is there, and .dockerignore lets it through."""
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    paths = " ".join(copied).split()
    assert {"pyproject.toml", "tape_exp", "conf", "results/paper.yaml"} <= {*paths}
    assert all((ROOT / path).exists() and f"!{path}" in kept for path in paths)
