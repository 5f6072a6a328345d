"""``make demo``: RoPE and TAPE learn addition at smoke scale, shown as heatmaps and one PNG."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tape_exp.drawing import heatmap
from tape_exp.drawing.terminal import print_heatmaps
from tape_exp.paper.addition import panel
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.display import display_name
from tape_exp.training.run import run


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is not yet trained, then show both."""
    parser = Parser(
        prog="python -m tape_exp.demo",
        description="Train RoPE and TAPE on addition at smoke scale, and show both heatmaps.",
        epilog="Example: python -m tape_exp.demo task.train_digits=4 runs=/tmp/runs",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="overrides for both runs, as train.py takes them",
    )
    demo(parser.parse_args(arguments).overrides)
    return 0


def demo(overrides: list[str]) -> None:
    """Both runs, their grids in the terminal and as demo.png in the folder of the runs."""
    fixed = ["task=arithmetic", "scale=smoke", "logger=none"]
    panels = {}
    for model in ("rope", "tape"):
        cfg = compose_config([f"model={model}", *fixed, *overrides])
        # Further processes have no record, and debug=plan makes none.
        if record := run(cfg):
            panels[f"{display_name(model)}  {record['metrics']['test/exact_match']:.1f} %"] = panel(
                [record]
            )
    if not panels:
        return
    print(f"\nTrained on sums of up to {cfg.task.train_digits} digits:\n")
    print_heatmaps(panels)
    path = Path(cfg.runs).expanduser() / "demo.png"
    print(f"\nThe same as a picture: {heatmap.draw(panels, path, 'Addition at smoke scale')}")


if __name__ == "__main__":
    sys.exit(main())
