"""Tensors in the safetensors files of a checkpoint, read piece by piece."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tape_exp.machine.files import parse_json
from tape_exp.settings.errors import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PIECE = 16 << 20  # bytes that are read at once
SAMPLE = 4096  # bytes in the middle of a tensor, which a fingerprint is made of


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    def pieces(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """The rows in turn, about :data:`PIECE` bytes at once, each piece with their numbers."""
        rows = max(PIECE // (math.prod(self.shape[1:]) * self.dtype.itemsize), 1)
        with _opened(self.file) as file:
            tensor = file.get_slice(self.name)
            for first in range(0, self.shape[0], rows):
                last = min(first + rows, self.shape[0])
                yield slice(first, last), tensor[first:last]

    def sample(self) -> bytes:
        """The :data:`SAMPLE` bytes in the middle, or all where there are fewer."""
        size = math.prod(self.shape) * self.dtype.itemsize
        with _opened(self.file) as file:
            if size <= SAMPLE:
                return _bytes(file.get_tensor(self.name))
            row, first = size // self.shape[0], size // 2 - SAMPLE // 2
            rows = slice(first // row, -(-(first + SAMPLE) // row))
            begin = first - rows.start * row
            return _bytes(file.get_slice(self.name)[rows])[begin : begin + SAMPLE]


def files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, whether they exist or not."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        if not isinstance(index.get("weight_map"), dict):
            raise ConfigError(f"{folder / INDEX} has no weight_map; fetch it again.")
        return sorted({folder / str(name) for name in index["weight_map"].values()})
    return [folder / SINGLE]


def tensors(folder: Path) -> list[Stored]:
    """Every tensor of a checkpoint, in the order in which its files hold them.

    Raises:
        ConfigError: a file is missing, cut short or damaged, or holds a type that is not loaded.
    """
    stored = []
    for path in files(folder):
        if not path.is_file():
            named = f", which its {INDEX} names" if path.name != SINGLE else f" and no {INDEX}"
            raise ConfigError(
                f"{folder} has no {path.name}{named}; fetch the model again, in safetensors files."
            )
        with _opened(path) as file:
            for name in file.offset_keys():
                tensor = file.get_slice(name)
                dtype = tensor.get_dtype()
                if dtype not in DTYPES:
                    raise ConfigError(
                        f"{path}: {name} is of type {dtype}; {', '.join(DTYPES)} can be loaded: "
                        "name such a model."
                    )
                stored.append(Stored(name, path, DTYPES[dtype], tuple(tensor.get_shape())))
    return stored


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    # Read, not mapped: the pages of a mapped file count as this process's memory, in addition to
    # the weights.
    try:
        with safe_open(path, "pt", backend="pread") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"{path} is cut short or damaged ({path.stat().st_size} bytes: {error}); fetch it "
            "again."
        ) from error


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file that a checkpoint came with. Raises :class:`ConfigError`."""
    try:
        content = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); fetch it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object; fetch it again.")
    return content
