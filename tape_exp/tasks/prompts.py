"""Prompts that fill a length: as much filler as fits around what is asked."""

from collections.abc import Callable
from dataclasses import dataclass

from tape_exp.settings.errors import ConfigError

ATTEMPTS = 100  # to draw a question that fits a row


def longest_fit(encode: Callable[[int], list[int]], room: int, size: int) -> tuple[list[int], int]:
    """Find the longest prompt of at most ``room`` tokens and its size, from the guess ``size``.

    A larger size must have at least as many tokens, and one of size 1 must fit.

    >>> prompt, size = longest_fit(lambda size: [0] * (10 + 3 * size), 30, 1)
    >>> len(prompt), size
    (28, 6)
    """
    ids = encode(size)
    for _ in range(4):  # by the ratio of the sizes, while they are far apart
        step = (room - len(ids)) * size // len(ids)
        if abs(step) <= 2 or size + step < 1:
            break
        size += step
        ids = encode(size)
    while len(ids) > room:
        size -= 1
        ids = encode(size)
    longer = encode(size + 1)
    while len(longer) <= room:
        ids = longer
        size += 1
        longer = encode(size + 1)
    return ids, size


@dataclass(frozen=True)
class TrainingQuestion:
    """A question for training, whose prompt may have any size."""

    write: Callable[[int], list[int]]  # the prompt with so many sentences of filler
    answer: list[int]
    draw_length: Callable[[int, int], int]  # of the prompt in tokens, from least to most


def training_row(
    draw: Callable[[int], TrainingQuestion], length: int
) -> tuple[list[int], list[int]]:
    """Draw a prompt and its answer, ``length`` + 1 tokens at most. One that does not fit is drawn
    again, as the next attempt.

    Raises:
        ConfigError: none of many attempts fits.
    """
    for attempt in range(ATTEMPTS):
        question = draw(attempt)
        least = len(question.write(1))
        most = length + 1 - len(question.answer)
        if least <= most:
            room = question.draw_length(least, most)
            guess = 1 + (room - least) // 6  # a sentence has about six tokens
            prompt, _ = longest_fit(question.write, room, guess)
            return prompt, question.answer
    raise ConfigError(
        f"task.train_length={length} is too short for a question of the task, which has {least} "
        f"tokens and {len(question.answer)} of its answer."
    )
