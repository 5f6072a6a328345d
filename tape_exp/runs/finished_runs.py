"""The finished run that ``checkpoint=<task>`` names: of the same model, scale, seed, text and
``peft``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.checkpoint_info import reads_text, stored_config
from tape_exp.runs.identity import flat, variant
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.naming import literal


class NoRunError(ConfigError):
    """A task whose run is to be begun from has no finished one, or only others."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that is done: its folder, and the config that it wrote there."""

    folder: Path
    config: DictConfig

    def has_text_of(self, cfg: DictConfig) -> bool:
        """Say whether the run read the text that ``cfg`` reads, as any run does without text."""
        return not reads_text(self.config) or self.config.scale.text == cfg.scale.text

    def other_peft(self, cfg: DictConfig) -> dict[str, Any]:
        """Return the keys of ``peft`` that differ from those of ``cfg``, with the run's values. A
        run that adapted nothing is a base, which any method can adapt; keys that only one of the
        two has are of another version.
        """
        if self.config.peft.name == "none":
            return {}
        own = flat(OmegaConf.to_container(self.config.peft, resolve=True), "peft")
        wanted = flat(OmegaConf.to_container(cfg.peft, resolve=True), "peft")
        return {key: own[key] for key in own if key in wanted and own[key] != wanted[key]}


def finished_run(task: str, cfg: DictConfig, any_text: bool = False) -> Path:
    """Find the folder of the task's finished run from which a run with this config begins.

    It has the same model, ``peft``, scale, seed and text. Where a base model is adapted and no
    adapted run is there, it is the base's. Other settings, such as the number of steps, may differ.

    Args:
        any_text: take a run on other text where there is none on the same.

    Raises:
        NoRunError: there is none, or only one on other text or of another ``peft``.
        ConfigError: there are several.
    """
    models = [variant(cfg)]
    if cfg.peft.name != "none":
        models.append(cfg.peft.base)
    of_scale = Path(cfg.runs).expanduser() / task / cfg.scale.name
    on_other_text: list[FinishedRun] = []
    for model in models:
        runs = _finished_in(of_scale / model, cfg.seed)
        on_same_text = [run for run in runs if run.has_text_of(cfg)]
        if on_same_text:
            return _of_same_peft(task, on_same_text, cfg)
        on_other_text += runs
    if on_other_text and any_text:
        return _of_same_peft(task, on_other_text, cfg)
    if on_other_text:
        _refuse_other_text(task, on_other_text[0], cfg)
    searched = " or ".join(str(of_scale / model) for model in models)
    raise NoRunError(
        f"checkpoint={task} is no file, nor the folder of a run or a Llama, nor a task with a "
        f"finished run of seed {cfg.seed} in {searched}; train it."
    )


def _finished_in(folder: Path, seed: int) -> list[FinishedRun]:
    """List the finished runs of a seed in a folder, without those of ``debug=``."""
    runs = []
    for done in sorted(folder.glob(f"seed{seed}-*/DONE")):
        config = stored_config(done.with_name("config.yaml"))
        if config.debug.name == "none":
            runs.append(FinishedRun(done.parent, config))
    return runs


def _of_same_peft(task: str, runs: list[FinishedRun], cfg: DictConfig) -> Path:
    """Return the folder of the only run with the same ``peft``; refuse several, or another."""
    same = [run for run in runs if not run.other_peft(cfg)]
    if len(same) > 1:
        choices = ", ".join(f"checkpoint={run.folder}" for run in same)
        raise ConfigError(f"checkpoint={task}: there are {len(same)} finished runs, {choices}.")
    if same:
        return same[0].folder
    key, value = min(runs[0].other_peft(cfg).items())
    stored = f"{key}={literal(value)}"
    wanted = literal(OmegaConf.select(cfg, key))
    raise NoRunError(
        f"checkpoint={task}: its finished run {runs[0].folder} was trained with {stored}, and "
        f"{key} is {wanted} here; set {stored}, or train task={task} with {key}={wanted}."
    )


def _refuse_other_text(task: str, run: FinishedRun, cfg: DictConfig) -> None:
    """Raise :class:`NoRunError` instead of beginning from weights of other text."""
    raise NoRunError(
        f"checkpoint={task}: its finished run {run.folder} was trained with "
        f"scale.text={run.config.scale.text}, and scale.text is {cfg.scale.text} here; train "
        f"task={task} with scale.text={cfg.scale.text}, or set checkpoint={run.folder}."
    )
