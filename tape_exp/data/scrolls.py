"""The seven SCROLLS sets: read in one schema, and cut to prompts and answers of a given length."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_exp.data.batch import IGNORE
from tape_exp.data.builtin.scrolls import scrolls_rows
from tape_exp.data.files import NotTextError, rows, text_in, why
from tape_exp.data.hub import reason
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.settings.errors import ConfigError

ELSEWHERE = (
    "scale.text=local with task.path=<a folder> reads a copy (<data set>/<split>.jsonl, .jsonl.gz, "
    "or the hub's zips); scale.text=builtin needs no files."
)
QUESTION = "\n\nQuestion: {question}"
LABELS = "Entailment, Contradiction or Not mentioned?"


class Form(NamedTuple):
    """How a set asks."""

    closing: str  # what ends a prompt after the document
    tokens: int  # of an answer, trained or generated, at most


DATASETS = {
    "qasper": Form(f"{QUESTION}\nAnswer:", 200),
    "narrative_qa": Form(f"{QUESTION}\nAnswer:", 200),
    "quality": Form(f"{QUESTION}\nAnswer:", 200),
    "contract_nli": Form(f"\n\nHypothesis: {{question}}\n{LABELS}\nAnswer:", 200),
    "qmsum": Form(f"{QUESTION}\nSummary:", 1000),
    "summ_screen_fd": Form("\n\nSummary:", 1000),
    "gov_report": Form("\n\nSummary:", 1000),
}
# A question, up to the first blank line: "Who came?" of "Who came?\n\nTom came." Of quality up to
# the first one after its four options: "Who came?\n\n(A) Tom\n(B) Eve\n(C) Max\n(D) Ann\n\n"
ASKED = re.compile(r".*?\n\s*\n", re.DOTALL)
WITH_OPTIONS = re.compile(r".*?\(A\).*?\(B\).*?\(C\).*?\(D\).*?\n\s*\n", re.DOTALL)


@dataclass
class Example:
    """One question, or one document to summarise, with every reference that the file has for it."""

    dataset: str
    id: str
    question: str | None  # of quality with its four options; None: the set has none
    document: str
    references: list[str]  # in the order of the file

    @property
    def closing(self) -> str:
        """Return the question as it ends a prompt."""
        return DATASETS[self.dataset].closing.format(question=self.question)


def read(
    dataset: str,
    split: str,
    source: str = "builtin",
    path: str | None = None,
    repository: str = "tau/scrolls",
    revision: str = "main",
) -> list[Example]:
    """Read the examples of a split in the order of their first rows, generated (``builtin``), from
    ``hub`` (a zip a set), or ``local``: a file of rows, or below ``path`` ``<dataset>.zip``,
    ``<dataset>/<split>.jsonl`` or ``<split>.jsonl``, either also with .gz.
    """
    if source == "builtin":
        return _examples(dataset, scrolls_rows(dataset, split))
    zipped = f"hf://datasets/{repository}@{revision}/{dataset}.zip"
    url = _local(dataset, split, path) if source == "local" else zipped
    if url.endswith(".zip"):
        url = f"zip://{dataset}/{split}.jsonl::{url}"
    try:
        return _examples(dataset, rows(url))
    except Exception as error:  # whatever a codec raises on broken content
        of_hub = source == "hub" and not isinstance(error, NotTextError)
        cause = f"{reason(error)} {ELSEWHERE}" if of_hub else why(error)
        raise ConfigError(f"SCROLLS {dataset}: {url} cannot be read: {cause}") from error


def _examples(dataset: str, rows: Iterable[dict[str, str]]) -> list[Example]:
    """Collect rows in the benchmark's schema ``id, pid, input, output``, a reference each.

    Two rows of id ``7`` with the input ``Who?`` and, after a blank line, ``It was Tom.``, and the
    outputs ``Tom`` and ``He``, are one example: question ``Who?``, document ``It was Tom.`` and
    both references.
    """
    examples: dict[str, Example] = {}
    documents: dict[str, str] = {}
    asks = "{question}" in DATASETS[dataset].closing
    pattern = WITH_OPTIONS if dataset == "quality" else ASKED
    for row in rows:
        id_ = _field(row, "id")
        text = _field(row, "input")
        reference = _field(row, "output")
        if id_ not in examples:
            question = None
            document = text
            if asks:
                question_end = pattern.match(text)
                if question_end is None:
                    raise NotTextError(f"the input of {id_} has no blank line after its question.")
                question = question_end[0].strip()
                document = text[question_end.end() :]
            document = documents.setdefault(document, document)
            examples[id_] = Example(dataset, id_, question, document, [])
        examples[id_].references.append(reference)
    return list(examples.values())


def _field(row: dict[str, Any], key: str) -> str:
    """Return the text of a row's field. Raises :class:`NotTextError` where it has none."""
    schema = "a row of SCROLLS has an id, an input and an output, all texts."
    text = text_in(row, key, schema)
    if text is None:
        raise NotTextError(f"a row's {key!r} is empty; {schema}")
    return text.strip()


