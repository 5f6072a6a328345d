"""The package as a library: ``import tape_exp as te``.

Everything here takes and gives plain objects of Python, torch and pandas. Errors of the user are
:class:`~tape_exp.settings.errors.ConfigError`, a ``ValueError`` with one sentence.
"""

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.processes import gather
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.trace import Trace, trace
from tape_exp.paper.records import Record, known_records, read_records, records_of_runs
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.evaluation import is_result
from tape_exp.runs.starting_weights import apply_llama_config
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.tasks.base import Task
from tape_exp.training.assembly import make_adaptation, make_decoder, make_task
from tape_exp.training.callbacks import track
from tape_exp.training.loaded import read_run
from tape_exp.training.module import OnDevice
from tape_exp.training.run import run

if TYPE_CHECKING:
    import pandas
    from PIL.Image import Image

DRAWN = ({"kind": "grids"}, {"kind": "lengths"})  # figures of a comparison


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


def train(*overrides: str, quiet: bool = False) -> "Loaded":
    """Train and evaluate what ``tape-exp train <overrides>`` would, and return the run.

    A run that is finished already is not repeated; one that was interrupted is resumed.

    Args:
        quiet: print nothing; the run's log.txt has all lines.

    Raises:
        ConfigError: the config cannot run; nothing was begun.
    """
    cfg = compose_config(overrides)
    with ExitStack() as hidden:
        if quiet:
            hidden.enter_context(redirect_stdout(io.StringIO()))
            hidden.enter_context(redirect_stderr(io.StringIO()))
        run(cfg)
        gather(None)  # so that every process of the run finds it whole
        return load(RunDirectory(apply_llama_config(cfg)).path)


def load(folder: str | Path) -> "Loaded":
    """A finished run, from its folder.

    Raises:
        ConfigError: it is not the folder of a finished run, or what it holds is damaged.
    """
    loaded = read_run(folder)
    record = loaded.record()
    config: Any = OmegaConf.to_container(loaded.cfg, resolve=True)
    parts = (loaded.decoder, loaded.task, loaded.tokenizer, config, record)
    return Loaded(loaded.folder, *parts)


def evaluate(model: "Loaded | Decoder", *overrides: str, task: Task | None = None) -> Record:
    """What a model scores, in fp32 on the device it is on: a record with its metrics and samples.

    Args:
        model: a run, which stays as it was trained; or a decoder of any loop, with its ``task``.
        overrides: for a run, what differs from its own config, as ``"task.test_digits=8"``, or
            another task, as ``"task=passkey"``.
        task: as :func:`build` gives it.

    Raises:
        ConfigError: there is no such task, or it has more tokens than the model.
    """
    decoder, facts = (model.model, model.record) if isinstance(model, Loaded) else (model, {})
    if task is None and isinstance(model, Loaded):
        task, config = model.on(*overrides)
        facts = {key: facts[key] for key in ("run", "seed", "started", "git")} | {"config": config}
    assert task is not None, "a decoder needs task="
    if task.arch.vocab > decoder.arch.vocab:
        raise ConfigError(
            f"the task has {task.arch.vocab} tokens, and the model {decoder.arch.vocab}."
        )
    training, device = decoder.training, decoder.head.weight.device
    on_device = OnDevice(decoder.eval(), device, 16 if device.type == "cuda" else 1)
    with torch.no_grad():
        found = task.evaluate(on_device, partial(track, "auto"))
    decoder.train(training)
    return {**facts, "metrics": found.metrics, **found.for_record()}


def compare(*runs: "Loaded | Record") -> "tuple[pandas.DataFrame, Image | None]":
    """Runs or records side by side: their results as a table, a row each, and a figure of them by
    length, a line or a panel for each model, the mean over its seeds, if there is one to draw.
    """
    from tape_exp.paper.artifact import Artifact
    from tape_exp.paper.figures import figures
    from tape_exp.paper.view import View

    records = [one.record if isinstance(one, Loaded) else one for one in runs]
    rows: dict[str, list[Record]] = {}
    for record in records:
        name = record["config"]["model"]["name"]
        again = record["seed"] in [one["seed"] for one in rows.get(name, ())]
        rows.setdefault(record["run"] if again else name, []).append(record)
    config, table = records[0]["config"], _table(records)
    dimensions: dict[str, Any] = {"rows": {"model": [*rows]}, "figures": [*DRAWN]}
    artifact = Artifact(name="", title=config["task"]["name"], **dimensions)
    view = View(artifact, config["scale"], records)
    view.runs = lambda row, column=None: rows[row.labels["model"]]  # type: ignore[method-assign]
    drawn = next((draw for _, draw in figures(view)), None)
    return table[[*filter(is_result, table)]], drawn and _picture(drawn)


def plot(run: "Loaded | Record", text: str | Sequence[int] = "") -> "Image":
    """A picture, which a notebook shows and ``save`` writes: a run's results by length, or with a
    text where each layer looks in it, the mean over heads.

    Raises:
        ConfigError: no result of the run is by length.
    """
    from tape_exp.drawing.plots import grids, run_matrices
    from tape_exp.paper.figures import mean_grid

    if isinstance(run, Loaded) and text:
        seen = {f"attention@{layer}": p.mean(0).numpy() for layer, p in run.attention(text).items()}
        return _picture(partial(run_matrices, seen))
    record = run.record if isinstance(run, Loaded) else run
    if "axes" in record:
        return _picture(partial(grids, {record.get("run", ""): mean_grid([record])}))
    if (picture := compare(record)[1]) is None:
        raise ConfigError("no result of this run is by length; plot(run, text) shows attention.")
    return picture


def _picture(draw: Callable[[Path], Path]) -> "Image":
    from PIL import Image

    with TemporaryDirectory() as folder, Image.open(draw(Path(folder, "figure.png"))) as image:
        return image.copy()


@dataclass(frozen=True, repr=False)
class Loaded:
    """A finished run.

    A text is a string as rows of the task begin (``"21+9="`` of addition, which has its
    least-significant digits first), or the ids of its tokens.

    Args:
        folder: with its checkpoints and its log.
        model: the trained decoder, in evaluation mode, on the CPU; ``model.to("cuda")`` moves it.
        task: what it was trained on.
        tokenizer: None where the task has none.
        config: of the run.
        record: what it measured.
    """

    folder: Path
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

    def on(self, *overrides: str) -> tuple[Task, dict[str, Any]]:
        """The task of the run's config with overrides, whose data are ready, and this config."""
        other = any(word.startswith("task=") for word in overrides)
        kept = ("scale", "seed", "task.arch" if other else "task")
        words = [word for word in self.record["words"] if word.startswith(kept)]
        cfg = compose_config([*words, "model=rope", *overrides])
        cfg.checkpoint = str(self.folder)
        cfg = apply_llama_config(cfg)
        task = make_task(cfg)
        task.prepare_data()
        section: Any = OmegaConf.to_container(cfg.task, resolve=True)
        return task, self.record["config"] | {"task": section}

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
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder of records or runs.")
    if folder is None:
        every = known_records()
    else:
        every = [*read_records(Path(folder)), *records_of_runs(Path(folder))]
    if not every:
        where = folder or "results/records and runs/"
        raise ConfigError(f"there is no record in {where}: a finished run leaves one.")
    return _table(every)


def _table(records: Sequence[Record]) -> "pandas.DataFrame":
    import pandas

    rows = []
    for record in records:
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
