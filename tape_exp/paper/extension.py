"""What the tables and figures of the extended models share: runs that differ in more than their encoding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omegaconf import DictConfig

from tape_exp.cli import compose_config
from tape_exp.paper.artifacts import Artifact


@dataclass
class Methods(Artifact):
    """An artifact whose rows are methods, each a list of choices; a subclass draws it.

    Args:
        methods: label -> overrides of its runs, ``lora: [model=rope, peft=lora, checkpoint=extend]``; ``{base}`` stands for
            what ``task=extend`` begins from at the scale.
        at: scale -> further overrides of every run, and of the runs that it begins from.
    """

    models: list[str] = field(init=False, default_factory=list)  # the labels: the order of the rows
    methods: dict[str, list[str]] = field(default_factory=dict)
    at: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = list(self.methods)

    def words(self, scale: str) -> list[str]:
        """Overrides of every run at a scale."""
        return [*self.overrides, *self.at.get(scale, [])]

    def configs(self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()) -> Iterator[tuple[str, DictConfig]]:
        """(method, config) of every run, seeds in the outer loop."""
        for seed in seeds:
            for method in self.methods:
                yield method, self.config(method, self.task, scale, seed, extra)

    def config(self, method: str, task: str, scale: str, seed: int, extra: Sequence[str]) -> DictConfig:
        """The config of one run."""
        base = compose_config(["task=extend", f"scale={scale}"]).task.init_from
        choice = [word.format(base=base) for word in self.methods[method]]
        return compose_config([*choice, f"task={task}", f"scale={scale}", f"seed={seed}", *self.words(scale), *extra])
