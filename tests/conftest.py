"""What the tests share: one thread per process, small sizes, runs in a temporary folder."""

import copy
import dataclasses
import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["WANDB_MODE"] = "offline"
os.environ.pop("WANDB_API_KEY", None)
os.environ["NETRC"] = os.devnull  # whoever runs the tests may have a login of W&B

import pytest
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from tape_exp.models.conformance import ARCH
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.places import Places
from tape_exp.models.positions.abacus import Abacus
from tape_exp.models.positions.base import construct, for_heads
from tape_exp.models.scores import Scores
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings import choices, plugins
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import locate
from tape_exp.settings.folders import CONF
from tape_exp.settings.schema import Arch
from tape_exp.tasks.base import Task
from tape_exp.training.from_config import make_task
from tape_exp.training.run import run
from tests.processes import sketch

torch.set_num_threads(1)
# A suite that was started in the background ignores Ctrl-C, and one under nohup that the terminal
# closes; so would the runs that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Those that only change a key of another, or repeat a pattern, are only composed and built.
NUMBERS = {"rope_theta", "rope_linear", "rope_ntk", "alibi_randpe", "fire_randpe", "layers"}
NUMBERS |= {"tape_i1", "tape_i2", "tape_i8", "tape_i16", "tape_mlp", "tape_scale", "tape_constant"}
EVERY_MODEL = sorted({path.stem for path in (CONF / "model").glob("*.yaml")})
MODELS = [name for name in EVERY_MODEL if name not in NUMBERS]
QUICK = {"alibi", "fire", "path", "randpe", "rope", "t5", "tape"}  # the models of `make test-fast`
DIGITS = ARCH.digits  # as in addition: what an encoding that knows digits must be told
TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
SMALL = [
    "task.arch.layers=2",
    "task.arch.width=32",
    "task.arch.heads=2",
    "task.arch.ffn=32",
    "task.optim.batch=16",
]


def make_position(name: str, arch: Arch, *overrides: str):
    """The first layer's positional encoding from its YAML."""
    node = model_of(name, *overrides)
    first = node.get("layers", [node])[0]
    return construct(kinds_of(first)[0].position, arch, 0, name)


def make_decoder(
    name: str, arch: Arch, *overrides: str, seed: int = 0, backend: str = "auto"
) -> Decoder:
    """A decoder with the positional encoding of a YAML."""
    return Decoder(arch, kinds_of(model_of(name, *overrides)), seed, backend)


def bias_of(position, q, k, x, positions=None) -> torch.Tensor:
    """What an encoding adds to the logits of all pairs, (B or 1, H, T, S); at 0 … S - 1, or at the
    positions of each row.
    """
    places = torch.arange(k.shape[1], dtype=q.dtype)[None] if positions is None else positions
    found = position.bias(q, for_heads(k, q.shape[2]), x, None, Places.at(places))
    biases = tuple(found) if isinstance(found, list) else (found,)
    scores = Scores(q.transpose(1, 2), k.transpose(1, 2), biases, positions)
    return scores.added()


def model_of(name: str, *overrides: str) -> dict[str, Any]:
    """The section ``model`` of a YAML, or of a pattern as the command line has it."""
    return copy.deepcopy(_composed_model(name, overrides))


