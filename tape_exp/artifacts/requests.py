"""The runs that the words of a command name: ``fig_addition scale=smoke seed=0,1``, or a grid."""

from collections.abc import Sequence

from tape_exp.artifacts import runs
from tape_exp.artifacts.artifact import LADDER, Artifact, load, names
from tape_exp.experiments import grid
from tape_exp.experiments.bases import find_folders
from tape_exp.experiments.run_spec import RunSpec
from tape_exp.settings.errors import ConfigError


def specs_of_words(words: Sequence[str]) -> list[RunSpec]:
    """List the runs of overrides with commas, or of artifacts, as ``tape-exp paper run`` takes
    them; those that begin from others come later. Words for sbatch, ``slurm.mem=8G``, are left out.
    """
    words = grid.run_overrides(words)
    if not any(word.isidentifier() for word in words):
        return grid.specs_of_grid(words)
    specs = runs.specs_of_artifacts(*requested(words), recorded=True)
    find_folders(specs)
    return sorted(specs, key=lambda spec: spec.level)


def requested(words: Sequence[str]) -> tuple[list[Artifact], str, list[int], list[str]]:
    """Read which artifacts, scale, seeds and further overrides the words of ``run`` ask for."""
    scale, seeds, extra = grid.scale_and_seeds([word for word in words if "=" in word], [LADDER])
    for word in extra:
        if word.startswith(("task=", "model=", "peft=", "debug")):
            raise ConfigError(
                f"{word}: an artifact names its tasks and models itself, and shortened runs have "
                "no record. `tape-exp compare` makes a table of any models on any task."
            )
    chosen = [word for word in words if "=" not in word]
    if not chosen:
        raise ConfigError("name an artifact to run, or all: `tape-exp paper list` lists them.")
    artifacts = []
    for artifact in map(load, names() if chosen == ["all"] else chosen):
        if artifact.rows and scale in artifact.scales:
            artifacts.append(artifact)
        elif chosen != ["all"]:
            raise ConfigError(no_runs(artifact, scale))
    return artifacts, scale, seeds, extra


def no_runs(artifact: Artifact, scale: str) -> str:
    """Say why an artifact has no runs at a scale, and what to give instead, as a sentence."""
    if not artifact.rows:
        return f"{artifact.name} has no runs of models: `{artifact.command}` measures it."
    scales = " or ".join(f"scale={known}" for known in artifact.scales)
    return f"{artifact.name} has no runs at scale={scale}: give {scales}."
