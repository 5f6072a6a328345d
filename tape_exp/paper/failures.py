"""Why sums beyond the trained digits fail in the ladder, and what TAPE's update does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from tape_exp.paper.artifacts import Artifact, Record, Records, load
from tape_exp.paper.records import run_of
from tape_exp.paper.tables import ORIGIN, Column, Row, Table, origin
from tape_exp.paper.trend import Trend
from tape_exp.paper.values import mean_of
from tape_exp.settings.errors import ConfigError

BEYOND, TRAINED = "beyond", "trained"
# As the task has them, which would import torch.
FAILED = ("wrong_digit", "eos_early", "eos_late")
WITHOUT = {"no_attention": "P = 0", "no_feed_forward": "W2 = 0", "no_update": "both 0"}


@dataclass(kw_only=True)
class Failures(Artifact):
    """A row for each rung, variant and model that has run.

    Args:
        of: the artifact whose runs these are.
    """

    of: str

    @property
    def source(self) -> Trend:
        """The artifact whose runs these are."""
        source = load(self.of)
        if not isinstance(source, Trend):
            raise ConfigError(f"conf/paper/{self.name}.yaml: of={self.of} is no ladder of scales.")
        return source

    def scales(self) -> tuple[str, ...]:
        """Those of the runs."""
        return self.source.scales()

    def configs(
        self, scale: str, seeds: Sequence[int], extra: Sequence[str] = ()
    ) -> Iterator[tuple[str, DictConfig]]:
        """The runs of the other artifact, which are run once for both."""
        return self.source.configs(scale, seeds, extra)

    def wanted(self, scale: str) -> list[str]:
        """What they measure."""
        return self.source.wanted(scale)

    def kept(self, scale: str) -> set[str]:
        """Their keys."""
        return self.source.kept(scale)

    def collect(self, scale: str, records: Sequence[Record]) -> Records:
        """Their records."""
        return self.source.collect(scale, records)

    def command(self, scale: str) -> str:
        """The command that runs what is missing."""
        return self.source.command(scale)

    def notes(self, records: Records) -> str:
        """How the records differ."""
        return self.source.differences(records)

    def cells(self, scale: str, records: Records) -> Table:
        """What became of the longer sums, and of all sums without parts of the update."""
        rows: list[Row] = []
        shown: set[tuple[str, int, str]] = set()
        for label, runs in records.items():
            names = {run_of(run) for run in runs}
            if names <= shown:
                continue  # of a variant that differs for other models only
            shown |= names
            model, rung = label.split(maxsplit=1)
            row: Row = {"rung": rung, "model": model}
            row["solved"] = mean_of(runs, "ood/exact_match")
            row["forced"] = mean_of(runs, "forced/ood/exact_match")
            for kind in FAILED:
                row[kind] = mean_of(runs, f"failures/ood/{kind}")
            for part in ("intact", *WITHOUT):
                row[part, BEYOND] = mean_of(runs, f"causal/{part}/ood/exact_match")
            for part in WITHOUT:
                row[part, TRAINED] = mean_of(runs, f"causal/{part}/id/exact_match")
            rows.append(row | origin(runs, scale))
        head = [
            Column("rung"),
            Column("model"),
            Column("solved", unit="%"),
            Column("forced", "length forced", "%"),
            *(Column(kind, kind.replace("eos", "EOS").replace("_", " "), "%") for kind in FAILED),
            Column(("intact", BEYOND), "intact, some sums", "%"),
            *(Column((part, BEYOND), told, "%") for part, told in WITHOUT.items()),
            *(Column((part, TRAINED), f"{told}, trained", "%") for part, told in WITHOUT.items()),
        ]
        return Table([*head, *ORIGIN], rows, label="model", part="rung")

    def caption(self, scale: str, records: Records) -> str:
        """What the columns measure, and what a model without a part of it can say."""
        return (
            f"{self.title}. All in percent, of sums with an operand longer than the trained ones, "
            "but for the columns called trained. Solved: exact match. Length forced: exact match "
            "where an answer may not end early and is ended for the model. The first mistake of "
            "the failed sums, as shares of these: a wrong digit, or an end that is too early or "
            "too late. The other columns are of models that update their positions, on fewer sums: "
            "as they are, without what attention adds to the positional state (P = 0), without the "
            "position's feed-forward (W2 = 0), and with neither, which leaves the rotations that "
            "the state begins with. TAPE (Householder) has no P; P = 0 takes the product of its "
            "reflections from it. A model that does worse so has come to rely on the part; that "
            "it could not have learned to do without it does not follow."
        )
