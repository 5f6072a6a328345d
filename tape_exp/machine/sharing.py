"""Batches of items, which the processes of a run share."""

from collections.abc import Callable
from typing import Any

from tape_exp.machine.processes import gather, share

Batches = list[tuple[int, Any]]
"""The number of the first item of each batch, and the batch."""


def batched(items: Any, size: int) -> Batches:
    """Return items in batches of this size, of which the last may be smaller."""
    return [(first, items[first : first + size]) for first in range(0, len(items), size)]


def answers_of_all(
    batches: Batches, answer: Callable[[Any, int], dict[Any, Any]], progress: Any, title: str
) -> dict[Any, Any]:
    """Return what ``answer(batch, number of its first item)`` gives of every batch. Each process
    answers its share, and all have every answer; ``progress(items, title)`` shows how far it is.
    """
    local: dict[Any, Any] = {}
    for (first, batch), counts in progress(share(batches), title):
        answers = answer(batch, first)  # also where it does not count: others may wait for it
        if counts:
            local |= answers
    together: dict[Any, Any] = {}
    for of_process in gather(local):
        together |= of_process
    return together
