"""``python -m tape_exp.report``: writes ``report/index.html``, which needs no network."""

import argparse
import base64
import gzip
import logging
import re
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import bokeh
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tape_exp.machine.files import write_atomically
from tape_exp.paper import artifacts
from tape_exp.paper.page import AFTER, BEFORE, VERDICTS
from tape_exp.paper.records import known_records
from tape_exp.paper.searches import read_searches
from tape_exp.report.content import Content, attributes, figure_data, gather
from tape_exp.report.plots import counted
from tape_exp.settings import folders
from tape_exp.settings.commands import command

HERE = Path(__file__).parent
BOKEH = Path(bokeh.__file__).parent / "server" / "static" / "js"
LIMIT = 5_000_000  # bytes of the page


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; mistakes are one sentence and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="tape-exp report",
        description="One page of all tables, figures and runs.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=folders.ROOT / "report",
        help="folder, or an .html file (default: report)",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    if given.out.suffix != ".html":
        given.out /= "index.html"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    known = [artifacts.load(name) for name in artifacts.names()]
    content = gather(known, known_records(), read_searches())
    content.benches = read_benches()
    text = page(content)
    if len(text.encode()) > LIMIT:
        print(
            f"warning: the page takes {len(text.encode()) / 1e6:.1f} MB, more than "
            f"{LIMIT / 1e6:.0f}.",
            file=sys.stderr,
        )
    write_atomically(given.out, text)
    print(
        f"{given.out}  {len(text.encode()) / 1e6:.1f} MB, "
        f"{counted(content.sections, 'artifact')}, {counted(content.runs, 'run')}"
    )
    return 0


def read_benches() -> list[tuple[str, str]]:
    """The title and the text of each page in ``results/bench``, which need no network."""
    found = []
    for path in sorted((artifacts.RESULTS / "bench").glob("*.html")):
        text = path.read_text(errors="replace")
        title = re.search("<title>(.*?)</title>", text)
        found.append((unescape(title[1]) if title else path.stem, text))
    return found


def page(content: Content) -> str:
    """The page's HTML, with style, scripts, data and BokehJS inside."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("template.html").render(
        content=content,
        command_of_page="tape-exp report",
        attributes=attributes,
        before=BEFORE,
        verdicts=VERDICTS,
        after=AFTER,
        style=(HERE / "style.css").read_text(),
        scripts=[(HERE / name).read_text() for name in ("page.js", "figures.js")],
        figures=figure_data(content),
        bokeh=packed(
            "\n".join((BOKEH / name).read_text() for name in ("bokeh.min.js", "bokeh-api.min.js"))
        ),
    )


def packed(script: str) -> str:
    """A script, compressed and encoded as text: the same for the same script."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


if __name__ == "__main__":
    sys.exit(main())
