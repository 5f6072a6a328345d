"""``make demo``: RoPE and TAPE learn addition at smoke scale, shown as heatmaps and one PNG."""

import sys
from pathlib import Path

from tape_exp.drawing import heatmap
from tape_exp.paper.addition import panel
from tape_exp.settings.compose import compose_config
from tape_exp.training.run import run


def main() -> None:
    """Train what is not yet trained, then show both."""
    panels = {}
    for model in ("rope", "tape"):
        words = [f"model={model}", "task=arithmetic", "scale=smoke", "logger=none", *sys.argv[1:]]
        record = run(compose_config(words))
        panels[f"{model}  {record['metrics']['test/exact_match']:.1f} %"] = panel([record])
    print(
        "\nExact match on the grid of operand lengths (first operand downward); trained up to 5 "
        "digits:\n"
    )
    heatmap.print_heatmaps(panels)
    path = heatmap.draw(panels, Path("runs/demo.png"), "Addition at smoke scale")
    print(f"\nThe same as a picture: {path}")


if __name__ == "__main__":
    main()
