"""What a guess from nearby tokens reaches on rows of the battery."""

import numpy as np

from tape_exp.data.batch import IGNORE
from tape_exp.machine.seeding import seed_for
from tape_exp.tasks.sequences import SequenceTask
from tape_exp.tasks.slices import padded

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens (B, T), next tokens (B, T), and which of these are scored (B, T)."""


def guess(task: SequenceTask, length: int, count: int = 1000) -> float:
    """What looking nearby is worth: the percentage of a row's scored tokens that the best of five
    guesses gets right. Four take the scored token that most often follows the last 0, 1, 2 or 3
    tokens in other rows, one the scored token before it in its row. It is a mean over rows, as
    scores are.
    """
    seen, asked = (_rows(task, length, count, part) for part in ("seen", "asked"))
    _, following, scored = asked
    right = following[scored]
    usual = int(np.bincount(seen[1][seen[2]]).argmax())
    guesses = [_following(near, seen, asked, len(task.vocabulary), usual) for near in range(4)]
    rows = scored.nonzero()[0]
    again = np.where(np.r_[-1, rows[:-1]] == rows, np.r_[usual, right[:-1]], usual)
    tokens_of = np.bincount(rows)
    shares = [np.bincount(rows, guess == right) / tokens_of for guess in [*guesses, again]]
    return 100 * max(float(share.mean()) for share in shares)


def _rows(task: SequenceTask, length: int, count: int, part: str) -> Rows:
    key = seed_for(0, "guess", part)
    rows = list(task.rows(key, 0, count, [length], task.draws(length)))
    batch = padded(rows, task.width(length))
    inputs = batch["inputs"].numpy()
    labels = batch["labels"].numpy()
    return inputs, labels, labels != IGNORE


def _following(near: int, seen: Rows, asked: Rows, symbols: int, usual: int) -> np.ndarray:
    """For each scored token of ``asked``, that which most often follows the ``near`` tokens before
    it in ``seen``, and ``usual`` where they are not there.
    """
    before = []
    for tokens, _, scored in (seen, asked):
        code = np.zeros(tokens.shape, dtype=np.int64)
        for back in range(near):
            code[:, back:] = code[:, back:] * symbols + tokens[:, : tokens.shape[1] - back]
        before.append(code[scored])
    pairs, times = np.unique(before[0] * symbols + seen[1][seen[2]], return_counts=True)
    best = np.lexsort((times, pairs // symbols))
    contexts, ends = np.unique(pairs[best][::-1] // symbols, return_index=True)
    following = pairs[best][::-1][ends] % symbols
    place = np.searchsorted(contexts, before[1]).clip(max=len(contexts) - 1)
    return np.where(contexts[place] == before[1], following[place], usual)
