"""Greedy answers to questions of SCROLLS, and their scores: of the benchmark and of ``reading``."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tape_exp.data.scrolls import Example
from tape_exp.data.scrolls_metrics import score
from tape_exp.machine.seeding import RowSampler
from tape_exp.machine.sharing import answers_of_all, batched
from tape_exp.models.generation import generate
from tape_exp.tasks.base import Model, Progress

SCORED: Any = {"id": "answer"}, {"id": ["reference"]}  # whatever is scored has the same values


class Asks(Protocol):
    """A task of texts that asks questions."""

    dataset: str
    new_tokens: int
    rows_per_batch: int

    @property
    def stop_tokens(self) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def answer(
    task: Asks,
    prompts: Mapping[str, Sequence[int]],
    model: Model,
    progress: Progress,
    limit: int | None,
) -> dict[str, str]:
    """Return the greedy answer to each prompt, by id, in batches in the order of the prompts;
    ``limit`` stops after as many batches.
    """

    def answer_batch(ids: Sequence[str], first: int) -> dict[str, str]:
        rows = generate(
            model.decoder,
            [prompts[id_] for id_ in ids],
            task.new_tokens,
            task.stop_tokens,
            sampler=RowSampler(0, "answers", first=first),
        )
        return {id_: task.decode(row).strip() for id_, row in zip(ids, rows, strict=True)}

    batches = batched([*prompts], task.rows_per_batch)[:limit]
    return answers_of_all(batches, answer_batch, progress, f"answering {task.dataset}")


def score_names(dataset: str, label: str) -> list[str]:
    """Name the metrics of :func:`scored`."""
    names = []
    for value in score(dataset, *SCORED)[0]:
        names += [f"{label}/{value}", f"{label}/{value}_low", f"{label}/{value}_high"]
    return names


def scored(
    dataset: str, label: str, examples: Sequence[Example], answers: Mapping[str, str]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Score answers to examples: the metrics ``<label>/<value>`` with the ends of their intervals,
    and a row for each example.
    """
    references = {example.id: example.references for example in examples}
    given = {example.id: answers[example.id] for example in examples}
    values, scores = score(dataset, given, references)
    metrics: dict[str, float] = {}
    for name, (value, low, high) in values.items():
        key = f"{label}/{name}"
        metrics |= {key: value, f"{key}_low": low, f"{key}_high": high}
    table = []
    for example in examples:
        row = {
            "id": example.id,
            "question": example.question or "",
            "references": " | ".join(example.references),
            "prediction": answers[example.id],
        }
        table.append(row | scores[example.id])
    return metrics, table
