"""The command line of the paper's tables: ``python -m tape_exp.paper`` and a command.

``list``; ``run <artifact …|all> [scale=…] [seeds=0,1,2] [--only …] [key=value …]``;
``render [artifact …]``; ``compare task=… model=…,…``, a table of any models on any task; ``cost``,
which estimates GPU-hours at the paper's scale; and ``push``, which sends tables and figures to W&B.
"""

import argparse
import logging
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tape_exp.machine.files import write_atomically
from tape_exp.machine.processes import first_process
from tape_exp.paper import compare, costs, page, tables
from tape_exp.paper.artifacts import RESULTS, Artifact, Records, load, names
from tape_exp.paper.identities import kept_on_disk
from tape_exp.paper.records import (
    Record,
    each_once,
    matches,
    read_records,
    run_of,
    tell_where,
    warn,
)
from tape_exp.paper.runner import Job, missing, status, work
from tape_exp.paper.words import requested
from tape_exp.runs.identity import identity_of, names_a_folder
from tape_exp.settings import folders
from tape_exp.settings.commands import command, log_plainly
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import validate

log = logging.getLogger("tape_exp")
WIDTH = 100  # characters of a line of `list`
UNBROKEN = 1000  # of a table where there is no terminal, as in a pipe


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are one sentence and exit code 2, failed runs exit code 1."""
    parser = argparse.ArgumentParser(
        prog="tape-exp paper", description="The paper's tables and figures."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the artifacts, and how many runs of each are recorded")
    run = commands.add_parser(
        "run",
        help="run what is missing, then render",
        description="Run what the artifacts lack, then render them (default: scale=smoke seeds=0).",
        epilog="Example: python -m tape_exp.paper run fig_addition scale=smoke seeds=0,1",
    )
    run.add_argument("words", nargs="+", metavar="artifact | all | scale= | seeds= | key=value")
    side = commands.add_parser(
        "compare",
        help="a table of any models on any task: runs what is missing, then prints it",
        description="Print a table of any models on any task, after the runs that it lacks "
        "(default: scale=smoke seeds=0 and every metric of the records).",
        epilog="Example: python -m tape_exp.paper compare task=arithmetic model=rope,tape",
    )
    side.add_argument(
        "words", nargs="+", metavar="task= | model=a,b | scale= | seeds= | metrics= | key=value"
    )
    side.add_argument(
        "--name", help="of the table's file (default: compare_<task>)", type=_file_name
    )
    side.add_argument(
        "--record",
        action="store_true",
        help="keep the runs' records in results/records and the table in results/tables "
        "(default: <runs>/.compare/records and <runs>/.compare/tables)",
    )
    run.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="RUNS",
        help="of the runs that --dry-run lists, those whose name fits a pattern, as in "
        "--only '* rung12'; may be given several times",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="say which runs are missing, and run nothing"
    )
    for one in (run, side):
        one.add_argument(
            "--cores",
            type=int,
            help="number of runs at a time, one thread each (default: one run with all threads)",
        )
        one.add_argument(
            "--minutes",
            type=float,
            help="after this many minutes save and exit with status 85; the same command resumes",
        )
    render = commands.add_parser(
        "render", help="draw tables and figures from the committed records"
    )
    render.add_argument("words", nargs="*", metavar="artifact")
    commands.add_parser(
        "cost",
        help="estimate GPU-hours of every artifact at the paper's scale, for results/README.md",
    )
    push = commands.add_parser("push", help="send tables, figures and claims to W&B, as one run")
    push.add_argument("--project", default="tape_exp")
    push.add_argument("--entity")
    push.add_argument(
        "--mode",
        choices=("auto", "online", "offline"),
        default="auto",
        help="auto: online where a key is present",
    )
    push.add_argument(
        "--folder", type=Path, default=Path("runs/.paper"), help="where W&B keeps its files"
    )
    given, further = parser.parse_known_args(
        arguments
    )  # argparse itself allows no words after the options of a command
    if wrong := [word for word in further if word.startswith("-") or not hasattr(given, "words")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if further:
        given.words += further
    log_plainly()
    if given.command == "list":
        return list_artifacts()
    if given.command == "render":
        return render_artifacts(given.words)
    if given.command == "cost":
        print_paths([costs.write(map(load, names()), RESULTS)])
        return 0
    if given.command == "push":
        return push_results(given)
    if given.command == "compare":
        return compare_models(given)
    if given.dry_run:
        return list_missing(given.words, given.only)
    return run_artifacts(given.words, given.cores, given.minutes, given.only)


def list_artifacts() -> int:
    """Print each artifact's title and its recorded runs at each scale that has some."""
    with kept_on_disk():
        every, collected = collect()
    wide = max(len(artifact.name) for artifact in every)
    for artifact in every:
        print(f"{artifact.name:{wide}} {artifact.title}")
        for scale, records in collected[artifact.name].items():
            if records:
                counts = [f"{label}: {len(runs)}" for label, runs in records.items()]
                place = f"{'':{wide}}   {artifact.place(scale).removeprefix('scale '):6} "
                rest = " " * len(place)
                unbroken = ", ".join(count.replace(" ", "\xa0") for count in counts)
                text = textwrap.fill(unbroken, WIDTH, initial_indent=place, subsequent_indent=rest)
                print(text.replace("\xa0", " "))
        if not any(collected[artifact.name].values()):
            print(f"{'':{wide}}   nothing recorded")
    return 0


