"""The package as a library: ``import tape_exp as te``.

Everything here takes and gives plain objects of Python, torch and pandas. Errors of the user are
:class:`~tape_exp.settings.errors.ConfigError`, a ``ValueError`` with one sentence.
"""

import math
import reprlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
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
from tape_exp.paper.records import checked, known_records, read_records
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json
from tape_exp.settings.plugins import changed, use_packages
from tape_exp.settings.redaction import redact_tree
from tape_exp.settings.schema import check
from tape_exp.tasks.base import Task
from tape_exp.training.assembly import check_parts, make_adaptation, make_ready, make_task
from tape_exp.training.finished import read_run
from tape_exp.training.run import run

if TYPE_CHECKING:
    import pandas

MOST = 1_000_000  # tokens that one call writes: for more, no one waits
COLDEST = 1e-6  # above 0: logits over less leave the range of fp32


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
        ConfigError: there is no such config, or nothing can be made of it.
    """
    _check_words(overrides)
    for name in ("model", "task", "scale"):
        if given := [word for word in overrides if word.startswith(f"{name}=")]:
            value = given[0].partition("=")[2]
            raise ConfigError(f"{given[0]} is no override here; give it as {name}={value!r}.")
    cfg = compose_config([f"model={model}", f"task={task}", f"scale={scale}", *overrides])
    check(cfg)
    check_parts(cfg)
    made = make_task(cfg)
    return make_ready(cfg, made, make_adaptation(cfg, made)), made


def train(*overrides: str) -> dict[str, Any]:
    """Train and evaluate what ``tape-exp train <overrides>`` would, and return the record.

    A run that is finished already is not repeated; one that was interrupted goes on.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
    """
    _check_words(overrides)
    return run(compose_config(overrides))


def load(folder: str | Path, plugins: Sequence[str] = ()) -> "Loaded":
    """A finished run, from its folder.

    Args:
        plugins: packages that brought its encoding or its task, where they are not installed.

    Raises:
        ConfigError: it is not the folder of a finished run, or what it holds is damaged.
    """
    _check_path("folder", folder)
    listed = isinstance(plugins, list | tuple) and all(isinstance(name, str) for name in plugins)
    if not listed:
        raise ConfigError(
            f"plugins={reprlib.repr(plugins)} must be a list of packages, as in ['my_pe']."
        )
    use_packages(plugins)
    found = read_run(folder)
    path = found.folder / "record.json"
    if not path.is_file():
        raise ConfigError(
            f"{found.folder} is not finished: it has no record.json. The command that finishes it "
            "is in its manifest.json."
        )
    record = checked(read_json(path), path)
    if wrong := found.unfit(record):
        raise ConfigError(f"{wrong}.")
    if told := changed(record.get("plugins"), record["config"]):
        warnings.warn(f"{found.folder}: {told}", stacklevel=2)
    config = redact_tree(OmegaConf.to_container(found.cfg, resolve=True))
    return Loaded(found.decoder, found.task, found.tokenizer, config, record)


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
        new_tokens = _whole("new_tokens", new_tokens, 1, MOST)
        seed = _whole("seed", seed, 0, 2**63 - 1)
        usable = isinstance(temperature, Real) and (
            temperature == 0 or COLDEST <= temperature < math.inf
        )
        if not usable:  # as NaN is not
            raise ConfigError(f"temperature={temperature} must be 0, or at least {COLDEST:g}.")
        generator = torch.Generator().manual_seed(seed)
        sampler = RowSampler(seed, "generation")
        (written,) = generate(
            self.model,
            [self._ids(text)],
            new_tokens,
            self.task.eos,
            temperature,
            generator,
            sampler,
        )
        return self.task.decode(written)

    def attention(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """The probabilities of every layer, counted from 1: (H, T, T); rows sum to 1."""
        return {layer: found.attention[0] for layer, found in self._trace(text).items()}

    def positions(self, text: str | Sequence[int]) -> dict[int, Tensor]:
        """E Eᵀ of every layer, counted from 1: (H, T, T), what positions contribute to the logit of
        a query and a key that agree (:class:`~tape_exp.models.trace.Trace`).

        Raises:
            ConfigError: the encoding has no state that turns queries and keys, as a bias has none.
        """
        found = {layer: one.products_by_head for layer, one in self._trace(text).items()}
        products = {layer: one[0] for layer, one in found.items() if one is not None}
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
        ids = self.task.encode(text) if isinstance(text, str) else _numbers(text)
        vocabulary = self.task.arch.vocab
        if not ids or not all(0 <= number < vocabulary for number in ids):
            raise ConfigError(f"a text has at least one token, each from 0 to {vocabulary - 1}.")
        if self.model.reach is not None and len(ids) > self.model.reach:
            raise ConfigError(
                f"the text has {len(ids)} tokens, and the model {self.model.reach} positions; "
                "shorten it."
            )
        return ids


def _check_words(overrides: Sequence[str]) -> None:
    for word in overrides:
        if not isinstance(word, str):
            raise ConfigError(
                f"overrides: {reprlib.repr(word)} is no string; give each word of the command line "
                'as a string of its own, as in "model=rope", "seed=1".'
            )


def _check_path(name: str, given: str | Path) -> None:
    if not isinstance(given, str | Path) or "\0" in str(given):
        raise ConfigError(f"{name}={reprlib.repr(given)} must be a path.")


def _whole(name: str, given: int, low: int, high: int) -> int:
    """A whole number, of Python or of another library, that an argument may be."""
    number = index(given) if hasattr(given, "__index__") else low - 1
    if not low <= number <= high:
        raise ConfigError(f"{name}={given} must be a whole number from {low} to {high:,}.")
    return number


def _numbers(text: Sequence[int]) -> list[int]:
    try:
        return [index(number) for number in text]
    except TypeError as error:
        raise ConfigError(
            f"text={reprlib.repr(text)} is neither a string nor the ids of its tokens, which are "
            "whole numbers."
        ) from error


def records(folder: str | Path | None = None) -> "pandas.DataFrame":
    """Every record as a row: what was run, and its metrics, a column each.

    Args:
        folder: of records; None: ``results/records`` of the clone, or outside a clone every
            finished run in ``runs/`` and ``results/records`` below the working directory.

    Raises:
        ConfigError: there is no such folder.
    """
    import pandas

    if folder is not None:
        _check_path("folder", folder)
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"{folder} is no folder of records; results/records of a clone is one.")

    rows = []
    for record in read_records(Path(folder)) if folder is not None else known_records():
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
