"""SCROLLS (section 4.2): fine-tune on a data set, generate answers and score them.

``python -m tape_exp.tasks.scrolls score predictions.json --dataset quality [--references
FILE|FOLDER] [--split validation]`` scores predictions made elsewhere.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tape_exp.data import scrolls
from tape_exp.data.batch import Batch
from tape_exp.data.scrolls import Example
from tape_exp.data.scrolls_metrics import DATASETS, Scores, first_three, score
from tape_exp.data.text import Source, Text, lines
from tape_exp.data.tokenizers import Tokenization
from tape_exp.machine.files import parse_json, write_atomically
from tape_exp.machine.processes import gather, rank_and_world, share
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.generation import generate, sharded
from tape_exp.runs.evaluation import Evaluation
from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError, at_least_one, one_of
from tape_exp.settings.schema import Arch, Optim
from tape_exp.tasks.base import epoch_samples
from tape_exp.tasks.text import TextTask

REFERENCES = Path("data/scrolls")


class Scrolls(TextTask):
    """Fine-tuning on one SCROLLS set, then greedy validation answers, scored as in the benchmark.

    A row is BOS, the document cut so that all fits, the question and a closing instruction, whole,
    and the answer with EOS; the loss is on the answer. Every reference of a training question is a
    row of its own. Finished predictions are appended to ``artifacts/predictions.jsonl`` and not
    made again when a killed evaluation is started anew.

    Metrics, in percent: ``<dataset>/<value>`` of :mod:`tape_exp.data.scrolls_metrics`, with
    ``…_low`` and ``…_high`` of its 95 % interval; of the generated sets ``builtin_<dataset>/…``.

    Args:
        dataset: one of the seven.
        source, path, repository, revision: as in :func:`tape_exp.data.scrolls.read`.
        tokenizer: that of the run it begins from; without one, how text is cut (a BPE is trained on
            built-in text).
        max_length: tokens of a training row.
        answer_limit, new_tokens: of an answer in training, and when it is generated; null: 200, and
            1000 of a summary.
        validation_rows: of the validation split, scored by their loss during training.
        init_from: like ``checkpoint=``: the run whose weights and tokenizer it begins from.
    """

    reports_perplexity = True

    def __init__(
        self,
        arch: Arch,
        optim: Optim,
        seed: int,
        dataset: str,
        tokenizer: Tokenization,
        max_length: int = 1024,
        source: Source = "builtin",
        path: str | None = None,
        repository: str = "tau/scrolls",
        revision: str = "main",
        answer_limit: int | None = None,
        new_tokens: int | None = None,
        validation_rows: int = 64,
        rows_per_batch: int = 64,
        init_from: str | None = None,
    ) -> None:
        one_of("task.dataset", dataset, DATASETS)
        at_least_one(
            "task", max_length=max_length, answer_limit=answer_limit, new_tokens=new_tokens
        )
        at_least_one("task", validation_rows=validation_rows, rows_per_batch=rows_per_batch)
        self.new_tokens = new_tokens or scrolls.DATASETS[dataset].answer_limit
        self.reserved = min(
            self.new_tokens, max_length // 2
        )  # of max_length, so that a long summary leaves a document
        longest = max_length - self.reserved + self.new_tokens
        super().__init__(arch, seed, Text("builtin"), tokenizer, max_length)
        self.reaches(longest)
        self.optim = optim
        self.dataset, self.max_length, self.answer_limit = dataset, max_length, answer_limit
        self.source = source
        self.validation_rows, self.rows_per_batch = validation_rows, rows_per_batch
        self._read = partial(
            scrolls.read,
            dataset,
            source=source,
            path=path,
            repository=repository,
            revision=revision,
        )
        self._rows: dict[tuple[int, int], Batch] = {}

    def prepare(self) -> None:
        """Read both splits, and check that every question fits."""
        self.examples, self.validation = self._read("train"), self._read("validation")
        self.pairs = [
            (n, r)
            for n, example in enumerate(self.examples)
            for r in range(len(example.references))
        ]
        for example in (*self.examples, *self.validation):
            scrolls.check_length(example, self.tokenizer, self.max_length, self.reserved)

    def train_batch(self, first: int, count: int) -> Batch:
        """Rows ``first`` … of the endless stream of epochs, each in an order of its own."""
        rows = []
        for place in epoch_samples(self.seed, first, count, len(self.pairs)):
            number, reference = self.pairs[place]
            if (number, reference) not in self._rows:
                self._rows[number, reference] = self._row(self.examples[number], reference)
            rows.append(self._rows[number, reference])
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def validation_batches(self) -> list[Batch]:
        """The first rows of the validation split, with their first references."""
        rows = [self._row(example, 0) for example in self.validation[: self.validation_rows]]
        batches = _batched(rows, self.rows_per_batch)
        return [
            {key: torch.stack([row[key] for row in batch]) for key in batch[0]} for batch in batches
        ]

    def fingerprint(self) -> str:
        """A hash of the first samples, the validation rows, and every question and reference."""
        content = [(e.id, e.question, e.references) for e in (*self.examples, *self.validation)]
        text = super().fingerprint() + json.dumps(content)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def test_fingerprint(self) -> str:
        """A hash of the documents that questions are asked about."""
        digest = hashlib.sha256()
        for example in self.validation:
            digest.update(repr(example).encode())
        return digest.hexdigest()[:16]

    def evaluate(
        self, model: Any, progress: Callable[..., Any], limit: int | None = None
    ) -> Evaluation:
        """Generate missing predictions, the longest prompts first; score; list all in a table."""
        prompts = {
            e.id: scrolls.prompt(e, self.tokenizer, self.max_length, self.reserved)
            for e in self.validation
        }
        order = sorted(prompts, key=lambda id_: (-len(prompts[id_]), id_))
        batches = _batched(order, self.rows_per_batch)[:limit]
        folder = self.surroundings.folder
        kept = Predictions(folder / "predictions.jsonl" if folder else None)
        for (number, ids), counts in progress(
            share(list(enumerate(batches))), f"answering {self.dataset}"
        ):
            missing = [id_ for id_ in ids if id_ not in kept.texts] if counts else []
            if not missing and not sharded(model.decoder):
                continue
            rows = generate(  # all rows of a batch, which share padding and random positions
                model.decoder,
                [prompts[id_] for id_ in ids],
                self.new_tokens,
                self.tokenizer.eos,
                sampler=RowSampler(0, "answers", first=number * self.rows_per_batch),
            )
            answers = [self.tokenizer.decode(row).strip() for row in rows]
            given = dict(zip(ids, answers, strict=True))
            if missing:
                kept.add({id_: given[id_] for id_ in missing})
        predictions = {id_: text for part in gather(kept.texts) for id_, text in part.items()}
        asked = {id_ for batch in batches for id_ in batch}
        examples = {e.id: e for e in self.validation if e.id in asked}
        scores = score(
            self.dataset,
            {id_: predictions[id_] for id_ in examples},
            {id_: e.references for id_, e in examples.items()},
        )
        metrics: dict[str, float] = {}
        label = Text(self.dataset, self.source).label
        for name, value in scores.values.items():
            low, high = scores.intervals[name]
            key = f"{label}/{name}"
            metrics |= {key: value, f"{key}_low": low, f"{key}_high": high}
        table = _table(examples, scores)
        short = [
            {key: value[:600] if isinstance(value, str) else value for key, value in row.items()}
            for row in table[:3]
        ]
        return Evaluation(metrics, tables={"predictions": table}, samples=short)

    def forget(self) -> None:
        """Remove the answers: those of other weights would be scored as of these."""
        if self.surroundings.folder is not None:
            for path in self.surroundings.folder.glob("predictions*.jsonl"):
                path.unlink(missing_ok=True)

    def _row(self, example: Example, reference: int) -> Batch:
        encoded = scrolls.encode(
            example, self.tokenizer, self.max_length, self.answer_limit, reference
        )
        return scrolls.as_row(encoded, self.max_length - 1)


def _batched(items: list[Any], size: int) -> list[list[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


class Predictions:
    """Predictions by id, kept in a file that grows by lines and survives the process.

    Each of several processes appends to a file of its own and reads all.
    """

    def __init__(self, path: Path | None) -> None:
        self.texts: dict[str, str] = {}
        self.path = path
        if path is None:
            return
        rank, _ = rank_and_world()
        for file in sorted(path.parent.glob(f"{path.stem}*{path.suffix}")):
            for line in file.read_text(errors="replace").splitlines():
                try:
                    row = parse_json(line)
                    id_, text = row["id"], row["prediction"]
                except (ValueError, KeyError, TypeError):  # cut short when the process was killed
                    continue
                if line.isascii() and isinstance(id_, str) and isinstance(text, str):
                    self.texts[id_] = text
        self.path = path.with_stem(f"{path.stem}-{rank}") if rank else path

    def add(self, texts: dict[str, str]) -> None:
        """Keep more predictions."""
        self.texts |= texts
        if self.path is not None:
            with self.path.open("a+") as file:
                whole = self.path.stat().st_size == 0 or self.path.read_bytes().endswith(b"\n")
                lines = [
                    json.dumps({"id": id_, "prediction": text}) + "\n"
                    for id_, text in texts.items()
                ]
                file.write(("" if whole else "\n") + "".join(lines))


def _table(examples: dict[str, Example], scores: Scores) -> list[dict[str, Any]]:
    """A row an example: question, references, prediction and scores."""
    rows = []
    for row in scores.per_example:
        shared = {
            "id": row["id"],
            "question": examples[row["id"]].question or "",
            "references": " | ".join(row["references"]),
        }
        rows.append(shared | {"prediction": row["prediction"]} | row["scores"])
    return rows


def read_references(source: Path, dataset: str, split: str) -> dict[str, list[str]]:
    """The references of each id, from a file in the benchmark's schema ``id, pid, input, output``.

    Args:
        source: a .jsonl or .jsonl.gz, or a folder with ``<split>`` or ``<dataset>/<split>`` of
            either.

    Raises:
        ConfigError: no such file, or a line that is not JSON or not in the schema.
    """
    path, number = _find(source, dataset, split), 0
    references: dict[str, list[str]] = {}
    try:
        for number, line in enumerate(lines(str(path)), 1):  # noqa: B007  of the messages
            if line.strip():
                row = parse_json(line)
                if not all(isinstance(row[key], str) for key in ("id", "output")):
                    raise KeyError
                references.setdefault(row["id"], []).append(row["output"])
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} line {number} needs the strings id and output. The benchmark does not "
            "publish those of its test split."
        ) from error
    except Exception as error:  # whatever a codec raises on broken content
        raise ConfigError(
            f"{path} cannot be read from line {max(number, 1)} on ({error})."
        ) from error
    return references


def _find(source: Path, dataset: str, split: str) -> Path:
    """The file itself, or the one of a dataset and split in a folder."""
    wanted = [f"{split}.jsonl", f"{split}.jsonl.gz"]
    for path in [source, *(source / folder / name for folder in (dataset, ".") for name in wanted)]:
        if path.is_file():
            return path
    raise ConfigError(
        f"--references={source} is neither a .jsonl or .jsonl.gz file nor a folder with "
        f"{' or '.join(wanted)}, which may also be in its folder {dataset}."
    )


def read_predictions(path: Path) -> dict[str, Any]:
    """The JSON object of a file, id -> prediction.

    Raises:
        ConfigError: it cannot be read, is not a JSON object, or has an id twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        if twice := [key for key, count in counts.items() if count > 1]:
            raise ConfigError(
                f"{path} has ids more than once, {len(twice)} in all: {first_three(twice)}."
            )
        return dict(pairs)

    try:
        predictions = parse_json(path.read_bytes(), object_pairs_hook=unique)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not JSON ({error}).") from error
    if not isinstance(predictions, dict):
        raise ConfigError(f'{path} must hold one JSON object, {{"<id>": "<prediction>", …}}.')
    return predictions


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; mistakes are told before anything is written."""
    parser = argparse.ArgumentParser(prog="tape-exp score", description="The SCROLLS benchmark.")
    add = parser.add_subparsers(dest="command", required=True).add_parser(
        "score",
        help="score predictions as the benchmark does",
        description="Score a file of predictions against the references of a set of SCROLLS, as "
        "the benchmark does, and print each metric with its interval.",
    )
    add.add_argument("predictions", type=Path, help="a JSON object, id -> prediction")
    add.add_argument("--dataset", required=True, help=", ".join(DATASETS))
    where = f"a file, or a folder (default: {REFERENCES})"
    add.add_argument("--references", type=Path, default=REFERENCES, help=where)
    whose = "whose file is taken from a folder (default: validation)"
    add.add_argument("--split", default="validation", help=whose)
    add.add_argument("--out", type=Path, help="a file for the score of every example, JSON")
    given = parser.parse_args(arguments)
    one_of("--dataset", given.dataset, DATASETS)
    source = _find(given.references, given.dataset, given.split)
    if given.out is not None and given.out.resolve() in (
        given.predictions.resolve(),
        source.resolve(),
    ):
        raise ConfigError(f"--out={given.out} would overwrite what is read; name another file.")
    references = read_references(source, given.dataset, given.split)
    scores = score(given.dataset, read_predictions(given.predictions), references)
    if given.out is not None:
        content = {"dataset": given.dataset, "scores": scores.values}
        content |= {"intervals": scores.intervals, "examples": scores.per_example}
        try:
            write_atomically(given.out, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"--out={given.out} cannot be written ({error.strerror}).") from error
    number = len(scores.per_example)
    print(f"{given.dataset}: {number} examples, percent with the bootstrap's 95 % interval")
    for name, value in scores.values.items():
        low, high = scores.intervals[name]
        print(f"{name:20} {value:6.2f}  [{low:.2f}, {high:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
