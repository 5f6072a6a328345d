"""What the layers of a decoder are made of: one encoding for all, or a pattern of several."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tape_exp.models.positions.base import PositionEncoding, overrides
from tape_exp.settings.construct import as_dataclass, build
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


def kinds_of(model: Any, arch: Arch) -> list[LayerKind]:
    """The kinds of a config's section ``model``: layer l has entry l modulo their number.

    Raises:
        ConfigError: a key is wrong or has no effect.
    """
    from omegaconf import OmegaConf

    if OmegaConf.is_config(model):
        model = OmegaConf.to_container(model, resolve=True)
    if "layers" not in model:
        return [_kind(model, arch, "model")]
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
            made[text] = _kind(entry, arch, f"model.layers.{i}")
    return [made[text] for text in written]


def _kind(node: Mapping[str, Any], arch: Arch, section: str) -> LayerKind:
    known = AttentionConfig.__dataclass_fields__
    own = {key: value for key, value in node.items() if key not in known}
    chosen = {key: value for key, value in node.items() if key in known}

    def make(arch: Arch) -> Any:
        with _named(section):
            return build(own, section, also=[*known], arch=arch)

    with _named(section):
        attention: AttentionConfig = as_dataclass(chosen, AttentionConfig, section)
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


def whose_positions(encodings: Sequence[PositionEncoding]) -> int:
    """Which of a pattern's encodings gives the positions, which are those of all layers.

    Raises:
        ConfigError: one samples them, and another reads positions too, which would be other ones.
    """
    sampling = [i for i, one in enumerate(encodings) if not one.consecutive]
    reading = [i for i, one in enumerate(encodings) if reads_positions(one)]
    if sampling and (others := [i for i in reading if i != sampling[0]]):
        one, other = (type(encodings[i]).__name__ for i in (sampling[0], others[0]))
        raise ConfigError(
            f"model.layers has {one}, which samples positions, and {other}, which would have "
            "others, and all layers have the same; beside an entry that samples let the others be "
            "such as nope, which read none."
        )
    return sampling[0] if sampling else 0


def reads_positions(position: PositionEncoding) -> bool:
    """Whether what an encoding computes depends on the positions that it is given."""
    embeds = overrides(position, "embed") and not overrides(position, "position_ids")
    hooks = ("initial_state", "bias", "bias_by_distance", "piecewise")
    return embeds or any(overrides(position, hook) for hook in hooks)
