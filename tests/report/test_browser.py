"""The page in headless Chromium: every artifact, values as in the records, tables that sort,
figures that tell their values.
"""

import csv
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from tape_exp.drawing.looks import COLOURS
from tape_exp.paper import artifacts
from tape_exp.paper.records import read_records
from tape_exp.report import __main__ as report
from tape_exp.settings.folders import ROOT
from tape_exp.settings.naming import display_name

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: apt-get install chromium"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "index.html"
    assert report.main(["--out", str(path)]) == 0
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def opened(browser, url):
    """Open the page; afterwards nothing may have gone wrong, and nothing may have been asked but
    the page itself.
    """
    contexts, said, asked = [], [], []

    def open_page(width: int = 1280, before: str = "", **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on(
            "console",
            lambda message: (
                said.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        if before:
            page.add_init_script(before)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) == {url}


def addition_records() -> dict:
    return artifacts.load("fig_addition").collect("smoke", read_records())


def drawn(page, artifact: str, title: str):
    """The figure of that title, drawn."""
    figure = page.locator(
        f"#{artifact} figure", has=page.locator("figcaption", has_text=re.compile(f"^{title}"))
    )
    figure.scroll_into_view_if_needed()
    figure.locator(".canvas[data-drawn]").wait_for()
    return figure


def read(path: Path) -> list[list[str]]:
    """The cells of a Markdown table of results/tables."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [head, *rows]


def column(table, name: str) -> list[str]:
    place = table.locator("thead th").all_inner_texts()
    number = next(i for i, text in enumerate(place) if text.split("\u00a0")[0].strip() == name)
    return [
        row.locator("th, td").nth(number).inner_text() for row in table.locator("tbody tr").all()
    ]


def test_every_artifact_is_there_with_its_values_or_the_reason(opened):
    page = opened()
    for name in artifacts.names():
        section = page.locator(f"section#{name}")
        assert section.locator("h3 code").text_content() == name
        assert section.locator("table, .canvas, img").count() > 0, name
        scales = artifacts.load(name).scales()
        rendered = [ROOT / "results" / "tables" / f"{name}-{scale}.md" for scale in scales]
        rendered = [path for path in rendered if path.exists()]
        if not rendered:
            gaps = section.locator(".gaps").text_content()
            assert re.match(rf"Not run yet: scale ({'|'.join(scales)}) \(needs ", gaps), gaps
            continue
        tables = page.locator(f"#{name} > .scroll > table").all()
        for path, table in zip(rendered, tables, strict=True):
            cells = table.evaluate(
                "t => [...t.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
            )
            head, *rows = read(path)
            assert (len(cells[0]), cells[1:]) == (len(head), rows)


def test_a_claim_stands_with_its_verdict(opened):
    page = opened()
    with (ROOT / "results" / "tables" / "claims.csv").open() as file:
        rows = {row["artifact"]: row for row in csv.DictReader(file)}
    contents = page.locator("nav table")
    assert dict(
        zip(column(contents, "artifact"), column(contents, "the claim holds"), strict=True)
    ) == {name: row["holds"] for name, row in rows.items()}
    parts = page.locator("#tab_tune_ppl .verdict div")
    told = dict(
        parts.evaluate_all(
            "parts => parts.map(part => [...part.children].map(child => child.textContent))"
        )
    )
    row = rows["tab_tune_ppl"]
    assert told == {
        f"holds at scale {row['scale']}": row["holds"],
        "paper": row["paper"],
        "ours": row["ours"],
    }
    of_no_scale = page.locator("#tab_flops .verdict dt").first
    assert of_no_scale.text_content() == "holds"


def test_values_of_table_and_heatmap_are_those_of_the_records(opened):
    page = opened()
    records = addition_records()
    table = page.locator("#fig_addition > .scroll > table")
    means = dict(zip(column(table, "model"), column(table, "ours"), strict=True))
    for name, mine in records.items():
        model = display_name(name)
        expected = np.mean([np.array(r["heatmap"], dtype=float) for r in mine], axis=0)
        assert float(means[model].split()[0]) == pytest.approx(expected.mean(), abs=0.006)
        figure = drawn(page, "fig_addition", model)
        figure.locator("summary").click()
        figure.locator("details td").first.wait_for()
        cells = figure.locator("details td").all_inner_texts()
        np.testing.assert_allclose(
            np.array(cells, dtype=float).reshape(expected.shape), expected, rtol=1e-3
        )


def test_a_table_sorts_by_click_and_by_key(opened):
    page = opened()
    table = page.locator("#fig_addition > .scroll > table")
    head = table.locator("thead th", has_text="paper")
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").click()
    values = list(map(float, column(table, "paper")))
    assert values == sorted(values)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert list(map(float, column(table, "paper"))) == values[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    other = table.locator("thead th", has_text="model")
    other.locator("button").press(" ")
    assert column(table, "model") == sorted(column(table, "model"))
    assert (head.get_attribute("aria-sort"), other.get_attribute("aria-sort")) == (
        "none",
        "ascending",
    )


def test_a_column_sorts_by_its_numbers_and_not_by_their_text(opened):
    """Six digits are more than five, though the text begins with a smaller one."""
    page = opened()
    table = page.locator("#theory > .scroll > table")
    table.locator("thead th", has_text="margin").locator("button").click()
    assert column(table, "margin") == ["-2", "-1.16", "-1", "-1", "1"]
    cell = (
        page.locator("#fig_addition > .scroll > table tbody tr", has_text="TAPE")
        .locator("td")
        .nth(1)
    )
    low, high, seeds = re.findall(r"-?[\d.]+", cell.get_attribute("title"))[-3:]
    centre, half = map(float, cell.text_content().split(" ± "))
    assert (float(low), float(high)) == pytest.approx((centre - half, centre + half), abs=0.01)
    assert seeds == "3"
    missing = (
        page.locator("#fig_addition_contextual > .scroll > table tbody tr")
        .nth(1)
        .locator("td")
        .first
    )
    assert (missing.text_content(), missing.get_attribute("title")) == (
        "",
        "the paper gives no number",
    )


def test_curves_have_the_axis_of_the_picture(opened):
    """Lengths that double, the trained length, and the points of the records."""
    page = opened()
    figure = drawn(page, "fig_word_problem", "S5: right states")
    canvas, readout = figure.locator(".canvas"), figure.locator(".readout")
    canvas.press("ArrowRight")
    records = artifacts.load("fig_word_problem").collect("smoke", read_records())
    first = min(records["rope/s5"][0]["config"]["task"]["lengths"])
    mean = np.mean([r["metrics"][f"test/state@{first}"] for r in records["rope/s5"]])
    assert readout.inner_text().startswith(f"RoPE, length (letters) {first}: {mean:.3f}"[:-1])
    axis = page.evaluate(
        "id => { const plot = shown.get(document.getElementById(id)).drawn.plot;"
        " return [plot.below[0].ticker.ticks, plot.x_scale.type]; }",
        canvas.get_attribute("id"),
    )
    assert axis == [[4, 8, 16, 32, 64, 128, 256], "LogScale"]


def test_empty_cells_come_last_in_both_orders(opened):
    page = opened()
    table = page.locator("#tab_flops > .scroll > table")
    button = table.locator("thead th", has_text="FLOPs paper (G)").locator("button")
    for _ in range(2):
        button.click()
        found = column(table, "FLOPs paper (G)")
        assert "" in found
        assert "" not in found[: len(found) - found.count("")]


def test_a_heatmap_tells_its_values_to_pointer_and_keys(opened):
    page = opened()
    grid = np.mean(
        [np.array(r["heatmap"], dtype=float) for r in addition_records()["randpe"]], axis=0
    )
    figure = drawn(page, "fig_addition", "RandPE")
    canvas, readout = figure.locator(".canvas"), figure.locator(".readout")
    canvas.press("ArrowDown")
    for key in ["ArrowDown"] * 5 + ["ArrowRight"] * 2 + ["ArrowUp", "ArrowLeft", "ArrowDown"]:
        canvas.press(key)
    expected = f"digits of the first operand 6, digits of the second operand 2: {grid[5, 1]:.4g}"
    assert readout.inner_text() == expected
    for _ in range(20):
        canvas.press("ArrowRight")
    assert "second operand 10:" in readout.inner_text(), "the edge holds"
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.1)
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    page.wait_for_timeout(300)
    row, across, value = map(float, re.findall(r"\d+(?:\.\d+)?", readout.inner_text()))
    assert value == pytest.approx(grid[int(row) - 1, int(across) - 1], rel=1e-3)
    assert (row, across) != (6, 10)
    assert page.locator(".bk-Tooltip .bk-tooltip-row-value").inner_text() == f"{value:g}"


def test_lines_tell_their_values_and_can_be_hidden(opened):
    page = opened()
    artifact = artifacts.load("tab_perplexity")
    table = artifact.table("smoke", artifact.at_scales(read_records())["smoke"])
    figure = drawn(page, "tab_perplexity", "PG-19")
    canvas, readout = figure.locator(".canvas"), figure.locator(".readout")

    def told(model: str, length: int) -> bool:
        number = table.values(("pg19", length))[model].number
        return readout.inner_text().startswith(
            f"{display_name(model)}, length (tokens) {length}: {number} ["
        )

    canvas.press("ArrowRight")
    assert told("rope", 64), readout.inner_text()
    canvas.press("ArrowRight")
    assert told("rope", 128), readout.inner_text()
    figure.get_by_label("ALiBi").uncheck()
    canvas.press("ArrowDown")
    assert told("fire", 128), readout.inner_text()


def test_every_line_has_a_colour_and_a_marker_that_no_other_has(opened):
    """Also where there are more lines than colours."""
    page = opened()
    figure = drawn(page, "fig_word_groups", "parity: right states")
    signs = figure.locator(".legend span").evaluate_all(
        "signs => signs.map(sign => [sign.style.color, sign.textContent.trim()])"
    )
    markers = page.evaluate(
        "id => shown.get(document.getElementById(id)).drawn.plot.renderers"
        ".filter(r => r.glyph.marker && r.glyph.size.value === 8)"
        ".map(r => [r.glyph.line_color.value, r.glyph.line_alpha.value && r.glyph.marker.value])",
        figure.locator(".canvas").get_attribute("id"),
    )
    assert len({tuple(sign) for sign in signs}) == len(signs) == 10
    assert len({tuple(marker) for marker in markers}) == len(markers) == 10


def test_a_run_has_its_metrics_config_and_command(opened):
    page = opened()
    record = addition_records()["tape"][0]
    page.locator("#fig_addition details summary", has_text="behind it").click()
    page.locator("#fig_addition a", has_text=record["run"]).click()
    run = page.locator(f"[id='run-{record['run']}']")
    assert run.evaluate("run => run.open")
    metrics = dict(
        run.locator("tbody tr").evaluate_all(
            "rows => rows.map(r => [...r.cells].map(c => c.textContent.trim()))"
        )
    )
    assert float(metrics["test/exact_match"]) == pytest.approx(
        record["metrics"]["test/exact_match"], rel=1e-5
    )
    assert (
        run.locator("code")
        .first.inner_text()
        .startswith("python train.py model=tape task=arithmetic scale=smoke seed=")
    )
    canvas, readout = run.locator(".canvas"), run.locator(".readout")
    canvas.scroll_into_view_if_needed()
    run.locator(".canvas[data-drawn]").wait_for()
    canvas.press("ArrowRight")
    curve = record["curves"]["train/loss"]
    assert readout.inner_text() == f"training loss, step {curve['step'][0]}: {curve['value'][0]}"
    assert "train_digits: 5" in run.locator("pre").text_content()
    page.get_by_label("Show runs whose row").fill("passkey tape")
    rows = page.locator("#runs > .scroll tbody tr:visible")
    assert 0 < rows.count() < len(read_records())
    assert all("passkey" in text and "tape" in text for text in rows.all_inner_texts())


def test_the_command_is_copied(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    box = page.locator("#fig_addition .command")
    box.locator("button").click()
    page.locator("#said", has_text="Copied.").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()") == box.locator("code").inner_text()


def test_fits_a_phone(opened):
    page = opened(375)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    drawn(page, "fig_addition", "TAPE")
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_can_be_read_without_seeing_it(opened):
    page = opened()
    problems = page.evaluate(
        """() => {
        const found = [], all = (what) => [...document.querySelectorAll(what)];
        const named = (e) => e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length;
        let level = 0;
        for (const head of all("h1, h2, h3, h4")) {
          if (head.tagName[1] > level + 1) found.push(`${head.tagName} after H${level}: ${head.textContent}`);
          level = Number(head.tagName[1]);
        }
        if (all("h1").length !== 1 || all("main").length !== 1) found.push("one h1, one main");
        if (!document.documentElement.lang) found.push("no language");
        for (const e of all("img")) if (!e.alt) found.push("picture without words");
        for (const e of all("button, a, input, summary")) if (!named(e)) found.push(`without a name: ${e.outerHTML}`);
        for (const e of all("table")) if (!e.caption) found.push("table without caption");
        for (const e of all("th")) if (!e.scope) found.push(`th without scope: ${e.textContent}`);
        for (const e of all("[role=application], [role=region], section")) {
          const label = e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent;
          if (!label) found.push(`without a label: ${e.id}`);
        }
        for (const e of all("[aria-describedby]"))
          if (!document.getElementById(e.getAttribute("aria-describedby")).textContent.trim()) found.push(`no words: ${e.id}`);
        for (const e of all(".canvas")) if (!e.parentElement.querySelector("details")) found.push(`no values: ${e.id}`);
        const ids = all("[id]").map((e) => e.id);
        for (const id of ids.filter((id, i) => ids.indexOf(id) !== i)) found.push(`twice: ${id}`);
        for (const e of all("a[href^='#']"))
          if (!document.getElementById(e.getAttribute("href").slice(1))) found.push(`leads nowhere: ${e.href}`);
        return found; }"""  # noqa: E501
    )
    assert problems == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(opened, scheme):
    page = opened(color_scheme=scheme)
    told = page.evaluate(
        "() => Object.fromEntries(['paper', 'shade', 'ink', 'soft', 'link', 'of-paper', 'of-ours', "
        "'frame'].map(name =>"
        " [name, getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()]))"
    )
    light = {name: luminance(colour) for name, colour in told.items()}
    assert (light["paper"] > light["ink"]) == (scheme == "light")
    for ground in ("paper", "shade"):
        for name in ("ink", "soft", "link", "of-paper", "of-ours"):
            assert contrast(light[name], light[ground]) >= 4.5, (name, ground)  # WCAG 2 AA, text
    for colour in (pair[scheme == "dark"] for pair in COLOURS):
        assert contrast(luminance(colour), light["paper"]) >= 3, colour  # WCAG 2 AA, graphics


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def test_figures_follow_the_scheme(opened):
    page = opened()
    drawn(page, "fig_addition", "TAPE")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    figure = drawn(page, "fig_addition", "TAPE")
    figure.locator(".canvas").press("ArrowRight")
    assert "digits of the first operand 1" in figure.locator(".readout").inner_text()
    assert figure.locator(".bk-Figure").count() == 1


def test_without_the_library_tables_and_values_remain(opened):
    page = opened(before="delete window.DecompressionStream")
    figure = page.locator("#fig_addition figure").first
    figure.scroll_into_view_if_needed()
    figure.locator(".readout", has_text="does not draw it").wait_for()
    figure.locator("summary").click()
    expect(figure.locator("details td")).to_have_count(100)
    assert column(page.locator("#fig_addition > .scroll > table"), "paper")[0] == "26.32"
