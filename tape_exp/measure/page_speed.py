"""``python -m tape_exp.measure.page_speed``: how soon the report is open, with its first figure.

The page that ``make report`` wrote is opened in headless Chromium, again and again. Leaves
``results/speed/page-<machine>.json``.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from playwright.sync_api import Error, sync_playwright

from tape_exp.machine.hardware import machine_name
from tape_exp.measure.results import add_folder, spread, write_record
from tape_exp.runs.record import environment_info
from tape_exp.settings.commands import command
from tape_exp.settings.folders import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPENED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
DRAWN = "performance.getEntriesByName('drawn')"


@command
def main(arguments: list[str] | None = None) -> int:
    """Open, print, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.page_speed",
        description="Measure how soon the report is open in headless Chromium.",
    )
    parser.add_argument("--page", type=Path, default=ROOT / "report" / "index.html")
    add_folder(parser, "page")
    parser.add_argument("--times", type=int, default=10, help="default: %(default)s")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error("no Chromium on this machine: apt-get install chromium.")
    if not given.page.is_file():
        parser.error(f"{given.page} is missing: make report writes it.")
    opening, drawing = opened(given.page, browser, given.times)
    record = {
        "machine": machine_name(torch.device("cpu")),
        **environment_info(),
        "seconds": {"open": spread(opening), "first figure": spread(drawing)},
    }
    write_record("page", record, given.out)
    print(json.dumps(record["seconds"], indent=1))
    return 0


def opened(path: Path, browser: str, times: int) -> tuple[list[float], list[float]]:
    """Seconds until the page is open, and until its first figure is drawn, each time."""
    opening, drawing = [], []
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        except Error as error:
            sys.exit(f"error: {browser} does not start: {str(error).splitlines()[0]}")
        for _ in range(times):
            page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto(path.resolve().as_uri())
            page.locator("figure .canvas").first.scroll_into_view_if_needed()
            page.wait_for_function(f"() => {DRAWN}.length > 0")
            opening.append(page.evaluate(OPENED) / 1000)
            drawing.append(page.evaluate(f"{DRAWN}[0].startTime") / 1000)
            page.context.close()
    return opening, drawing


if __name__ == "__main__":
    sys.exit(main())
