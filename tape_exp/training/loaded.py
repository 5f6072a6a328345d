"""The model of a finished run, as it was trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.models.decoder import Decoder
from tape_exp.runs.checkpoints import file_name
from tape_exp.runs.record import PARTS
from tape_exp.runs.starting_weights import find, read_checkpoint, stored_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json
from tape_exp.tasks.base import Task
from tape_exp.tasks.text import TextTask
from tape_exp.training.from_config import (
    make_adaptation,
    make_decoder,
    make_task,
    model_section,
)


@dataclass(frozen=True)
class LoadedRun:
    """A run that is read from its folder."""

    folder: Path
    cfg: DictConfig  # its ``checkpoint`` is the run itself
    checkpoint: Path  # the file of the weights
    task: Task  # nothing is prepared
    decoder: Decoder  # in evaluation mode; adapters are not merged
    tokenizer: Tokenizer | None
    model: dict[str, Any]  # the section of the config, as an adaptation changed it

    def record(self) -> dict[str, Any]:
        """What the run measured with these weights.

        Raises:
            ConfigError: the run is not finished, or its record is damaged or of other weights, as
                that of a run which has begun again.
        """
        path = self.folder / "record.json"
        if not (self.folder / "DONE").is_file() or not path.is_file():
            raise ConfigError(f"{self.folder} is not finished.")
        record = read_json(path)
        if not (isinstance(record, dict) and record.keys() >= PARTS):
            raise ConfigError(f"{path} is not a record; restore or remove it.")
        run_hash = read_checkpoint(self.checkpoint)["config_hash"]
        of_this = (record.get("config_hash"), file_name(record.get("steps", 0)))
        if of_this != (run_hash, self.checkpoint.name):
            raise ConfigError(f"{path} is of other weights than {self.checkpoint.name}.")
        return record


def read_run(folder: str | Path) -> LoadedRun:
    """The model of the run in a folder, with the weights of its last checkpoint.

    Raises:
        ConfigError: it is not the folder of a run, or what it holds is damaged.
    """
    run = Path(folder).expanduser().resolve()
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is not the folder of a run: it has no config.yaml.")
    cfg = stored_config(run / "config.yaml")
    cfg.checkpoint, cfg.runs = str(run), str(Path(run, "../../../..").resolve())
    task, tokenizer = make_task(cfg), None
    if isinstance(task, TextTask) and (run / "tokenizer.json").is_file():
        task.tokenizer = tokenizer = task.tokenization.load(run / "tokenizer.json")
        task.size_vocabulary(task.arch.vocab or tokenizer.vocab)
    adaptation = make_adaptation(cfg, task)
    decoder, model = make_decoder(cfg, task, adaptation).eval(), model_section(cfg, adaptation)
    return LoadedRun(run, cfg, find(str(run), cfg), task, decoder, tokenizer, model)