def _local(dataset: str, split: str, path: str | None) -> str:
    """Find the file that holds a split."""
    file = f"{split}.jsonl"
    names = [f"{dataset}/{file}", f"{dataset}/{file}.gz", file, f"{file}.gz", f"{dataset}.zip"]
    if path:
        for name in ("", *names):
            place = Path(path).expanduser() / name
            if place.is_file():
                return str(place)
    raise ConfigError(
        f"SCROLLS {dataset}: task.path={path} holds none of {', '.join(names)}. {ELSEWHERE}"
    )


def encode(
    example: Example,
    tokenizer: Tokenizer,
    max_length: int,
    answer_limit: int | None = None,
    reference: int = 0,
) -> tuple[list[int], list[int]]:
    """Write prompt and answer for training, of one of the references: at most ``max_length``
    tokens, BOS and EOS counted. The answer is cut to ``answer_limit`` tokens (None: the set's), and
    to half of what BOS, closing and EOS leave, so that a long summary leaves room for its document.
    Special tokens that the prompt says are tokens; those of the answer are letters, which do not
    end it.
    """
    limit = DATASETS[example.dataset].tokens if answer_limit is None else answer_limit
    spare = max(max_length - len(_closing(example, tokenizer)) - 2, 2)
    text = f" {example.references[reference]}"
    answer = _beginning(tokenizer, text, min(limit, spare // 2), after=":", prompt=False)
    answer.append(tokenizer.eos)
    return prompt(example, tokenizer, max_length, len(answer)), answer


def prompt(example: Example, tokenizer: Tokenizer, max_length: int, reserved: int) -> list[int]:
    """Write BOS, as much of the document's beginning as fits, and the closing, whole; ``reserved``
    of ``max_length`` stay free.
    """
    limit = room(example, tokenizer, max_length, reserved)
    document = _beginning(tokenizer, example.document, limit)
    return tokenizer.begun([*document, *_closing(example, tokenizer)])


def room(example: Example, tokenizer: Tokenizer, max_length: int, reserved: int) -> int:
    """Count the tokens that are left for the document. Raises :class:`ConfigError` where the
    closing, which holds the question, leaves none.
    """
    left = max_length - reserved - len(_closing(example, tokenizer)) - 1
    if left < 1:
        raise ConfigError(
            f"task.max_length={max_length} is too short for {example.dataset} {example.id}: "
            f"task.max_length={2 * (max_length - left)} leaves half of it for the document."
        )
    return left


def as_row(prompt: list[int], answer: list[int], length: int) -> dict[str, Tensor]:
    """Make ``inputs`` and ``labels``, both (length,): next tokens where those are of the answer or
    EOS, IGNORE elsewhere. Padding is on the right.

    Prompt [1, 5], answer [6, 2] and length 4 give the inputs [1, 5, 6, 2] and the labels
    [IGNORE, 6, 2, IGNORE].
    """
    tokens = torch.tensor(prompt + answer)
    used = len(prompt) + len(answer) - 1
    inputs = torch.full((length,), answer[-1])
    labels = torch.full((length,), IGNORE)
    inputs[:used] = tokens[:-1]
    labels[len(prompt) - 1 : used] = tokens[len(prompt) :]
    return {"inputs": inputs, "labels": labels}


def _closing(example: Example, tokenizer: Tokenizer) -> list[int]:
    # After a letter, which is what a document most often ends with, or nearly.
    return _beginning(tokenizer, example.closing, after="a")


def _beginning(
    tokenizer: Tokenizer,
    text: str,
    limit: int | None = None,
    after: str = "",
    prompt: bool = True,
) -> list[int]:
    """Return the ids of the longest beginning of ``text`` that ``limit`` tokens hold, as they are
    where ``after`` goes before, by the rule of a prompt or of a document.

    Of a long text sixteen characters for every token are tokenised, and twice as many while they do
    not suffice. A character of which only some bytes would be kept is dropped, so that the ids
    decode to a beginning of the text. ``after`` keeps tokenizers that mark the beginning of a text,
    such as Llama-2's, from doing so in its middle.
    """
    size = len(text) if limit is None else 16 * (limit + 1)
    ids: list[int] = []
    while limit is None or len(ids) <= limit:
        encoding = tokenizer.pieces(after + text[:size], prompt)
        first = sum(end <= len(after) for _, end in encoding.offsets) if after else 0
        ids = encoding.ids[first:]
        spans = encoding.offsets[first:]
        if ids and spans[0][0] < len(after):  # one token holds its end and the text's beginning
            return _beginning(tokenizer, text, limit, prompt=prompt)
        if size >= len(text):
            break
        size *= 2
    count = len(ids) if limit is None else min(limit, len(ids))
    while 0 < count < len(ids) and spans[count - 1][1] > spans[count][0]:
        count -= 1
    return ids[:count]