def refuse_unfit(jobs: Collection[Job]) -> None:
    """Raise before the first run begins where a word of the command fits none of its kind."""
    if not jobs:
        return
    from tape_exp.training.from_config import check_parts  # imports torch

    for job in jobs:
        validate(job.cfg)
        check_parts(job.cfg)


def list_missing(words: Sequence[str], only: Sequence[str]) -> int:
    """Print a line for each run that a command would begin, in its order, and their number."""
    artifacts, scale, seeds, extra = requested(words)
    jobs = missing(artifacts, scale, seeds, extra, only=only)
    refuse_unfit(jobs.values())
    for job in jobs.values():
        print(job.title)
    print(f"{len(jobs)} runs are missing" if len(jobs) != 1 else "1 run is missing")
    return 0


def run_artifacts(
    words: Sequence[str], cores: int | None, minutes: float | None, only: Sequence[str]
) -> int:
    """Run what artifacts lack and render them, and the others that show a run of theirs; status 1
    if a run failed, 85 if time ran out.
    """
    artifacts, scale, seeds, extra = requested(words)
    jobs = missing(artifacts, scale, seeds, extra, only=only)
    if extra:
        refuse_unfit(jobs.values())
    outcome = work(jobs, cores, minutes)
    if first_process():
        render_artifacts([artifact.name for artifact in artifacts], sharing=scale)
        for artifact in artifacts if compare.deciding(extra) else []:
            if left_out := hidden(artifact, scale, seeds, extra):
                log.warning(
                    "%d records of %s are of other settings (%s) than conf/paper/%s.yaml: its "
                    "tables leave them out; `%s` makes a table of any.",
                    *(left_out, artifact.name, " ".join(extra), artifact.name),
                    "tape-exp paper compare",
                )
    return status(outcome)


def hidden(artifact: Artifact, scale: str, seeds: Sequence[int], extra: Sequence[str]) -> int:
    """How many records of the runs that a command names are not those that the artifact shows."""
    records = read_records()
    shown = {
        run_of(record) for runs in artifact.collect(scale, records).values() for record in runs
    }
    asked = [
        (seed, identity_of(cfg))
        for seed in seeds
        for _, cfg in artifact.configs(scale, [seed], extra)
    ]
    fitting = [
        record
        for seed, identity in asked
        for record in records
        if record["seed"] == seed and matches(record, identity, names_a_folder(extra))
    ]
    return sum(run_of(record) not in shown for record in fitting)


