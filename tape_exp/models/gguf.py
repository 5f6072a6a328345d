"""GGUF files of the Llama-like families, as folders in Hugging Face's format.

GGUF is the format of llama.cpp: config, tokenizer and weights in one file, most of them quantised.
transformers reads it (package ``gguf``); what comes out is kept in ``cache/gguf/<hash>``.
"""

import logging
import re
import shutil
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from tape_exp.machine.files import sha256
from tape_exp.models.llama.config import FORMS, read_config
from tape_exp.models.llama.files import CONFIG
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
PARTIAL = ".partial"  # the end of the name of a folder that is being written
# Keys of an architecture that change what it computes and that transformers does not read, and the
# values with which they change nothing.
UNREAD: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0, 1.0),
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
}
INSTEAD = "name the folder or the repository with its *.safetensors instead."


def converted(path: Path, cache: Path) -> Path:
    """Return the folder of a GGUF file's config, dequantised weights and tokenizer, which is made
    once for a file of this content. Its name ends with the type that the file has, ``-from-Q4_1``,
    and so does that of the run that begins from it.

    Raises:
        ConfigError: the file is damaged, of another family, or scales its positions, which
            transformers does not read.
    """
    place = cache / "gguf" / _hash(path, path.stat().st_mtime_ns)
    earlier = _made_in(place)
    if earlier is not None:
        return earlier
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        earlier = _made_in(place)
        if earlier is not None:  # by another process, meanwhile
            return earlier
        kind = _check(path)
        for left in place.glob(f"*{PARTIAL}"):  # by a process that was killed
            shutil.rmtree(left)
        folder = place / f"{re.sub(rf'[-.]{kind}$', '', path.stem)}-from-{kind}"
        partial = folder.with_name(folder.name + PARTIAL)
        began = time.monotonic()
        log.info("Converting %s (%s) into %s.", path, kind, folder)
        try:
            _convert(path, partial)
            read_config(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("Converted in %.0f s.", time.monotonic() - began)
    return folder


@cache
def _hash(path: Path, modified: int) -> str:
    """Return a hash of a file's content, once: a run asks several times, and a large file takes
    seconds.
    """
    return sha256(path)[:16]


def _made_in(place: Path) -> Path | None:
    """Return the folder that a conversion has finished."""
    made = [config.parent for config in place.glob(f"*/{CONFIG}")]
    return next((folder for folder in made if not folder.name.endswith(PARTIAL)), None)


def _check(path: Path) -> str:
    """Return the type of most of a file's weights, ``Q4_1``; raises :class:`ConfigError` where
    transformers would not compute what the file says.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        size = max(tensor.data_offset + tensor.n_bytes for tensor in reader.tensors)
        architecture = fields["general.architecture"]
    except Exception as error:  # numpy's and the library's own, of whatever the bytes lead to
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{path} is cut short or no GGUF file ({why}); fetch it again."
        ) from error
    if path.stat().st_size < size:
        raise ConfigError(f"{path} is cut short; fetch it again.")
    names = [tensor.name for tensor in reader.tensors]
    _require_read_by_transformers(path, architecture, fields, names)
    weights: Counter[str] = Counter()
    for tensor in reader.tensors:
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
    return weights.most_common(1)[0][0]


def _require_read_by_transformers(
    path: Path, architecture: str, fields: dict[str, Any], names: list[str]
) -> None:
    """Raise :class:`ConfigError` where transformers would not compute what a file's fields and the
    names of its tensors say.
    """
    if architecture not in FORMS:
        known = ", ".join(FORMS)
        raise ConfigError(f"{path} is of the family {architecture}; the decoder knows {known}.")
    for key, values in UNREAD.items():
        value = fields.get(f"{architecture}.{key}", values[0])
        if value not in values:
            raise ConfigError(
                f"{path} has {architecture}.{key}={value}, which transformers does not read; "
                f"{INSTEAD}"
            )
    for name in names:
        if name.startswith("rope_"):
            raise ConfigError(
                f"{path} scales the frequencies of its positions ({name}), which transformers does "
                f"not read; {INSTEAD}"
            )


def _convert(path: Path, folder: Path) -> None:
    """Write config, weights and tokenizer as transformers reads them."""
    model, tokenizer = _read(path)
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):  # which is written for its owner alone
            shutil.copymode(folder / CONFIG, file)
    except Exception as error:  # of a full disk, by several libraries
        why = " ".join(str(error).split())
        raise ConfigError(f"{folder.parent} cannot hold what is in {path} ({why}).") from error


def _read(path: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
    except Exception as error:  # of many kinds
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read by transformers ({why}); {INSTEAD}") from error
    # A model that was quantised refuses to be saved: its weights go into one that was not.
    words = model.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        words.pop(key, None)
    config = AutoConfig.for_model(words.pop("model_type"), **words)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    return plain, tokenizer
