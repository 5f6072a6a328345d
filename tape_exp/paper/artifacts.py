"""An artifact is a table or a figure of the paper: the runs behind it, the records they left, and
its drawing.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from tape_exp.paper.claims import Contest, Measured, Verdict, decide
from tape_exp.runs import weights
from tape_exp.runs.identity import identity_of, without_folders
from tape_exp.settings import folders
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError, did_you_mean, one_of
from tape_exp.settings.folders import CONF

RESULTS = folders.ROOT / "results"
SCALES = ("smoke", "rung5", "rung8", "rung12", "rung20", "small", "paper")
Record = dict[str, Any]


@dataclass
class Artifact(ABC):
    """One table or figure. ``conf/paper/<name>.yaml`` gives the fields; a subclass draws it.

    Args:
        name: file name of its YAML and of what it writes.
        title: one line, as in the paper's caption.
        task: task of the runs.
        models: models of the runs, in the order of the rows or panels.
        overrides: further keys of every run.
        claim: what the paper says of it, in one sentence that :meth:`contests` tests whole; empty:
            it has no such thing.
        favourites: the models or methods that the claim calls better.
        rivals: than which; none: than all the others.
        trainer: for the paper's scale.
        needs: what a scale takes that a CPU does not have; a scale that is not named here, smoke
            apart, is not part of it.
    """

    name: str
    title: str
    task: str
    models: list[str]
    overrides: list[str] = field(default_factory=list)
    claim: str = ""
    favourites: list[str] = field(default_factory=lambda: ["tape"])
    rivals: list[str] = field(default_factory=list)
    trainer: str = "gpu"
    needs: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("small", "paper"), "a GPU")
    )

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """(model, config) of every run, seeds in the outer loop: a figure is complete as early as
        it can be.
        """
        for seed in seeds:
            for model in self.models:
                choice = [f"model={model}", f"task={self.task}", f"scale={scale}", f"seed={seed}"]
                yield model, compose_config([*choice, *self.words(scale), *extra])

    def scales(self) -> tuple[str, ...]:
        """The scales that it is of: smoke, and those that ``needs`` names."""
        return ("smoke", *self.needs)

    def words(self, scale: str) -> list[str]:
        """Overrides of every run at a scale, and of the runs that it begins from."""
        return self.overrides

    def collect(self, scale: str, records: Sequence[Record]) -> dict[str, list[Record]]:
        """The committed records of each model at a scale, by seed; models without any are left
        out.
        """
        found: dict[str, list[Record]] = {}
        at_scale = [r for r in records if r["config"].get("scale") == scale]
        if not at_scale:
            return found
        for model, cfg in self.configs(scale, [0], self._with(scale)):
            identity = identity_of(cfg)
            mine = [r for r in at_scale if matches(r, identity)]
            newest = {r["seed"]: r for r in sorted(mine, key=lambda r: r["started"])}
            if newest:
                found[model] = [newest[seed] for seed in sorted(newest)]
        return found

    def gaps(self, found: Mapping[str, dict[str, list[Record]]]) -> list[str]:
        """What did not run yet and leaves cells empty, a phrase a scale, with what it needs.

        Args:
            found: scale -> what :meth:`collect` found.
        """
        told = []
        for scale in SCALES:
            needs = f"scale {scale} (needs {self.needs.get(scale, 'nothing but time')})"
            if not found.get(scale):
                told += [needs] if scale in self.scales() else []
            elif lacking := [
                label
                for label, _ in self.configs(scale, [0], self._with(scale))
                if label not in found[scale]
            ]:
                told.append(f"{', '.join(lacking)} at {needs}")
        return told

    def paper(self) -> dict[str, Any]:
        """What the paper reports, from results/paper.yaml; nothing for what is ours alone."""
        return _numbers(RESULTS / "paper.yaml").get(self.name, {})

    def verdict(self, scale: str, records: dict[str, list[Record]]) -> Verdict:
        """Whether the claim holds at a scale, in the records that :meth:`collect` found; no verdict
        without a claim.
        """
        if not self.claim:
            return Verdict()
        return decide(self.contests(scale, records))

    def contests(self, scale: str, records: dict[str, list[Record]]) -> list[Contest]:
        """The comparisons that the claim makes; none: it is not tested by this artifact's
        records.
        """
        return []

    def versus(self, where: str, measured: dict[str, Measured], **options: Any) -> list[Contest]:
        """The statement that each favourite is better than every rival, as
        :class:`~tape_exp.paper.claims.Contest` takes it.
        """
        return [
            Contest(where, favourite, self.others(), measured, **options)
            for favourite in self.favourites
        ]

    def others(self) -> list[str]:
        """What the favourites are compared with."""
        return self.rivals or [name for name in self.models if name not in self.favourites]

    def command(self, scale: str) -> str:
        """What runs everything that is missing at a scale."""
        return " ".join(
            [
                "python -m tape_exp.paper run",
                self.name,
                f"scale={scale} seeds=0,1,2",
                *self._with(scale),
            ]
        )

    def _with(self, scale: str) -> list[str]:
        """The trainer of a scale, as a word of the command line."""
        return [f"trainer={self.trainer}"] if scale == "paper" else []

    @abstractmethod
    def render(self, scale: str, records: dict[str, list[Record]], into: Path) -> list[Path]:
        """Write the tables and figures of a scale below ``into`` and return their paths."""


@lru_cache(maxsize=1)
def _numbers(path: Path) -> dict[str, dict[str, Any]]:
    """Read once: every table and every claim asks for it."""
    return cast(dict[str, dict[str, Any]], OmegaConf.to_container(OmegaConf.load(path)))


def load(name: str) -> Artifact:
    """The artifact of that name. Raises :class:`ConfigError` with the nearest known name."""
    if name not in names():
        raise ConfigError(
            f"artifact {name}{did_you_mean(name, names())} Known: {', '.join(names())}."
        )
    node = OmegaConf.load(CONF / "paper" / f"{name}.yaml")
    return build(node, f"conf/paper/{name}.yaml")


def requested(words: Sequence[str]) -> tuple[list[Artifact], str, list[int], list[str]]:
    """Artifacts, scale, seeds and further overrides of ``<artifact …|all> [scale=…] [seeds=0,1,2]
    [key=value …]``.

    Raises:
        ConfigError: there is no artifact among the words, or one of them is wrong.
    """
    chosen = [w for w in words if "=" not in w]
    scale, seeds, extra = settings_of([w for w in words if "=" in w])
    if wrong := [word for word in extra if word.startswith(("seed=", "task=", "model=", "peft="))]:
        raise ConfigError(
            f"{wrong[0]}: an artifact names its tasks and models itself, and seeds are given as "
            "seeds=0,1,2. "
            "`python -m tape_exp.paper compare` makes a table of any models on any task."
        )
    if not chosen:
        raise ConfigError(f"name an artifact to run, or all. Known: {', '.join(names())}.")
    artifacts = [load(name) for name in (names() if chosen == ["all"] else chosen)]
    for artifact in artifacts if chosen != ["all"] else []:
        if next(artifact.configs(scale, seeds), None) is None:
            raise ConfigError(
                f"{artifact.name} has no runs at scale={scale}; scale={artifact.scales()[0]} has."
            )
    return artifacts, scale, seeds, extra


def settings_of(words: Sequence[str]) -> tuple[str, list[int], list[str]]:
    """``scale=`` (smoke by default) and ``seeds=`` (0) among the words, and the words that are
    left.

    Raises:
        ConfigError: the scale is not known, or the seeds are no integers.
    """
    settings = dict(w.split("=", 1) for w in words if w.startswith(("scale=", "seeds=")))
    extra = [w for w in words if not w.startswith(("scale=", "seeds="))]
    scale = settings.get("scale", "smoke")
    one_of("scale", scale, SCALES)
    try:
        seeds = [int(s) for s in settings.get("seeds", "0").split(",")]
    except ValueError as error:
        raise ConfigError(
            f"seeds={settings['seeds']} must be integers separated by commas, as in seeds=0,1,2."
        ) from error
    return scale, seeds, extra


def names() -> list[str]:
    """Every artifact that has a YAML."""
    return sorted(path.stem for path in (CONF / "paper").glob("*.yaml"))


def read_records(folder: Path | None = None) -> list[Record]:
    """Every committed record. Raises :class:`ConfigError` naming a file that is not one."""
    records = []
    for path in sorted((folder or folders.RECORDS).glob("*.json")):
        try:
            record = json.loads(path.read_text())
            record["config"]["precision"], record["seed"], record["metrics"], record["started"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is not a record ({error!r}); restore or remove it."
            ) from error
        records.append(record)
    return records


def matches(record: Record, current: dict[str, Any]) -> bool:
    """Whether a record's config says the same as the current one, wherever both say something; the
    seed is free.

    A key that one of them lacks, since the code has grown, does not count; nor do sizes and
    positions that follow from a Llama, which the checkpoint names. A checkpoint that is a path must
    be the very one. A precision counts as the one that ``auto`` chose where the run took place.
    """
    if any(
        record["config"].get(key, {}).get("name") != current[key]["name"]
        for key in ("model", "task")
    ):
        return False  # at once: of hundreds of records few are of the same task
    begun_from = weights.title_of(current["checkpoint"]) if "begun_from" in record else None
    if begun_from is not None and begun_from != record["begun_from"]:
        return False
    recorded, current = record["config"], without_folders(current)
    if "debug" in recorded or recorded.get("checkpoint") != current["checkpoint"]:
        return False
    if current["precision"] not in (recorded["precision"], record.get("precision")):
        return False
    if "llama" in record:
        recorded = weights.without_adopted(recorded)
    return all(
        _agree(recorded[key], current[key])
        for key in ("model", "task", "peft", "scale")
        if key in recorded
    )


def _agree(recorded: Any, current: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(current, dict):
        return all(_agree(recorded[key], current[key]) for key in recorded.keys() & current.keys())
    return recorded == current
