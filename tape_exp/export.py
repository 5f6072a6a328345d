"""``python -m tape_exp.export <run> <folder> [--dtype bfloat16]``: export for transformers.

Adapters are merged into the weights. A model with RoPE becomes a plain Llama; any other is loaded
by ``AutoModelForCausalLM.from_pretrained`` after ``import tape_exp.models.hf``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape_exp.data import tokenizers
from tape_exp.models import export, peft
from tape_exp.runs import weights
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import path_of
from tape_exp.settings.schema import check_sections
from tape_exp.training.assembly import make_adaptation, make_decoder, make_task

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
    run = path_of("run", run).resolve()
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is not the folder of a run: it has no config.yaml.")
    cfg = weights.stored_config(run / "config.yaml")
    try:
        check_sections(cfg)
        cfg.checkpoint, cfg.runs = str(run), str(Path(run, "../../../..").resolve())
        _export(cfg, run, folder, dtype)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{run}/config.yaml is not a whole config ({reason}).") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{error.filename or folder}: {reason}; export to a folder that can be written."
        ) from error


def _export(cfg: Any, run: Path, folder: Path, dtype: torch.dtype) -> None:
    task = make_task(cfg)
    tokenizer = None
    if (run / "tokenizer.json").is_file():
        tokenizer = tokenizers.load(
            run / "tokenizer.json", cfg.task.tokenizer.bos, cfg.task.tokenizer.eos
        )
        task.size_vocabulary(max(task.arch.vocab, tokenizer.vocab))
    adaptation = make_adaptation(cfg, task)
    decoder = make_decoder(cfg, task, adaptation).eval()
    peft.merge(decoder)
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if adaptation is not None:
        model = adaptation.positions(model)
    export.save(decoder, folder, tokenizer, model=model, dtype=dtype)


if __name__ == "__main__":
    sys.exit(main())
