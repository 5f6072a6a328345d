"""SCROLLS (section 4.2): scoring of predictions, also without a model.

``python -m tape_exp.tasks.scrolls score predictions.json --dataset quality [--references FILE|FOLDER] [--split validation]``
"""

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tape_exp.config import ConfigError, one_of
from tape_exp.files import write_atomically
from tape_exp.metrics import DATASETS, Scores, first_three, score

REFERENCES = Path("data/scrolls")


def read_references(source: Path, dataset: str, split: str) -> dict[str, list[str]]:
    """The references of each id, from a file in the benchmark's schema (``id, pid, input, output``).

    Args:
        source: a .jsonl or .jsonl.gz, or a folder with ``<split>`` or ``<dataset>/<split>`` of either.

    Raises:
        ConfigError: no such file, a line that is not JSON or not in the schema.
    """
    path = _find(source, dataset, split)
    references: dict[str, list[str]] = {}
    for number, row in _rows(path):
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("output"), str):
            raise ConfigError(
                f"{path} line {number} needs the strings id and output. The benchmark does not publish those of its test split."
            )
        references.setdefault(row["id"], []).append(row["output"])
    return references


def _find(source: Path, dataset: str, split: str) -> Path:
    """The file itself, or the one of a dataset and split in a folder."""
    if source.is_file():
        return source
    wanted = [f"{split}.jsonl", f"{split}.jsonl.gz"]
    for path in [source / folder / name for folder in (dataset, ".") for name in wanted]:
        if path.is_file():
            return path
    raise ConfigError(
        f"--references={source} is neither a .jsonl or .jsonl.gz file nor a folder with {' or '.join(wanted)}, "
        f"which may also lie in its folder {dataset}."
    )


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered lines of a .jsonl or .jsonl.gz."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read beyond line {number} ({error}).") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} line {number} is not JSON ({error}).") from error


def read_predictions(path: Path) -> dict[str, Any]:
    """The JSON object of a file, id -> prediction.

    Raises:
        ConfigError: it cannot be read, is not a JSON object, or has an id twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        twice = {}
        for key, value in pairs:
            if key in content:
                twice[key] = True
            content[key] = value
        if twice:
            raise ConfigError(f"{path} has ids more than once, {len(twice)} in all: {first_three(list(twice))}.")
        return content

    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=unique)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ConfigError(f'{path} must hold one JSON object, {{"<id>": "<prediction>", …}}.')
    return found


def report(dataset: str, scores: Scores) -> str:
    """Scores as lines: each value with its interval."""
    lines = [f"{dataset}: {len(scores.per_example)} examples, percent with the bootstrap's 95 % interval"]
    for name, value in scores.values.items():
        low, high = scores.intervals[name]
        lines.append(f"{name:20} {value:6.2f}  [{low:.2f}, {high:.2f}]")
    return "\n".join(lines)


def to_json(dataset: str, scores: Scores) -> str:
    """Scores and every example, as they are written to a file."""
    content = {"dataset": dataset, "scores": scores.values, "intervals": scores.intervals, "examples": scores.per_example}
    return json.dumps(content, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are one sentence and exit code 2, before anything is written."""
    parser = argparse.ArgumentParser(prog="python -m tape_exp.tasks.scrolls", description="The SCROLLS benchmark.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("score", help="score predictions as the benchmark does")
    command.add_argument("predictions", type=Path, help="a JSON object, id -> prediction")
    command.add_argument("--dataset", required=True, help=", ".join(DATASETS))
    command.add_argument("--references", type=Path, default=REFERENCES, help=f"a file, or a folder (default: {REFERENCES})")
    command.add_argument("--split", default="validation", help="whose file is taken from a folder (default: validation)")
    command.add_argument("--out", type=Path, help="a file for the score of every example, JSON")
    given = parser.parse_args(arguments)
    try:
        score_file(given.predictions, given.dataset, given.references, given.split, given.out)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def score_file(predictions: Path, dataset: str, references: Path, split: str, out: Path | None) -> None:
    """Score a file of predictions, print the scores and write every example to ``out``."""
    one_of("--dataset", dataset, DATASETS)
    source = _find(references, dataset, split)
    if out is not None and out.resolve() in (predictions.resolve(), source.resolve()):
        raise ConfigError(f"--out={out} would overwrite what is read; name another file.")
    scores = score(dataset, read_predictions(predictions), read_references(source, dataset, split))
    if out is not None:
        try:
            write_atomically(out, to_json(dataset, scores))
        except OSError as error:
            raise ConfigError(f"--out={out} cannot be written ({error.strerror}).") from error
    print(report(dataset, scores))


if __name__ == "__main__":
    sys.exit(main())