@cache
def _composed_model(name: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Composed once, which takes longer than most tests that need it."""
    cfg = compose_config([f"model={name}", *overrides])
    return OmegaConf.to_container(cfg.model, resolve=True)


def knows_digits(cfg: DictConfig) -> bool:
    """Whether the encoding of any layer of a config is told which tokens are digits."""
    model = OmegaConf.to_container(cfg.model, resolve=True)
    layers = model.get("layers", [model])
    return any(issubclass(locate(layer["_target_"], "model"), Abacus) for layer in layers)


def least_record(directory: RunDirectory) -> dict:
    """What a record needs to be a whole one, and no more."""
    cfg = directory.cfg
    return {
        "run": directory.name,
        "config_hash": directory.hash,
        "config": {
            "precision": "32-true",
            "scale": cfg.scale.name,
            **{group: {"name": cfg[group].name} for group in ("model", "task")},
        },
        "seed": cfg.seed,
        "started": "2026-01-01T00:00:00+00:00",
        "git": {"commit": None, "dirty": None},
        "metrics": {"val/loss": 1.5},
    }


def finish(directory: RunDirectory) -> None:
    """Let a run be done, with a record of its own."""
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.finish(least_record(directory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what a test over all encodings does with another than the quick ones."""
    for item in items:
        case = getattr(item, "callspec", None)
        values = {str(value) for value in case.params.values()} if case else set()
        if values & {*EVERY_MODEL} and not values & QUICK:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def no_folder_of_an_earlier_run():
    """A run tells W&B its folder by the environment, which the processes of later tests inherit."""
    yield
    os.environ.pop("WANDB_DATA_DIR", None)


@pytest.fixture
def composed_anew():
    """What YAMLs compose is forgotten before and after a test that changes what they are."""
    kept = (plugins.packages, choices.compose_choices)
    for cached in kept:
        cached.cache_clear()
    yield
    for cached in kept:
        cached.cache_clear()


@pytest.fixture
def arch() -> Arch:
    """A small model: head dimension 8, sequences of up to 48 tokens, 24 of them seen in training;
    the vocabulary of addition.
    """
    return dataclasses.replace(ARCH, kv_heads=None)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    """Local text in three parts."""
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    return folder


def write_text(folder: Path) -> None:
    """Three parts, 60 documents each of words that follow a rule: a model can learn something."""
    for number, split in enumerate(("train", "validation", "test")):
        documents = [
            " ".join(f"w{(i * k + number) % 17}" for k in range(1, 40)) for i in range(1, 61)
        ]
        rows = ({"text": document, "meta": {"pile_set_name": "Github"}} for document in documents)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def on_text(folder: Path, task: str = "c4", llama: bool = False) -> list[str]:
    """Overrides that put a language task on that text: byte tokens, 32 at once; a Llama has its own
    tokenizer and sizes.
    """
    words = [
        "scale.text=local",
        f"task.text.path={folder}",
        "task.train_length=32",
        f"cache={folder}/cache",
    ]
    sizes = ["task.tokenizer.kind=byte", *(w for w in SMALL if "batch" not in w)]
    words += [] if llama else sizes
    node = compose_config([f"task={task}"]).task
    if "windows" in node:
        words += ["task.windows.lengths=[16,32]", "task.windows.tokens=500"]
        words += ["task.windows.stride=8"] if node.windows.stride else []
    if "depth_bins" in node:
        lengths = "[160,192]" if task == "passkey" else "[256,320]"
        words += [f"task.lengths={lengths}", "task.trials=3"]
        words += ["task.train_length=256"] if "optim" in node else []
    if "tests" in node:
        words += [
            "task.validation_rows=4",
            *(f"task.tests.{name}.path={folder}" for name in node.tests),
        ]
    if "answer_weight" in node:
        words += ["task.rows.passkey=0", "task.rows.fact=0"]
    if "validation" in node:
        words.append(f"task.validation.path={folder}")
    if node.get("init_from"):
        words.append("task.init_from=null")
    return words


def text_config(folder: Path, task: str, *overrides: str, model: str = "rope") -> DictConfig:
    """A language task on that text."""
    words = [f"model={model}", f"task={task}", "trainer=cpu", *on_text(folder, task)]
    return compose_config([*words, *overrides])


def prepared(folder: Path, task: str, *overrides: str) -> Task:
    """The task of :func:`text_config`, its data prepared."""
    made = make_task(text_config(folder, task, *overrides))
    made.prepare_data()
    return made


def silent(items: Any, description: str) -> Any:
    """No progress is shown."""
    return items


@pytest.fixture
def sketched(monkeypatch):
    """Pictures have one pixel: drawing them takes half of a small run's time."""
    monkeypatch.setattr(Figure, "savefig", sketch)


@pytest.fixture
def tiny_run(tmp_path: Path, sketched):
    """Run a small arithmetic config in a temporary folder; returns (config, record)."""

    def call(*overrides: str, steps: int = 4):
        fixed = ["trainer=cpu", "trainer.log_every=1", f"runs={tmp_path}/runs", *SMALL]
        fixed += [
            "task.train_digits=2",
            "task.test_digits=3",
            "task.samples_per_cell=4",
            f"task.optim.max_steps={steps}",
        ]
        logger = [] if any(o.startswith("logger") for o in overrides) else ["logger=none"]
        cfg = compose_config([*fixed, *logger, *overrides])
        return cfg, run(cfg)

    return call


@pytest.fixture
def text_run(tmp_path, text_folder, sketched):
    """Run a language task on a little text; returns (config, record)."""

    def call(*overrides, task="c4", steps=30, llama=False):
        words = [f"task={task}", *on_text(text_folder, task, llama), "trainer=cpu", "logger=none"]
        words += [f"runs={tmp_path}/runs", "trainer.log_every=1"]
        if task == "c4":
            words += [f"task.optim.max_steps={steps}", "task.optim.batch=16"]
        cfg = compose_config([*words, *overrides])
        return cfg, run(cfg)

    return call