def compare_models(given: argparse.Namespace) -> int:
    """Run what a comparison lacks, write its table and print it; results/ only if that is asked."""
    artifact, scale, seeds = compare.requested(given.words)
    artifact.name = given.name or artifact.name
    if given.record and artifact.name in names():
        raise ConfigError(
            f"--name: {artifact.name} is an artifact, whose tables and figures --record would "
            "replace; give the comparison another name."
        )
    _, first = next(artifact.configs(scale, seeds))
    into = RESULTS if given.record else folders.path_of("runs", first.runs) / ".compare"
    own = folders.RECORDS if given.record else into / "records"

    def known() -> list[Record]:
        every = read_records()
        return every if given.record else each_once([*read_records(own), *every])

    before = known()
    jobs = missing([artifact], scale, seeds, records=before)  # a wrong word is told at once
    artifact.check_replaced(scale, into / "tables")
    refuse_unfit(jobs.values())
    outcome = work(jobs, given.cores, given.minutes, own)
    every = known() if jobs else before
    chosen, others = compare.of_seeds(artifact.collect(scale, every), seeds)
    records = artifact.sound(scale, chosen)
    if not first_process():
        return status(outcome)
    if records:
        path = page.render(artifact, scale, records, into)[0]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBROKEN
        found = artifact.table(scale, records)
        assert found is not None  # with records
        print(f"\n{tables.on_terminal(found, width)}\n{_shown(path)}")
        if others:
            every_seed = ",".join(map(str, sorted({*seeds, *others})))
            warn(f"other seeds of these runs are recorded; seeds={every_seed} shows them too.")
    else:
        for old in rendered(into, artifact.name, scale):
            old.unlink()  # it is of an earlier call, and would look like the answer
        print("There is no table: none of these runs is recorded.", file=sys.stderr)
    return status(outcome)


def _file_name(text: str) -> str:
    """A word that can be the name of a file."""
    if not re.fullmatch(r"\w[\w.+-]*", text):
        raise argparse.ArgumentTypeError(f"{text} must be letters, digits and _ . + -")
    return text


def render_artifacts(chosen: Sequence[str], sharing: str | None = None) -> int:
    """Render the artifacts, all by default, at every scale that has records, and the page.

    Args:
        sharing: a scale at which the others that show a run of these are rendered too.
    """
    wanted = [load(name).name for name in chosen or names()]  # a wrong name is told at once
    costs.read(RESULTS)  # so is a wrong file, before anything is written
    every, collected = collect()
    if sharing is not None:
        wanted = showing(wanted, {name: at.get(sharing, {}) for name, at in collected.items()})
    for artifact in every:
        if artifact.name not in wanted:
            continue
        for scale, records in collected[artifact.name].items():
            written = page.render(artifact, scale, records, RESULTS) if records else []
            print_paths(written)
            for old in {*rendered(RESULTS, artifact.name, scale)} - {*written}:
                old.unlink()  # there is no record of it any more
    claims = page.claims(every, collected)
    print_paths(tables.write(RESULTS / "tables" / "claims", claims))
    overview = RESULTS / "README.md"
    write_atomically(overview, page.page(every, collected, claims, RESULTS))
    print_paths([overview])
    return 0


def showing(chosen: Sequence[str], collected: Mapping[str, Records]) -> list[str]:
    """These artifacts, and those that show one of their runs, of what each has collected."""
    runs_of = {
        name: {run_of(run) for runs in records.values() for run in runs if "seed" in run}
        for name, records in collected.items()  # without a seed: the theory's
    }
    shown = set[tuple[str, int, str]]().union(*(runs_of[name] for name in chosen))
    return [name for name, runs in runs_of.items() if name in chosen or runs & shown]


def rendered(folder: Path, name: str, scale: str) -> Iterator[Path]:
    """The files below a folder that show an artifact at a scale."""
    yield from (folder / "tables").glob(f"{name}-{scale}.*")
    yield from (folder / "figures").glob(f"{name}-{scale}*")


def collect() -> tuple[list[Artifact], Mapping[str, page.AtScales]]:
    """Every artifact, and the records of each at each scale."""
    tell_where()
    records, every = read_records(), [load(name) for name in names()]
    return every, {artifact.name: artifact.at_scales(records) for artifact in every}


def push_results(arguments: argparse.Namespace) -> int:
    """Send the tables, the figures and the claims to W&B."""
    from tape_exp.paper.push import push

    every, collected = collect()
    logged = {"claims": page.claims(every, collected)}
    for artifact in every:
        for scale, records in collected[artifact.name].items():
            if records and (table := artifact.table(scale, records)):
                logged[f"{artifact.name}-{scale}"] = table
    where = (arguments.project, arguments.entity, arguments.mode)
    push(logged, RESULTS, arguments.folder, *where)
    return 0


def print_paths(paths: Sequence[Path]) -> None:
    """Print each path."""
    for path in paths:
        print(_shown(path))


def _shown(path: Path) -> Path:
    """As it can be opened from the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    sys.exit(main())
