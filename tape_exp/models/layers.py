"""What the layers of a decoder are made of: one encoding for all, or a pattern of several."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.randpe import RandomPositions
from tape_exp.settings.construct import build, validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, AttentionConfig

PLAIN = AttentionConfig()


@dataclass(frozen=True)
class LayerKind:
    """An entry of a pattern. Layers of the same kind hand a state from one to the next.

    Args:
        position: makes the positional encoding of a layer.
        attention: how the layer attends.
    """

    position: Callable[[Arch], PositionEncoding]
    attention: AttentionConfig = PLAIN


Kinds = Callable[[Arch], PositionEncoding] | Sequence[LayerKind]  # of a decoder's layers


def kinds_of(model: Any) -> list[LayerKind]:
    """The kinds of a config's section ``model``: layer l has entry l modulo their number.

    Raises:
        ConfigError: a key is wrong or has no effect.
    """
    from omegaconf import OmegaConf

    if OmegaConf.is_config(model):
        model = OmegaConf.to_container(model, resolve=True)
    if "layers" not in model:
        return [_kind(model, "model")]
    if unknown := [key for key in model if key not in ("name", "layers")]:
        raise ConfigError(
            f"model.{unknown[0]} is not a key of a pattern of layers; give it to an entry, as in "
            "model=[{name:rope,window:16},nope]."
        )
    entries = model["layers"]
    made: dict[str, LayerKind] = {}
    written = [json.dumps(entry, sort_keys=True) for entry in entries]
    for i, (text, entry) in enumerate(zip(written, entries, strict=True)):
        if text not in made:
            made[text] = _kind(entry, f"model.layers.{i}")
    return [made[text] for text in written]


def _kind(node: Mapping[str, Any], section: str) -> LayerKind:
    known = AttentionConfig.__dataclass_fields__
    own = {key: value for key, value in node.items() if key not in known}
    chosen = {key: value for key, value in node.items() if key in known}

    def make(arch: Arch) -> Any:
        with _named(section):
            return build(own, section, also=[*known], arch=arch)

    with _named(section):
        attention: AttentionConfig = validate(AttentionConfig, chosen, section)
    return LayerKind(make, attention)


@contextmanager
def _named(section: str) -> Iterator[None]:
    """Let errors on keys of ``model`` name those of the section that is meant."""
    try:
        yield
    except ConfigError as error:
        if section == "model":
            raise
        told = re.sub(r"(?<![\w.])model\.(?!layers\b)(?=\w)", f"{section}.", str(error))
        raise ConfigError(told) from error


def random_positions(kinds: Sequence[LayerKind], arch: Arch) -> RandomPositions | None:
    """The random positions of all layers of a pattern, if any has the key ``random_range``.

    Raises:
        ConfigError: entries ask for different ranges, and all layers have the same positions.
    """
    ranges = {r for kind in kinds if (r := kind.attention.random_range) is not None}
    if len(ranges) > 1:
        raise ConfigError(
            "the entries of model.layers have random_range="
            f"{' and '.join(map(str, sorted(ranges)))}, and all layers have the same positions; "
            "give one."
        )
    return RandomPositions(ranges.pop(), arch.max_length) if ranges else None
