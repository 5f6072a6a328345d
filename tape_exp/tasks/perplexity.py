"""Perplexity of a trained model on a corpus (section 4.2 and the ablations of the TAPE paper)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tape_exp.config import Arch, ConfigError, Optim
from tape_exp.data.sources import Text
from tape_exp.data.tokenizers import Tokenization
from tape_exp.tasks.base import Batch, Evaluation
from tape_exp.tasks.text import TextTask, Windows, perplexity


class Perplexity(TextTask):
    """Nothing is trained: ``checkpoint=`` names the run whose model is scored, as it was initialised without one.

    Metrics: see :func:`~tape_exp.tasks.text.perplexity`.

    Args:
        split: of ``text``, that is scored.
        windows: see :class:`~tape_exp.tasks.text.Windows`.
    """

    trains = False

    def __init__(
        self,
        arch: Arch,
        seed: int,
        text: Text,
        tokenizer: Tokenization,
        train_length: int,
        windows: Windows,
        split: str = "test",
    ) -> None:
        optim = Optim(batch=1, max_steps=1, lr=1e-4)
        super().__init__(arch, optim, seed, text, tokenizer, train_length, max(windows.lengths))
        self.windows, self.split = windows, split

    def prepare(self) -> None:
        """Tokenise the split."""
        self.scored = self.tokens(self.text, self.split, self.windows.needed)

    def train_batch(self, first: int, count: int) -> Batch:
        """Nothing is trained."""
        raise ConfigError(f"task={self.text.name} trains nothing.")

    def validation_batches(self) -> list[Batch]:
        """None."""
        return []

    def fingerprint(self) -> str:
        """A hash of the scored tokens."""
        return self.scored.fingerprint()

    def evaluate(self, model: Callable[..., Tensor], progress: Callable[..., Any], limit: int | None = None) -> Evaluation:
        """Perplexity at every length."""
        metrics = perplexity(model, self.scored, self.tokenizer.decode, self.windows, self.text.name, progress, limit)
        return Evaluation(metrics)
