"""The seven SCROLLS sets: read in one schema, and cut to prompts and answers of a given length."""

import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.data import scrolls_builtin
from tape_exp.data.batch import IGNORE
from tape_exp.data.sources import Part, Skipped, check_hub, hub_refusal, log
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.files import parse_json
from tape_exp.settings.errors import ConfigError, one_of
from tape_exp.settings.folders import path_of

ELSEWHERE = (
    "scale.text=local with task.path=<a folder> reads a copy (<data set>/<split>.jsonl, .jsonl.gz, "
    "or the hub's zips); scale.text=builtin needs no files."
)


@dataclass(frozen=True)
class Family:
    """What sets of one kind share.

    Args:
        closing: ends the prompt, after the document.
        answer_limit: tokens of an answer, in training and when it is generated.
    """

    closing: str
    answer_limit: int


QUESTION = Family("\n\nQuestion: {question}\nAnswer:", 200)
HYPOTHESIS = Family(
    "\n\nHypothesis: {question}\nEntailment, Contradiction or Not mentioned?\nAnswer:", 200
)
QUERY = Family("\n\nQuestion: {question}\nSummary:", 1000)
SUMMARY = Family("\n\nSummary:", 1000)
DATASETS = {
    "qasper": QUESTION,
    "contract_nli": HYPOTHESIS,
    "narrative_qa": QUESTION,
    "quality": QUESTION,
    "qmsum": QUERY,
    "summ_screen_fd": SUMMARY,
    "gov_report": SUMMARY,
}
ASKED = re.compile(r".*?\n\s*\n", re.DOTALL)  # a question, up to the first blank line
WITH_OPTIONS = re.compile(r".*?\(A\).*?\(B\).*?\(C\).*?\(D\).*?\n\s*\n", re.DOTALL)  # of quality


@dataclass
class Example:
    """One question, or one document to summarise, with every reference that the file has for it."""

    dataset: str
    id: str
    question: str | None  # of quality with its four options; None: the set has none
    document: str
    # In the order of the file; empty in the test split, whose answers the benchmark keeps.
    references: list[str]

    @property
    def closing(self) -> str:
        """What follows the document in a prompt."""
        return DATASETS[self.dataset].closing.format(question=self.question)


@dataclass(frozen=True)
class Encoded:
    """Token ids of an example. ``answer`` ends with EOS."""

    prompt: list[int]
    answer: list[int]


def read(
    dataset: str,
    split: str,
    source: str = "builtin",
    path: str | None = None,
    repository: str = "tau/scrolls",
    revision: str = "main",
    skipped: Skipped | None = None,
) -> list[Example]:
    """The examples of a split in the order of their first rows. Examples of one document share its
    string.

    Args:
        source: ``hub`` (a zip a set, streamed), ``local`` (files under ``path``) or ``builtin``
            (generated).
        path: local: a folder with ``<dataset>/<split>.jsonl``, ``<split>.jsonl``, either also with
            .gz, or ``<dataset>.zip``.
        skipped: counts the rows that are not what they should be; the first few are named in the
            log.

    Raises:
        ConfigError: unknown set or source, no files, no network, a damaged file, no example.
    """
    one_of("task.dataset", dataset, DATASETS)
    one_of("task.source", source, ("hub", "local", "builtin"))
    one_of("split", split, scrolls_builtin.SIZES)
    skipped = Skipped() if skipped is None else skipped
    before = skipped.rows
    examples: dict[str, Example] = {}
    documents: dict[str, str] = {}
    for place, line in _lines(
        dataset, split, source, path, f"datasets/{repository}@{revision}/{dataset}.zip"
    ):
        if not line.strip():
            continue
        example = _example(dataset, split, line)
        if isinstance(example, str):
            skipped.add(f"{place} {example}")
            continue
        first = examples.setdefault(example.id, example)
        if first is example:
            example.document = documents.setdefault(example.document, example.document)
        else:
            first.references.extend(example.references)
    if not examples:
        raise ConfigError(f"SCROLLS {dataset}: its split {split} holds no example. {ELSEWHERE}")
    if skipped.rows > before:
        rows = skipped.rows - before
        log.warning(
            "SCROLLS %s, %s: %d rows were skipped, %d examples are used.",
            dataset,
            split,
            rows,
            len(examples),
        )
    return list(examples.values())


