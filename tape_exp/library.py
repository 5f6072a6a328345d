"""The package as a library: ``import tape_exp as te``.

Everything here takes and gives plain objects of Python, torch and pandas. Errors of the user are
:class:`~tape_exp.settings.errors.ConfigError`, a ``ValueError`` with one sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.trace import Trace, trace
from tape_exp.paper.records import known_records, read_records, records_of_runs
from tape_exp.runs.starting_weights import apply_llama_config
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.training.assembly import make_adaptation, make_decoder, make_task
from tape_exp.training.loaded import read_run
from tape_exp.training.run import run

if TYPE_CHECKING:
    import pandas


def build(
    model: str = "tape", *overrides: str, task: str = "arithmetic", scale: str = "smoke"
) -> tuple[Decoder, Task]:
    """A model as a run would begin to train it, and its task, whose data are ready.

    ``decoder(tokens)`` maps (B, T) ids to logits (B, T, V); ``task.train_batch(first, count)``
    gives rows of the training stream, as ``inputs`` and ``labels`` (B, T).

    Args:
        model, task, scale: what the command line names in ``model=``, ``task=`` and ``scale=``.
        overrides: any other words of the command line, as ``"seed=1"`` or
            ``"task.arch.layers=2"``.

    Raises:
        ConfigError: there is no such config, or it cannot be built.
    """
    words = [f"model={model}", f"task={task}", f"scale={scale}", *overrides]
    cfg = apply_llama_config(compose_config(words))
    made = make_task(cfg)
    adaptation = make_adaptation(cfg, made)
    made.prepare_data()
    return make_decoder(cfg, made, adaptation), made


def train(*overrides: str) -> dict[str, Any]:
    """Train and evaluate what ``tape-exp train <overrides>`` would, and return the record.

    A run that is finished already is not repeated; one that was interrupted is resumed.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
    """
    return run(compose_config(overrides))


def load(folder: str | Path) -> "Loaded":
    """A finished run, from its folder.

    Raises:
        ConfigError: it is not the folder of a finished run, or what it holds is damaged.
    """
    loaded = read_run(folder)
    record = loaded.record()
    config: Any = OmegaConf.to_container(loaded.cfg, resolve=True)
    return Loaded(loaded.decoder, loaded.task, loaded.tokenizer, config, record)


@dataclass(frozen=True, repr=False)
class Loaded:
    """A finished run.

    A text is a string as rows of the task begin (``"21+9="`` of addition, which has its
    least-significant digits first), or the ids of its tokens.

    Args:
        model: the trained decoder, in evaluation mode, on the CPU; ``model.to("cuda")`` moves it.
        task: what it was trained on.
        tokenizer: None where the task has none.
        config: of the run.
        record: what it measured.
    """

    model: Decoder
    task: Task
    tokenizer: Tokenizer | None
    config: dict[str, Any]
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Loaded({self.record.get('run')})"

    def generate(
        self,
        text: str | Sequence[int],
        new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> str:
        """What the model writes after a text, up to EOS or ``new_tokens`` tokens.

        Args:
            temperature: 0 takes the most likely token; above, samples from softmax(logits /
                temperature).
            seed: of what is sampled, tokens and positions.

        Raises:
            ConfigError: one of them cannot be used; the sentence says which.
        """
        if not (temperature >= 0 and new_tokens >= 1):  # NaN fails too
            raise ConfigError(f"{temperature=} must be at least 0, and {new_tokens=} at least 1.")
        generator = torch.Generator().manual_seed(seed)
        sampler = RowSampler(seed, "generation")
        ids, ends = [self._ids(text)], self.task.stop_tokens
        (written,) = generate(self.model, ids, new_tokens, ends, temperature, generator, sampler)
        return self.task.decode(written)

    def attention(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """The probabilities of every layer, counted from 1: (H, T, T); rows sum to 1."""
        return {layer: one.attention[0] for layer, one in self._trace(text).items()}

    def positions(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """E Eᵀ of every layer, counted from 1: (H, T, T), what positions contribute to the logit of
        a query and a key that agree (:class:`~tape_exp.models.trace.Trace`).

        Raises:
            ConfigError: the encoding has no state that turns queries and keys, as a bias has none.
        """
        by_head = {layer: one.products_by_head for layer, one in self._trace(text).items()}
        products = {layer: one[0] for layer, one in by_head.items() if one is not None}
        if not products:
            raise ConfigError(
                f"model={self.config['model']['name']} has no position state; attention(text) "
                "shows where it looks."
            )
        return products

    def _trace(self, text: str | Sequence[int]) -> dict[int, Trace]:
        tokens = torch.tensor([self._ids(text)], device=self.model.head.weight.device)
        return trace(self.model, tokens, sampler=RowSampler(0, "trace"))

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        ids = self.task.encode(text) if isinstance(text, str) else list(map(int, text))
        vocabulary, reach = self.task.arch.vocab, self.model.reach or len(ids)
        if not (0 < len(ids) <= reach and all(0 <= number < vocabulary for number in ids)):
            raise ConfigError(
                f"a text has from 1 to {self.model.reach or 'any number of'} tokens, each from 0 "
                f"to {vocabulary - 1}; this one has {len(ids)}."
            )
        return ids


def records(folder: str | Path | None = None) -> "pandas.DataFrame":
    """Every record as a row: what was run, and its metrics, a column each.

    Args:
        folder: of records, or of runs; None: ``results/records`` of the clone (outside one, of the
            working directory) and every finished run in ``runs/``.

    Raises:
        ConfigError: there is no such folder, or no record.
    """
    import pandas

    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder of records or runs.")
    if folder is None:
        every = known_records()
    else:
        every = [*read_records(Path(folder)), *records_of_runs(Path(folder))]
    if not every:
        where = folder or "results/records and runs/"
        raise ConfigError(f"there is no record in {where}: a finished run leaves one.")
    rows = []
    for record in every:
        config = record["config"]
        row = {
            "run": record.get("run"),
            "model": config["model"]["name"],
            "task": config["task"]["name"],
            "scale": config["scale"],
            "peft": config.get("peft", {}).get("name"),
            "seed": record["seed"],
            "steps": record.get("steps"),
            "parameters": record.get("parameters"),
            "commit": record.get("git", {}).get("commit"),
            "started": record["started"],
        }
        rows.append(row | record["metrics"])
    return pandas.DataFrame(rows)
