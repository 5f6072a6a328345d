"""What a guess from nearby tokens reaches on rows of the battery: the baseline of a bench."""

from dataclasses import dataclass

import numpy as np

from tape_exp.data.batch import IGNORE
from tape_exp.machine.seeding import seed_for
from tape_exp.tasks.sequences import SequenceTask
from tape_exp.tasks.slices import padded


@dataclass(frozen=True)
class ScoredRows:
    """Rows of a task, and which of their tokens are scored."""

    inputs: np.ndarray  # (B, T)
    following: np.ndarray  # (B, T), the token after each input
    scored: np.ndarray  # (B, T), whether that token is scored

    @property
    def answers(self) -> np.ndarray:
        """Return the scored tokens (N,), row by row."""
        return self.following[self.scored]

    @property
    def row_numbers(self) -> np.ndarray:
        """Return the number of the row of each scored token (N,)."""
        return self.scored.nonzero()[0]


def guess(task: SequenceTask, length: int, count: int = 1000) -> float:
    """Return the percentage of a row's scored tokens that the best of five guesses gets right, as a
    mean over rows, as scores are.

    Four are n-gram models: they take the scored token that most often follows the last 0, 1, 2 or 3
    tokens in other rows. One takes the scored token before it in its row.
    """
    train = rows_of(task, length, count, "seen")
    test = rows_of(task, length, count, "asked")
    guesses = [previous_answers(test, most_frequent(train.answers))]
    for n in range(4):
        guesses.append(n_gram_guesses(n, train, test, len(task.vocabulary)))
    return 100 * max(share_right(test, guesses_N) for guesses_N in guesses)


def rows_of(task: SequenceTask, length: int, count: int, part: str) -> ScoredRows:
    """Make rows of a length; those of one part are other ones than those of another."""
    key = seed_for(0, "guess", part)
    rows = list(task.rows(key, 0, count, [length], task.draws(length)))
    batch = padded(rows, task.width(length))
    labels = batch["labels"].numpy()
    return ScoredRows(batch["inputs"].numpy(), labels, labels != IGNORE)


def n_gram_guesses(n: int, train: ScoredRows, test: ScoredRows, symbols: int) -> np.ndarray:
    """Guess each scored token of ``test`` as that which most often follows the n tokens before it
    in ``train``; where these are not there, as the most frequent one.

    >>> scored = np.array([[True, True, True]])
    >>> train = ScoredRows(np.array([[1, 2, 1]]), np.array([[2, 1, 2]]), scored)
    >>> test = ScoredRows(np.array([[2, 1, 3]]), np.array([[1, 3, 3]]), scored)
    >>> n_gram_guesses(1, train, test, 4)  # 1 follows 2, 2 follows 1, and 3 was not seen
    array([1, 2, 2])
    """
    contexts, followers = usual_followers(contexts_of(train, n, symbols), train.answers, symbols)
    test_contexts_N = contexts_of(test, n, symbols)
    place_N = np.searchsorted(contexts, test_contexts_N).clip(max=len(contexts) - 1)
    is_known_N = contexts[place_N] == test_contexts_N
    return np.where(is_known_N, followers[place_N], most_frequent(train.answers))


def contexts_of(rows: ScoredRows, n: int, symbols: int) -> np.ndarray:
    """Write the n tokens before each scored one as a number of n digits in base ``symbols``, the
    nearest token first.

    >>> scored = np.array([[False, True, True]])
    >>> rows = ScoredRows(np.array([[1, 2, 3]]), np.array([[2, 3, 4]]), scored)
    >>> contexts_of(rows, 2, 10)
    array([21, 32])
    """
    length = rows.inputs.shape[1]
    contexts_BT = np.zeros_like(rows.inputs, dtype=np.int64)
    for back in range(n):
        tokens = rows.inputs[:, : length - back]
        contexts_BT[:, back:] = contexts_BT[:, back:] * symbols + tokens
    return contexts_BT[rows.scored]


def usual_followers(
    contexts_N: np.ndarray, following_N: np.ndarray, symbols: int
) -> tuple[np.ndarray, np.ndarray]:
    """List the contexts, sorted, and for each the token that most often follows it; of equally
    frequent ones the last of the vocabulary.

    >>> usual_followers(np.array([7, 9, 7, 7]), np.array([1, 3, 2, 2]), 10)
    (array([7, 9]), array([2, 3]))
    """
    pairs, times = np.unique(contexts_N * symbols + following_N, return_counts=True)
    pairs = pairs[np.lexsort((times, pairs // symbols))]  # by context, then by frequency
    contexts = pairs // symbols
    is_last_of_context = np.append(contexts[1:] != contexts[:-1], True)
    return contexts[is_last_of_context], pairs[is_last_of_context] % symbols


def previous_answers(rows: ScoredRows, first: int) -> np.ndarray:
    """Guess each scored token as the one before it in its row, and the first of a row as ``first``.

    >>> scored = np.array([[True, True], [False, True]])
    >>> previous_answers(ScoredRows(scored, np.array([[5, 6], [7, 8]]), scored), 1)
    array([1, 5, 1])
    """
    is_first_N = np.append(True, rows.row_numbers[1:] != rows.row_numbers[:-1])
    previous_N = np.append(first, rows.answers[:-1])
    return np.where(is_first_N, first, previous_N)


def most_frequent(tokens: np.ndarray) -> int:
    """Return the most frequent token."""
    return int(np.bincount(tokens).argmax())


def share_right(rows: ScoredRows, guesses_N: np.ndarray) -> float:
    """Return the share of a row's scored tokens that guesses have right, as a mean over rows."""
    right_B = np.bincount(rows.row_numbers, guesses_N == rows.answers)
    scored_B = np.bincount(rows.row_numbers)
    return float((right_B / scored_B).mean())