def _example(dataset: str, split: str, line: str) -> Example | str:
    """The example of one row, or what is wrong with it."""
    try:
        row: Any = parse_json(line)
    except ValueError as error:
        return f"is not JSON ({error})"
    if not isinstance(row, dict):
        return f"is no object but a {type(row).__name__}"
    fields: dict[str, Any] = {key: row.get(key) for key in ("id", "input", "output")}
    if split == "test" and "output" in row and fields["output"] is None:
        fields["output"] = ""
    for key, value in fields.items():
        if not isinstance(value, str) or not (
            value.strip() or (split == "test" and key == "output")
        ):
            return f"has no text in its field {key!r} (it has: {', '.join(row)})"
        # A lone surrogate is not text; what cannot be written as UTF-8 is replaced.
        fields[key] = value.encode("utf-8", "replace").decode().strip()
    question, document = None, fields["input"]
    if "{question}" in DATASETS[dataset].closing:
        match = (WITH_OPTIONS if dataset == "quality" else ASKED).match(document)
        if match is None:
            return (
                "has no blank line after its "
                f"question{' and four options' if dataset == 'quality' else ''}"
            )
        question, document = match[0].strip(), document[match.end() :]
    return Example(
        dataset, fields["id"], question, document, [fields["output"]] if fields["output"] else []
    )


def _lines(
    dataset: str, split: str, source: str, path: str | None, on_hub: str
) -> Iterator[tuple[str, str]]:
    """Every line with its place."""
    if source == "builtin":
        for number, row in enumerate(scrolls_builtin.rows(dataset, split), 1):
            yield f"builtin line {number}", json.dumps(row)
        return
    number, url = 0, f"hf://{on_hub}"
    try:
        if source == "local":
            url = _local(dataset, split, path)
        else:
            check_hub(f"SCROLLS {dataset}", ELSEWHERE)
            from huggingface_hub import HfFileSystem

            # The listing says why the hub refuses; a zip's reader does not.
            if not HfFileSystem().glob(on_hub):
                raise ConfigError(
                    f"SCROLLS {dataset}: the hub has no {on_hub}. Correct task.revision. "
                    f"{ELSEWHERE}"
                )
        name = url
        if url.endswith(".zip"):
            url = f"zip://{_member(url, split)}::{url}"
        for number, row in enumerate(Part("lines", [url]).rows(0), 1):
            yield f"{url} line {number}", row["text"]
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ConfigError):
            raise
        if source == "hub":
            reason = f"{hub_refusal(on_hub.split('@')[0], error)} {ELSEWHERE}"
            raise ConfigError(f"SCROLLS {dataset}: {reason}") from error
        raise ConfigError(
            f"{name} cannot be read beyond line {number}: {error}. Fetch the file again."
        ) from error


def _local(dataset: str, split: str, path: str | None) -> str:
    """The file that holds a split."""
    if path is None:
        raise ConfigError(f"SCROLLS {dataset}: source=local needs a path. {ELSEWHERE}")
    folder = path_of("task.path", path)
    names = [f"{part}{split}.jsonl{end}" for part in (f"{dataset}/", "") for end in ("", ".gz")] + [
        f"{dataset}.zip"
    ]
    for name in names:
        if (folder / name).is_file():
            return str(folder / name)
    reason = "it does not exist"
    if folder.is_dir():
        reason = "there is: " + (
            ", ".join(sorted(f.name for f in folder.iterdir())[:8]) or "nothing"
        )
    raise ConfigError(
        f"SCROLLS {dataset}: {path} holds none of {', '.join(names)} ({reason}). {ELSEWHERE}"
    )


def _member(url: str, split: str) -> str:
    """The name that a split's file has in a zip, in whatever folder."""
    from fsspec.implementations.zip import ZipFileSystem

    members = ZipFileSystem(url).find("")
    matches = [name for name in members if name.rsplit("/", 1)[-1] == f"{split}.jsonl"]
    if not matches:
        raise ConfigError(
            f"{url} holds no {split}.jsonl (there is: {', '.join(members[:8]) or 'nothing'}). "
            f"{ELSEWHERE}"
        )
    return min(matches, key=lambda name: name.count("/"))


