"""The seven SCROLLS sets: read in one schema, and cut to prompts and answers of a given length."""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.data import scrolls_builtin
from tape_exp.data.batch import IGNORE
from tape_exp.data.hub import reason
from tape_exp.data.text import lines
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import path_of

log = logging.getLogger("tape_exp")
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
) -> list[Example]:
    """The examples of a split in the order of their first rows. Examples of one document share its
    string. Rows that are not what they should be are left out, and a warning says how many.

    Args:
        source: ``hub`` (a zip a set, streamed), ``local`` (files under ``path``) or ``builtin``
            (generated).
        path: local: a folder with ``<dataset>/<split>.jsonl``, ``<split>.jsonl``, either also with
            .gz, or ``<dataset>.zip``.

    Raises:
        ConfigError: no files, no network, a damaged file, no example.
    """
    examples: dict[str, Example] = {}
    documents: dict[str, str] = {}
    skipped: list[str] = []
    for number, row in enumerate(_rows(dataset, split, source, path, repository, revision), 1):
        example = _example(dataset, split, row)
        if isinstance(example, str):
            skipped.append(f"row {number} {example}")
            continue
        first = examples.setdefault(example.id, example)
        if first is example:
            example.document = documents.setdefault(example.document, example.document)
        else:
            first.references.extend(example.references)
    if skipped:
        log.warning(
            "SCROLLS %s, %s: %d rows are skipped; %s.", dataset, split, len(skipped), skipped[0]
        )
    if not examples:
        raise ConfigError(f"SCROLLS {dataset}: its split {split} holds no example. {ELSEWHERE}")
    return list(examples.values())


def _example(dataset: str, split: str, row: Any) -> Example | str:
    """The example of a row, or what is wrong with it."""
    if not isinstance(row, dict):
        return "is no JSON object"
    fields: dict[str, Any] = {key: row.get(key) for key in ("id", "input", "output")}
    if split == "test" and "output" in row and fields["output"] is None:
        fields["output"] = ""
    for key, value in fields.items():
        may_be_empty = split == "test" and key == "output"
        if not isinstance(value, str) or not (value.strip() or may_be_empty):
            return f"has no text in its field {key!r} (it has: {', '.join(row)})"
        # A lone surrogate is not text; what cannot be written as UTF-8 is replaced.
        fields[key] = value.encode("utf-8", "replace").decode().strip()
    question, document = None, fields["input"]
    if "{question}" in DATASETS[dataset].closing:
        match = (WITH_OPTIONS if dataset == "quality" else ASKED).match(document)
        if match is None:
            return "has no blank line after its question"
        question, document = match[0].strip(), document[match.end() :]
    references = [fields["output"]] if fields["output"] else []
    return Example(dataset, fields["id"], question, document, references)


def _rows(
    dataset: str, split: str, source: str, path: str | None, repository: str, revision: str
) -> Iterator[Any]:
    """Every row of a split; None where it is no JSON."""
    if source == "builtin":
        yield from scrolls_builtin.rows(dataset, split)
        return
    zipped = f"hf://datasets/{repository}@{revision}/{dataset}.zip"
    url = _local(dataset, split, path) if source == "local" else zipped
    if url.endswith(".zip"):
        url = f"zip://{dataset}/{split}.jsonl::{url}"
    try:
        for line in lines(url):
            try:
                row = json.loads(line) if line.strip() else {}
            except ValueError:
                row = None
            if row != {}:
                yield row
    except Exception as error:  # whatever a codec raises on broken content
        why = f"{reason(error)} {ELSEWHERE}" if source == "hub" else f"{error}. Fetch it again."
        raise ConfigError(f"SCROLLS {dataset}: {url} cannot be read: {why}") from error


def _local(dataset: str, split: str, path: str | None) -> str:
    """The file that holds a split."""
    names = [f"{part}{split}.jsonl{end}" for part in (f"{dataset}/", "") for end in ("", ".gz")]
    names.append(f"{dataset}.zip")
    for name in names if path else ():
        if (file := path_of("task.path", str(path)) / name).is_file():
            return str(file)
    raise ConfigError(
        f"SCROLLS {dataset}: task.path={path} holds none of {', '.join(names)}. {ELSEWHERE}"
    )


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
    return [*tokenizer.begin, *_beginning(tokenizer, example.document, room), *closing]


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
