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
from tape_exp.runs.checkpoints import file_name
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json
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

    def unfit(self, record: dict[str, Any]) -> str:
        """Why a record, {} where there is none, does not tell of these weights, in words; or ''.

        A run that has begun again keeps its old record until it ends, and any may be copied.
        """
        path, checkpoint = self.folder / "record.json", weights.find(self.cfg.checkpoint, self.cfg)
        if not (self.folder / "DONE").is_file():
            return f"{self.folder} is not finished"
        if not record:
            return f"{self.folder} has no record.json"
        if record.get("config_hash") != self._hash(checkpoint):
            return f"{path} is the record of another run, {record.get('run', 'without a name')}"
        if "steps" in record and checkpoint.name != file_name(record["steps"]):
            step = record["steps"]
            return f"{path} is of step {step}, and the last checkpoint is {checkpoint.name}"
        return ""

    def _hash(self, checkpoint: Path) -> Any:
        """The config's hash: the checkpoint is signed with it, and the folder is named by it."""
        signature = weights.signature_of(checkpoint)
        signed = read_json(signature) if signature.is_file() else None
        named = self.folder.name.rpartition("-")[2]
        return signed.get("config_hash", named) if isinstance(signed, dict) else named


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
