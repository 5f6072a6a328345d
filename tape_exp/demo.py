"""``make demo``: RoPE and TAPE learn addition at smoke scale, shown as heatmaps and one PNG."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.drawing.plots import grids
from tape_exp.drawing.terminal import print_heatmaps
from tape_exp.paper.figures import mean_grid
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.naming import display_name
from tape_exp.training.run import run


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is not yet trained; show both heatmaps and write demo.png beside the runs."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.demo", description="RoPE and TAPE on addition, with heatmaps."
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as train.py takes them")
    overrides = parser.parse_args(arguments).overrides
    panels = {}
    for model in ("rope", "tape"):
        fixed = [f"model={model}", "task=arithmetic", "scale=smoke", "logger=none"]
        cfg = compose_config([*fixed, *overrides])
        if record := run(cfg):  # further processes, and debug=plan, have none
            title = f"{display_name(model)}  {record['metrics']['test/exact_match']:.1f} %"
            panels[title] = mean_grid([record])
    if panels:
        print(f"\nTrained on sums of up to {cfg.task.train_digits} digits:\n")
        print_heatmaps(panels)
        path = Path(cfg.runs).expanduser() / "demo.png"
        print(f"\nAs a picture: {grids(panels, path, 'Addition at smoke scale')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
