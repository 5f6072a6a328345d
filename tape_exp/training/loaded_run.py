"""A finished run as the library loads it: its model as it was trained, its task and its record."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.trace import Trace, trace
from tape_exp.runs.checkpoint_files import file_name, last_checkpoint, saved_checkpoints
from tape_exp.runs.checkpoint_info import folder_of_runs, read_checkpoint, stored_config
from tape_exp.runs.llama_base import apply_llama_config
from tape_exp.runs.record import REQUIRED
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings import files
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.tasks.text import TextTask
from tape_exp.training.from_config import make_decoder, make_task

# Keys of a task that say what rows it trains on.
OF_TRAINING = r"\+*task\.(train_\w+|hold_out|skip_to)="


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A finished run.

    A text is a string as rows of the task begin (``"21+9="`` of addition, which has its
    least-significant digits first), or the ids of its tokens.

    Args:
        folder: with its checkpoints and its log.
        config: of the run.
        checkpoint: the file of the weights, or what was evaluated; None: untrained weights.
        model: the trained decoder, in evaluation mode, on the CPU; ``model.to("cuda")`` moves it.
            Adapters are not merged.
        section: the config's ``model``, as an adaptation changed it.
        task: what it was trained on; no data are prepared.
        tokenizer: None where the task has none.
        record: what it measured with these weights.
    """

    folder: Path
    config: dict[str, Any]
    checkpoint: Path | None
    model: Decoder
    section: dict[str, Any]
    task: Task
    tokenizer: Tokenizer | None
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"LoadedRun({self.record.get('run', self.folder)})"

    def generate(
        self,
        text: str | Sequence[int],
        new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> str:
        """Write on after a text, up to EOS or ``new_tokens`` tokens.

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
        ids = [self._ids(text)]
        ends = self.task.stop_tokens
        (written,) = generate(self.model, ids, new_tokens, ends, temperature, generator, sampler)
        return self.task.decode(written)

    def attention(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """Return the attention of every layer, counted from 1: (H, T, T); rows sum to 1."""
        return {layer: traced.attention[0] for layer, traced in self._trace(text).items()}

    def positions(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """Return E Eᵀ of every layer, counted from 1: (H, T, T), what positions contribute to the
        logit of a query and a key that agree (:class:`~tape_exp.models.trace.Trace`).

        Raises:
            ConfigError: the encoding has no state that turns queries and keys, as a bias has none.
        """
        products = {}
        for layer, traced in self._trace(text).items():
            if traced.products_by_head is not None:
                products[layer] = traced.products_by_head[0]
        if not products:
            raise ConfigError(f"model={self.config['model']['name']} has no position state.")
        return products

    def symbols(self, text: str | Sequence[int]) -> list[str]:
        """Decode each token of a text by itself; of a task whose rows are no text, write its id."""
        return [self.task.decode([number]) for number in self._ids(text)]

    def on(self, *overrides: str) -> tuple[Task, dict[str, Any]]:
        """Make the task of the run's config with overrides, and return it with this config; no data
        are prepared.

        Raises:
            ConfigError: an override is of the model, of its training or of where it runs, or
            says of the run's own task what it was trained on.
        """
        for word in overrides:
            if not re.match(r"\+*(task(?!\.arch|\.optim)|scale\.text|cache)\b", word):
                raise ConfigError(
                    f"{word} cannot change in an evaluation; overrides may set task= "
                    "and its keys, but those of task.arch and task.optim, scale.text and cache."
                )
        named = [word.removeprefix("task=") for word in overrides if word.startswith("task=")]
        is_other_task = any(name != self.config["task"]["name"] for name in named)
        for word in overrides:
            if not is_other_task and re.match(OF_TRAINING, word):
                raise ConfigError(
                    f"{word} says what the model was trained on, which an evaluation cannot "
                    "change; leave it out, or train another run with it."
                )
        kept_keys = ("scale", "seed", "task.arch" if is_other_task else "task")
        kept = []
        for word in self.config.get("overrides") or self.record.get("words", []):
            of_task = not is_other_task and "@task" in word.partition("=")[0]  # text@task.text=pg19
            if of_task or word.lstrip("+~").startswith(kept_keys):
                kept.append(word)
        if not is_other_task:  # the task is among those that are kept
            overrides = tuple(word for word in overrides if not word.startswith("task="))
        cfg = compose_config([*kept, "model=rope", *overrides])
        if self.checkpoint is not None:
            cfg = apply_llama_config(cfg, self.checkpoint)
        task = make_task(cfg, self.checkpoint)
        section: Any = OmegaConf.to_container(cfg.task, resolve=True)
        return task, self.record["config"] | {"task": section}

    def _trace(self, text: str | Sequence[int]) -> dict[int, Trace]:
        """Record what every layer computes of a text."""
        tokens = torch.tensor([self._ids(text)], device=self.model.head.weight.device)
        return trace(self.model, tokens, sampler=RowSampler(0, "trace"))

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        """Return the tokens of a text; refuse what the model cannot read."""
        ids = self.task.encode(text) if isinstance(text, str) else list(map(int, text))
        vocabulary = self.task.arch.vocab
        reach = self.model.reach
        if not ids or len(ids) > (reach or len(ids)):
            raise ConfigError(f"a text has 1 to {reach or 'any number of'} tokens, not {len(ids)}.")
        for number in ids:
            if not 0 <= number < vocabulary:
                raise ConfigError(f"{number} is no token: they are from 0 to {vocabulary - 1}.")
        return ids


def load(folder: str | Path, finished: bool = True) -> LoadedRun:
    """Load a run from its folder, with the weights of its last checkpoint.

    Args:
        finished: refuse a run without a record of these weights; else ``record`` is left empty.

    Raises:
        ConfigError: it is not the folder of a finished run, or what it holds is damaged.
    """
    run = Path(folder).expanduser().resolve()
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is not the folder of a run: it has no config.yaml.")
    cfg = stored_config(run / "config.yaml")
    cfg.runs = folder_of_runs(run, cfg)
    if (run / "DONE").is_file() and not saved_checkpoints(run / "checkpoints"):
        checkpoint = starting_checkpoint(cfg)  # of a run that trained nothing
    else:
        checkpoint = last_checkpoint(run)
        cfg.checkpoint = str(run)
    record = record_of(run, checkpoint) if finished else {}
    task = make_task(cfg, checkpoint)
    tokenizer = None
    if isinstance(task, TextTask) and (run / "tokenizer.json").is_file():
        tokenizer = task.tokenization.load(run / "tokenizer.json")
        task.adopt(tokenizer)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    model = make_decoder(cfg, task).eval()
    section = config["model"]
    section = model.adaptation.positions(section) if model.adaptation else section
    return LoadedRun(run, config, checkpoint, model, section, task, tokenizer, record)


def record_of(run: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Read what a run measured with the weights of a checkpoint. Raises :class:`ConfigError` where
    it is not finished, or its record is damaged or of other weights, as of a run begun again.
    """
    path = run / "record.json"
    if not (run / "DONE").is_file() or not path.is_file():
        raise ConfigError(f"{run} is not finished.")
    record = files.read(path)
    if not (isinstance(record, dict) and record.keys() >= REQUIRED):
        raise ConfigError(f"{path} is not a record; restore or remove it.")
    if checkpoint is None or run not in checkpoint.parents:  # that it did not write
        return record
    measured = (record.get("config_hash"), file_name(record.get("steps", 0)))
    if measured != (read_checkpoint(checkpoint)["config_hash"], checkpoint.name):
        raise ConfigError(f"{path} is of other weights than {checkpoint.name}.")
    return record
