"""Pre-training of a language model (section 4.2), with its perplexity on test sets at the end."""

import json
import math
from typing import Any

import numpy as np
import torch

from tape_exp.data.batch import Batch
from tape_exp.data.text import Split, Text
from tape_exp.machine.files import short_hash
from tape_exp.machine.seeding import seed_for
from tape_exp.models.head import TokenNll
from tape_exp.models.peft import without_autocast
from tape_exp.results.evaluation import Evaluation
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Count, Optim
from tape_exp.tasks.base import Model, Progress
from tape_exp.tasks.diagnostics.interventions import INTERVENTIONS, interventions
from tape_exp.tasks.diagnostics.positional_state import (
    factor_metrics,
    factor_names,
    updates_positions,
)
from tape_exp.tasks.loading import epoch_samples
from tape_exp.tasks.perplexity import Windows, perplexity, perplexity_names
from tape_exp.tasks.stability import shift_error
from tape_exp.tasks.text import TextTask

SHIFT = 3  # positions, of the metric shift/attention
DIAGNOSED = 8  # blocks whose positional state is looked at


class Pretrain(TextTask):
    """Next-token prediction on blocks of packed documents, a BOS before each; all tokens count.

    The corpus is cut into blocks of T tokens. Epoch e shows each once, in an order that is a
    function of (seed, e): all models see the same blocks in the same order.

    Metrics: ``val/loss`` and ``val/perplexity`` during training; of each test set those of
    :func:`~tape_exp.tasks.perplexity.perplexity`; ``shift/attention``, in percent, by how much
    attention changes when position ids begin at 3 (:func:`~tape_exp.tasks.stability.shift_error`);
    of TAPE ``state/…`` and ``causal/<intervention>/perplexity`` of the validation blocks
    (:mod:`~tape_exp.tasks.diagnostics.interventions`).

    Args:
        train_length: T.
        validation_rows: blocks of the validation split that are scored during training.
        tests: further corpora by name, whose ``test_split`` is scored at the end in ``windows``.
        validation: another corpus whose validation split is scored during training; null:
            ``text``'s own.
        init_from: like ``checkpoint=``: the run, or the Llama, that it begins from.
        skip_to: rows are cut in two pieces, whose positions are drawn so that they reach up to here
            (:func:`skipping_positions`); null: positions count tokens.
        train_tokens: the first so many tokens of the corpus are used; null: all of a local or
            built-in one, and of a hub's as many as training reads.
    """

    reports_perplexity = True

    def __init__(
        self,
        optim: Optim,
        windows: Windows,
        tests: dict[str, Text],
        test_split: Split = "test",
        validation_rows: Count = 64,
        train_tokens: Count | None = None,
        validation: Text | None = None,
        init_from: str | None = None,
        skip_to: Count | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if skip_to is not None and skip_to < self.train_length:
            raise ConfigError(
                f"task.skip_to={skip_to} is below task.train_length={self.train_length}: positions "
                "reach as far as a row is long without it."
            )
        self.skip_to = skip_to
        self.set_max_length(max(*windows.lengths, skip_to or 1))
        self.optim = optim
        self.windows = windows
        self.tests = tests
        self.test_split = test_split
        self.validation = validation or self.text
        self.validation_rows = validation_rows
        self.train_tokens = train_tokens
        if train_tokens is None and self.text.source == "hub":
            self.train_tokens = optim.max_steps * optim.batch * self.train_length + 1

    def texts_by_key(self) -> dict[str, Text]:
        """Return the corpus and those that are scored, during training and at its end."""
        texts = {"task.text": self.text}
        if self.validation is not self.text:
            texts["task.validation"] = self.validation
        for name, text in self.tests.items():
            texts[f"task.tests.{name}"] = text
        return texts

    def check_texts(self) -> None:
        """Refuse files that are read both to train and to test."""
        for key, text in self.texts_by_key().items():
            if text is self.text and text is not self.validation:
                continue  # of it only the training split is read
            split = self.test_split if key.startswith("task.tests.") else "validation"
            name = self.text.shared_file("train", text, split)
            if name is not None:
                raise ConfigError(
                    f"{key}: its split {split} reads {name}, which training reads too; set "
                    f"{key}.path to a folder with train* and {split}*, or {key}.files.{split} to "
                    "patterns of files that training does not read."
                )

    def prepare(self) -> None:
        """Tokenise the corpus, its validation blocks and the test sets."""
        T = self.train_length
        self.corpus = self.tokens(self.text, "train", self.train_tokens)
        validation = self.tokens(self.validation, "validation", self.validation_rows * T + 1)
        for text, split, tokens in (
            (self.text, "train", self.corpus),
            (self.validation, "validation", validation),
        ):
            if len(tokens) <= T:
                raise ConfigError(
                    f"text {text.name}: its split {split} has {len(tokens)} tokens, not a block; "
                    f"set task.train_length={max(len(tokens) // 2, 1)}, or give it more text."
                )
        self.blocks = (len(self.corpus) - 1) // T
        rows = min((len(validation) - 1) // T, self.validation_rows)
        per_batch = max(self.windows.tokens_per_batch // T, 1)
        batches = np.split(np.arange(rows) * T, range(per_batch, rows, per_batch))
        self._validation = [_as_batch(validation.blocks(starts, T + 1)) for starts in batches]
        self.scored = {}
        for name, text in self.tests.items():
            self.scored[name] = self.tokens(text, self.test_split, self.windows.needed)

    def fingerprint(self) -> str:
        """Hash the first samples, the validation blocks and the corpus."""
        return short_hash([super().fingerprint(), self.corpus.fingerprint()])

    def test_fingerprint(self) -> str:
        """Hash the test sets."""
        sets = {name: tokens.fingerprint() for name, tokens in self.scored.items()}
        return short_hash([json.dumps(sets, sort_keys=True)])

    def train_batch(self, first: int, count: int) -> Batch:
        """Read blocks first … first + count - 1 of the stream."""
        return self.placed(self.text_batch(first, count), self.seed, first)

    def text_batch(self, first: int, count: int) -> Batch:
        """Read blocks of the corpus: so many from number ``first`` of the stream on."""
        blocks = epoch_samples(self.seed, first, count, self.blocks)
        return _as_batch(self.corpus.blocks(blocks * self.train_length, self.train_length + 1))

    def placed(self, batch: Batch, seed: int, first: int) -> Batch:
        """Add the positions of a batch's rows, where these do not count tokens."""
        if self.skip_to is None:
            return batch
        rows = range(first, first + len(batch["inputs"]))
        places = skipping_positions(seed, rows, self.train_length, self.skip_to)
        return batch | {"positions": places}

    def validation_batches(self) -> list[Batch]:
        """Return the validation blocks."""
        return self.all_placed(self._validation)

    def all_placed(self, batches: list[Batch]) -> list[Batch]:
        """Add positions to batches of validation, which are the same for every seed."""
        placed = []
        first = 0
        for batch in batches:
            placed.append(self.placed(batch, 0, first))
            first += len(batch["inputs"])
        return placed

    def metric_names(self) -> list[str]:
        """Name the numbers of the test sets, and those that only TAPE has."""
        names = []
        for text in self.tests.values():
            names += perplexity_names(text.label, self.windows)
        names.append("shift/attention")
        names += [f"causal/{intervention}/perplexity" for intervention in INTERVENTIONS]
        return names + factor_names(self.arch)

    def evaluate(self, model: Model, progress: Progress, limit: int | None = None) -> Evaluation:
        """Measure perplexity on each test set at each length, and the error of shifted
        positions.
        """
        metrics: dict[str, float] = {}
        for name, tokens in self.scored.items():
            label = self.tests[name].label
            read = (tokens, self.tokenizer.decode, self.windows)
            metrics |= perplexity(model, *read, label, progress, limit)
        reach = model.decoder.reach
        longest = 512 if reach is None else min(512, reach - SHIFT)  # a table ends
        rows = torch.cat([x["inputs"] for x in self._validation[:2]])[:2, :longest]
        with without_autocast(model.decoder):
            error = shift_error(model.decoder, rows.to(model.device), SHIFT)
        metrics["shift/attention"] = 100 * error
        if updates_positions(model.decoder):
            metrics |= self.position_metrics(model, limit)
        return Evaluation(metrics)

    def position_metrics(self, model: Model, limit: int | None = None) -> dict[str, float]:
        """Measure the state by layer, and the perplexity of the validation blocks with parts of the
        state or of its update left out; means over tokens are those of these blocks.
        """
        batches = self._validation[:limit]
        rows = []
        for batch in batches:
            rows.append((batch["inputs"], torch.ones_like(batch["inputs"], dtype=torch.bool)))
        tokens, counts = rows[0]
        metrics = factor_metrics(model, tokens[:DIAGNOSED], counts[:DIAGNOSED])
        for name, changed in interventions(model, model.decoder, rows).items():
            nll = []
            with changed():
                for number, batch in enumerate(batches):
                    sampler = self.test_sampler(number)
                    losses = model(
                        batch["inputs"], output=TokenNll(batch["labels"]), sampler=sampler
                    )
                    nll.append(losses.flatten())
            mean = float(torch.cat(nll).double().mean())
            metrics[f"causal/{name}/perplexity"] = math.exp(min(mean, 700))
        return metrics


def skipping_positions(seed: int, rows: range, length: int, span: int) -> torch.Tensor:
    """Draw positions (rows, length) of PoSE with two pieces (Zhu et al., "PoSE: Efficient Context
    Window Extension of LLMs via Positional Skip-wise Training", ICLR 2024): a model that is trained
    on rows of ``length`` tokens sees the distances of ``span``.

    The first piece has a uniform length from 1 to ⌈length / 2⌉ and begins at 0; the second is moved
    by a uniform number of places from 0 to span - length. Row k is a function of (seed, k). Unlike
    in the public code, whose second piece comes from a later place of the document, the two are one
    text.
    """
    places = torch.arange(length).repeat(len(rows), 1)
    for place, row in zip(places, rows, strict=True):
        draw = np.random.default_rng(seed_for(seed, "skipping positions", row))
        first = int(draw.integers(1, (length + 1) // 2, endpoint=True))
        place[first:] += int(draw.integers(0, span - length, endpoint=True))
    return places


def _as_batch(rows: np.ndarray) -> Batch:
    """Make inputs and next-token labels of rows of T + 1 tokens."""
    tokens = torch.from_numpy(rows)
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}
