"""``python -m tape_exp.export <run> <folder> [--dtype bfloat16]``: export for transformers.

Adapters are merged into the weights. A model with RoPE becomes a plain Llama; any other is loaded
by ``AutoModelForCausalLM.from_pretrained`` after ``import tape_exp.models.hf``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tape_exp.models import export, peft
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.errors import ConfigError
from tape_exp.training.finished import read_run

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Export."""
    parser = Parser(
        prog="python -m tape_exp.export", description="A run as a model that transformers loads."
    )
    parser.add_argument(
        "run", type=Path, help="the run's folder, runs/<task>/<scale>/<model>/seed…"
    )
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of the stored weights (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    export_run(given.run, given.folder, DTYPES[given.dtype])
    print(given.folder)
    return 0


def export_run(run: Path, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the model of a run to ``folder``."""
    try:
        found = read_run(run)
        peft.merge(found.decoder)
        export.save(found.decoder, folder, found.tokenizer, model=found.model, dtype=dtype)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{error.filename or folder}: {reason}; export to a folder that can be written."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
