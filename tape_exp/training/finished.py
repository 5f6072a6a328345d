"""The model of a finished run, as it was trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape_exp.data import tokenizers
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.models.decoder import Decoder
from tape_exp.runs import weights
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import path_of
from tape_exp.settings.schema import check_sections
from tape_exp.tasks.base import Task
from tape_exp.tasks.text import TextTask
from tape_exp.training.assembly import make_adaptation, make_decoder, make_task


@dataclass(frozen=True)
class Finished:
    """A run that is read from its folder.

    Args:
        folder: of the run.
        cfg: its config, whose ``checkpoint`` is the run itself.
        task: its task; nothing is prepared, and a tokenizer is the run's.
        decoder: with its weights, in evaluation mode; adapters are not merged.
        tokenizer: None where the task has none.
        model: the section ``model`` of the config, as an adaptation changed it.
    """

    folder: Path
    cfg: DictConfig
    task: Task
    decoder: Decoder
    tokenizer: Tokenizer | None
    model: dict[str, Any]


def read_run(folder: str | Path) -> Finished:
    """The model of the run in a folder, with the weights of its last checkpoint.

    Raises:
        ConfigError: it is not the folder of a run, or what it holds is damaged.
    """
    run = path_of("run", folder).resolve()
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is not the folder of a run: it has no config.yaml.")
    cfg = weights.stored_config(run / "config.yaml")
    try:
        check_sections(cfg)
        cfg.checkpoint, cfg.runs = str(run), str(Path(run, "../../../..").resolve())
        return _read(cfg, run)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{run}/config.yaml is not a whole config ({reason}).") from error


def _read(cfg: DictConfig, run: Path) -> Finished:
    task, tokenizer = make_task(cfg), None
    if (run / "tokenizer.json").is_file():
        tokenizer = tokenizers.load(
            run / "tokenizer.json", cfg.task.tokenizer.bos, cfg.task.tokenizer.eos
        )
        task.size_vocabulary(max(task.arch.vocab, tokenizer.vocab))
        if isinstance(task, TextTask):
            task.tokenizer = tokenizer
    adaptation = make_adaptation(cfg, task)
    decoder = make_decoder(cfg, task, adaptation).eval()
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if adaptation is not None:
        model = adaptation.positions(model)
    return Finished(run, cfg, task, decoder, tokenizer, model)