def encode(
    example: Example,
    tokenizer: Tokenizer,
    max_length: int,
    answer_limit: int | None = None,
    reference: int = 0,
) -> Encoded:
    """Prompt and answer for training, of one of the references: at most ``max_length`` tokens, BOS
    and EOS counted.

    The answer is cut to ``answer_limit`` tokens (None: the family's), and to half of what BOS,
    closing and EOS leave, so that a long summary does not take the place of the document it is of.
    The document gets the rest.

    Raises:
        ConfigError: what :func:`prompt` raises.
    """
    limit = DATASETS[example.dataset].answer_limit if answer_limit is None else answer_limit
    spare = max_length - len(_closing(example, tokenizer)) - 2
    answer = _beginning(
        tokenizer, " " + example.references[reference], min(limit, max(spare // 2, 1)), after=":"
    )
    answer.append(tokenizer.eos)
    return Encoded(prompt(example, tokenizer, max_length, len(answer)), answer)


def prompt(example: Example, tokenizer: Tokenizer, max_length: int, reserved: int) -> list[int]:
    """BOS, as much of the document's beginning as fits, and the closing, whole; ``reserved`` of
    ``max_length`` stay free.

    Raises:
        ConfigError: the closing, which holds the question, leaves no token for the document.
    """
    closing = _closing(example, tokenizer)
    room = max_length - reserved - len(closing) - 1
    if room < 1:
        raise ConfigError(
            f"task.max_length={max_length} is too short for {example.dataset} {example.id}: its "
            f"question and instruction are {len(closing)} tokens, and {reserved + 1} are kept for "
            f"the answer and BOS. task.max_length={2 * (max_length - room)} leaves as many for its "
            "document."
        )
    return [tokenizer.bos, *_beginning(tokenizer, example.document, room), *closing]


def check_length(example: Example, tokenizer: Tokenizer, max_length: int, reserved: int) -> None:
    """Check, as :func:`prompt` does, that the question fits, without tokenising the document."""
    room = max_length - reserved - len(_closing(example, tokenizer)) - 1
    if room < 1:
        prompt(example, tokenizer, max_length, reserved)


def as_row(encoded: Encoded, length: int) -> dict[str, Tensor]:
    """``inputs`` and ``labels``, both (length,): next tokens where those are of the answer or EOS,
    IGNORE elsewhere.

    A row of ``max_length`` tokens fits into ``length`` = max_length - 1. Padding is on the right.
    """
    tokens = torch.tensor(encoded.prompt + encoded.answer)
    used = len(tokens) - 1
    assert used <= length
    inputs = torch.full((length,), encoded.answer[-1])
    labels = torch.full((length,), IGNORE)
    inputs[:used] = tokens[:-1]
    labels[len(encoded.prompt) - 1 : used] = tokens[len(encoded.prompt) :]
    return {"inputs": inputs, "labels": labels}


def _closing(example: Example, tokenizer: Tokenizer) -> list[int]:
    # After a letter, which is what a document most often ends with, or nearly.
    return _beginning(tokenizer, example.closing, after="a")


def _beginning(
    tokenizer: Tokenizer, text: str, limit: int | None = None, after: str = ""
) -> list[int]:
    """Ids of the longest beginning of ``text`` that ``limit`` tokens hold, as they are where
    ``after`` goes before.

    Of a long text eight characters for every token are tokenised, and twice as many while they do
    not suffice. A character of which only some bytes would be kept is dropped, so that the ids
    decode to a beginning of the text. ``after`` keeps tokenizers that mark the beginning of a text,
    such as Llama-2's, from doing so in its middle.
    """
    size = len(text) if limit is None else 8 * (limit + 1)
    while True:
        encoding = tokenizer.backend.encode(after + text[:size], add_special_tokens=False)
        ids, spans = encoding.ids, encoding.offsets
        if after:
            first = next((n for n, (_, end) in enumerate(spans) if end > len(after)), len(spans))
            if first < len(spans) and spans[first][0] < len(after):
                after = ""  # one token holds its end and the text's beginning
                continue
            ids, spans = ids[first:], spans[first:]
        if limit is None or len(ids) > limit or size >= len(text):
            break
        size *= 2
    kept = len(ids) if limit is None else min(limit, len(ids))
    while 0 < kept < len(ids) and spans[kept - 1][1] > spans[kept][0]:
        kept -= 1
    return ids[:kept]
