"""Tensors in the safetensors files of a checkpoint, read piece by piece."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tape_exp.settings.errors import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PIECE = 16 << 20  # bytes that are read at once


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file: its bytes are [begin, end)."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Its values in turn, flat, each piece with the index of its first; a piece is overwritten
        by the next.
        """
        # Read, not mapped: pages of a mapped file count as this process's memory, beside the
        # weights themselves.
        size = self.dtype.itemsize
        buffer = bytearray(min(PIECE, self.end - self.begin))
        with self.file.open("rb") as file:
            file.seek(self.begin)
            for begin in range(self.begin, self.end, PIECE):
                count = min(PIECE, self.end - begin)
                if file.readinto(memoryview(buffer)[:count]) != count:
                    raise _cut_short(self.file)
                yield (
                    (begin - self.begin) // size,
                    torch.frombuffer(buffer, dtype=self.dtype, count=count // size),
                )


def files(folder: Path) -> list[Path]:
    """The files that a checkpoint's weights lie in, whether they are there or not."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        if not isinstance(index.get("weight_map"), dict):
            raise ConfigError(f"{folder / INDEX} has no weight_map; fetch it again.")
        return sorted({folder / str(name) for name in index["weight_map"].values()})
    return [folder / SINGLE]


def tensors(folder: Path) -> list[Stored]:
    """Every tensor of a checkpoint, from the headers of its files. Raises :class:`ConfigError`."""
    found = []
    for file in files(folder):
        if not file.is_file():
            named = f", which its {INDEX} names" if file.name != SINGLE else f" and no {INDEX}"
            raise ConfigError(
                f"{folder} has no {file.name}{named}; fetch the model again, in safetensors files."
            )
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise _cut_short(file)
            try:
                header = json.loads(stream.read(length))
                described = {
                    k: (v["dtype"], tuple(v["shape"]), *v["data_offsets"])
                    for k, v in header.items()
                    if k[0] != "_"
                }
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{file} has a damaged header ({error}); fetch it again."
                ) from error
        for name, (dtype, shape, begin, end) in described.items():
            if dtype not in DTYPES:
                raise ConfigError(
                    f"{file}: {name} is of type {dtype}; {', '.join(DTYPES)} can be loaded: name "
                    "such a model."
                )
            if end + 8 + length > size:
                raise _cut_short(file)
            if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
                raise ConfigError(
                    f"{file} has a damaged header ({name} is not as long as its shape); fetch it "
                    "again."
                )
            found.append(
                Stored(name, file, DTYPES[dtype], shape, begin + 8 + length, end + 8 + length)
            )
    return found


def _cut_short(file: Path) -> ConfigError:
    return ConfigError(f"{file} is cut short ({file.stat().st_size} bytes); fetch it again.")


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file that a checkpoint came with. Raises :class:`ConfigError`."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); fetch it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object; fetch it again.")
    return content
