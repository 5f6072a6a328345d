"""Write the pages of all results, one's own runs and comparisons too, and build them as a site:
``tape-exp report``. In a clone ``make report`` builds them into the site of docs/.
"""

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

from tape_exp.artifacts import comparison
from tape_exp.artifacts.figures import figures
from tape_exp.bench import figures as bench_figures
from tape_exp.bench import tables as bench_tables
from tape_exp.bench.bench import OUT, Bench
from tape_exp.machine.files import write_atomically
from tape_exp.paper import pages
from tape_exp.paper.pages import Judged, Judgement
from tape_exp.results.metric_names import is_result
from tape_exp.results.record import Record
from tape_exp.results.store import commits, known_records
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError, warn
from tape_exp.settings.naming import display_name, task_title
from tape_exp.settings.parser import ArgumentParser

CONFIG = """site_name: Results
docs_dir: pages
site_dir: site
theme: {name: material, font: false}
plugins: [search, offline]
markdown_extensions: [admonition, tables]
use_directory_urls: false
"""

# The head of a page whose table needs the whole window; a command stays on one line.
WIDE = """---
hide: [navigation, toc]
---
<style>.md-grid {max-width: 97%} .md-typeset td code {white-space: nowrap}</style>

"""


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Build report/site/index.html, which opens from disk."""
    parser = ArgumentParser(prog="tape-exp report", description="Build a site of all results.")
    folder = "the folder to write (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("report"), help=folder)
    out = parser.parse_args(arguments).out
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    if (out / "pages").exists() and not (out / "mkdocs.yml").exists():
        raise ConfigError(f"{out}/pages was not written by this command; choose another --out.")
    write_atomically(out / "mkdocs.yml", CONFIG)
    write(out / "pages")
    build(load_config(str(out / "mkdocs.yml")))
    print(out / "site" / "index.html")
    return 0


def write(folder: Path) -> None:
    """Write all pages below a folder."""
    records = known_records()
    shutil.rmtree(folder, ignore_errors=True)
    judgements: list[Judgement] = []
    for judged in pages.judged(records):
        judgements += judged.judgements
        write_page(folder, judged)
    links = []
    for artifact in comparison.saved(Path("runs") / ".compare" / "tables"):
        try:
            view = comparison.view_of(artifact, records)
        except ConfigError as error:  # of a model that is no longer there
            warn(f"{artifact.name} is left out: {error}")
            continue
        write_page(folder, Judged(artifact, [view], []))
        links.append(f"- [{artifact.name}]({artifact.name}.md): {artifact.title}")
    parts = [f"{WIDE}# Claims and verdicts", pages.overview(judgements, "{0}.md")]
    if links:
        parts += ["## Your comparisons", "\n".join(links)]
    write_atomically(folder / "index.md", "\n\n".join(parts) + "\n")
    write_atomically(folder / "runs.md", f"{WIDE}# Runs\n\n{runs_table(records)}\n")
    write_atomically(folder / "bench.md", "\n\n".join(bench_page(folder)) + "\n")


def write_page(folder: Path, judged: Judged) -> None:
    """Write the page of an artifact, and draw its figures."""
    name = judged.artifact.name
    pictures: dict[str, list[str]] = {}
    for view in judged.shown:
        for suffix, draw in figures(view):
            path = draw(folder / "figures" / f"{name}-{view.scale}{suffix}.svg")
            pictures.setdefault(view.scale, []).append(f"figures/{path.name}")
    write_atomically(folder / f"{name}.md", pages.page(judged, pictures))


def runs_table(records: Sequence[Record]) -> str:
    """Write every run with its result and the command that makes it again, the newest first."""
    rows = []
    for run in sorted(records, key=lambda run: run["started"], reverse=True):
        config = run["config"]
        metrics = run["metrics"]
        name = first_result(metrics)
        value = f"{metrics[name]:.4g}" if name else ""
        row = [
            display_name(config["model"]["name"]),
            task_title(config["task"]),
            config["scale"],
            run["seed"],
            name,
            value,
            f"{run.get('seconds', {}).get('training', 0):.0f}",
            commits([run]),
            f"`tape-exp train {shlex.join(run.overrides)}`",
        ]
        rows.append(row)
    head = ["model", "task", "scale", "seed", "metric", "value", "seconds", "commit", "command"]
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


def first_result(metrics: Iterable[str]) -> str:
    """Find the first result of a run, those of training last; empty where it has none.

    >>> first_result(["val/loss", "test/exact_match"]), first_result(["state/accuracy"])
    ('test/exact_match', '')
    """
    of_training = ""
    for name in filter(is_result, metrics):
        if not name.startswith("val/"):
            return name
        if not of_training:
            of_training = name
    return of_training


def bench_page(folder: Path) -> Iterator[str]:
    """Yield the bench's tables and figures."""
    yield f"{WIDE}# Bench"
    bench = Bench([], OUT)
    board = bench.board(shown=True)
    if not board.scores:
        yield "Nothing is recorded: `tape-exp bench rope tape` runs it."
        return
    for path in bench_figures.draw(board, folder / "figures" / bench.name):
        yield f"![{path.stem}](figures/{path.name})"
    for table in bench_tables.tables_of(board).values():
        yield table.markdown()
        yield table.caption


if __name__ == "__main__":
    sys.exit(main())
