"""The files of a checkpoint's folder."""

import json
from pathlib import Path

from tape_exp.settings.errors import ConfigError

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
SINGLE = "model.safetensors"  # all weights, or, with an index, in several files
INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a checkpoint's weights, whether they exist or not: as in
    transformers the single one, and those of the index where there is none.
    """
    index = folder / INDEX
    if (folder / SINGLE).is_file() or not index.is_file():
        return [folder / SINGLE]
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} has no weight_map; fetch it again.") from error
    return sorted({folder / str(name) for name in names})
