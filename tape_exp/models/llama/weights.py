"""A checkpoint's weights: loaded into a decoder, and named by a fingerprint."""

import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tape_exp.machine.files import short_hash
from tape_exp.models.decoder import Decoder
from tape_exp.models.llama.config import read_config
from tape_exp.models.llama.files import GENERATION, INDEX, SINGLE, weight_files
from tape_exp.models.llama.names import llama_name
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SAMPLE = 4096  # bytes in the middle of a tensor, which a fingerprint is made of
# Of generation_config.json: keys that change a greedy answer, and the value that does not.
GREEDY: dict[str, Any] = {
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "guidance_scale": None,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file of weights, which is read where it is indexed."""

    path: Path
    name: str
    data: Any  # a slice of safetensors

    @property
    def shape(self) -> list[int]:
        shape: list[int] = self.data.get_shape()
        return shape


def load(decoder: Decoder, folder: Path) -> None:
    """Give a decoder a checkpoint's weights, converted to its dtype, one tensor at a time.

    Raises:
        ConfigError: their names or shapes are not exactly the decoder's, its positional encoding
            aside.
    """
    _warn_of_leftovers(folder)
    weights = _weights_by_llama_name(decoder)
    tied = {EMBEDDING, HEAD} if decoder.arch.tied else set()
    missing = set(weights)
    for stored in stored_tensors(folder):
        if stored.name.endswith("rotary_emb.inv_freq"):
            continue  # of old checkpoints: a function of theta
        name = stored.name
        if f"model.{name}" in weights:  # of a model that was saved without its head
            name = f"model.{name}"
        expected = list(weights[name].shape) if name in weights else "absent"
        if stored.shape != expected:
            raise ConfigError(
                f"{stored.path}: {name} is {stored.shape}, but by config.json {expected}."
            )
        other_is_read = name in tied and bool(tied - missing)
        if other_is_read and not stored.data[:].to(weights[name]).equal(weights[name]):
            raise ConfigError(
                f"{folder}: its weights have an lm_head.weight that is not the embedding; set "
                '"tie_word_embeddings": false in its config.json.'
            )
        weights[name].copy_(stored.data[:])
        missing.discard(name)
    one_of_two_tied = missing < tied
    if missing and not one_of_two_tied:
        advice = "fetch the model again"
        if missing == {HEAD}:
            advice = 'set "tie_word_embeddings": true in its config.json if it is the embedding'
        raise ConfigError(f"{folder}: its weights lack {min(missing)}; {advice}.")


def _weights_by_llama_name(decoder: Decoder) -> dict[str, Tensor]:
    """Return the decoder's weights but those of its encoding; a tied head is the embedding."""
    weights = {}
    for key, parameter in decoder.named_parameters():
        if ".position." not in key:
            weights[llama_name(key)] = parameter.data
    if decoder.arch.tied:
        weights[HEAD] = weights[EMBEDDING]
    return weights


def _warn_of_leftovers(folder: Path) -> None:
    """Log what of a checkpoint's folder is not read, or not followed."""
    if (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        log.warning(
            "%s: its weights are those of %s, as in transformers; %s and its files are left aside.",
            folder,
            SINGLE,
            INDEX,
        )
    unfollowed = _unfollowed(folder)
    if unfollowed:
        log.warning(
            "%s: its %s asks for %s, which transformers and with it lm-eval follow; answers here "
            "are the most likely tokens without it.",
            folder,
            GENERATION,
            unfollowed,
        )


def _unfollowed(folder: Path) -> str:
    """Return what a checkpoint asks for where it generates and nothing here does, ``key=value``."""
    path = folder / GENERATION
    if not path.is_file():
        return ""
    generation = json.loads(path.read_text(encoding="utf-8"))
    asked = []
    for key, without_effect in GREEDY.items():
        if generation.get(key) not in (None, without_effect):
            asked.append(f"{key}={generation[key]}")
    return ", ".join(asked)


def fingerprint(folder: Path) -> str:
    """Return a hash that names a checkpoint's weights, in however many files: of the config's sizes
    and positions, and of the name, type, shape and the 4 KB in the middle of every tensor.
    """
    config = read_config(folder)
    samples = {}
    for stored in stored_tensors(folder):
        dtype = stored.data.get_dtype()
        description = f"{stored.name} {DTYPES.get(dtype, dtype)} {tuple(stored.shape)}"
        samples[stored.name] = description.encode() + _middle(stored)
    sizes = repr(replace(config, bos=None, eos=None)) + str(config.window or "")
    return short_hash([sizes, *(samples[name] for name in sorted(samples))])


def stored_tensors(folder: Path) -> Iterator[StoredTensor]:
    """Yield each tensor of a checkpoint. Files are read, not mapped: the pages of a mapped one
    count as memory of this process, in addition to the weights.
    """
    for path in weight_files(folder):
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no {path.name}; fetch the model again. transformers makes it of a "
                "pytorch_model.bin: from_pretrained, then save_pretrained."
            )
        try:
            with safe_open(path, "pt", backend="pread") as file:
                for name in file.keys():  # noqa: SIM118
                    yield StoredTensor(path, name, file.get_slice(name))
        except SafetensorError as error:
            raise ConfigError(
                f"{path} is cut short or damaged ({error}); fetch it again."
            ) from error


def _middle(stored: StoredTensor) -> bytes:
    """Return the :data:`SAMPLE` bytes in the middle of a stored tensor, or all of fewer."""
    first_row = stored.data[:1]
    row_size = first_row.numel() * first_row.element_size()  # bytes
    size = row_size * stored.shape[0]
    begin = max(size // 2 - SAMPLE // 2, 0)
    end = min(begin + SAMPLE, size)
    row = begin // row_size
    rows = stored.data[row : math.ceil(end / row_size)].flatten().view(torch.uint8)
    return rows.numpy().tobytes()[begin - row * row_size : end - row * row_size]
