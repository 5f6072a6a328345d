"""What the layers of a decoder are made of: one encoding for all, or a pattern of several."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.construct import build, locate, validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, AttentionConfig

PLAIN = AttentionConfig()


@dataclass(frozen=True)
class LayerKind:
    """An entry of a pattern: what makes the encoding of a layer, and how it attends. Layers of the
    same kind hand a state from one to the next.
    """

    position: Callable[[Arch], PositionEncoding]
    attention: AttentionConfig = PLAIN


Kinds = Callable[[Arch], PositionEncoding] | Sequence[LayerKind]  # of a decoder's layers


def kinds_of(model: Any) -> list[LayerKind]:
    """Return the kinds of a config's section ``model``: layer l has entry l modulo their number."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(model):
        model = OmegaConf.to_container(model, resolve=True)
    if "layers" not in model:
        return [_kind(model, "model")]
    for key in model:
        if key not in ("name", "layers"):
            raise ConfigError(
                f"model.{key} is not a key of a pattern of layers; give it to an entry, as in "
                "model=[{name:rope,window:16},nope]."
            )
    entries = [json.dumps(entry, sort_keys=True) for entry in model["layers"]]
    kinds: dict[str, LayerKind] = {}  # equal entries are one kind, whose layers share a state
    for number, entry in enumerate(entries):
        if entry not in kinds:
            kinds[entry] = _kind(json.loads(entry), f"model.layers.{number}")
    return [kinds[entry] for entry in entries]


@dataclass(frozen=True, eq=False)
class MakeEncoding:
    """Makes the encoding of a layer from its section of a config, without the keys of attention."""

    node: Mapping[str, Any]
    section: str

    @property
    def knows_digits(self) -> bool:
        """Whether the encoding declares that it reads which tokens are digits."""
        cls: Any = locate(self.node.get("_target_"), self.section)
        return bool(cls.knows_digits)

    def __call__(self, arch: Arch) -> PositionEncoding:
        of_attention = [*AttentionConfig.__dataclass_fields__]
        built: PositionEncoding = build(self.node, self.section, also=of_attention, arch=arch)
        return built


def _kind(node: Mapping[str, Any], section: str) -> LayerKind:
    of_attention = AttentionConfig.__dataclass_fields__
    encoding = {key: value for key, value in node.items() if key not in of_attention}
    keys = {key: value for key, value in node.items() if key in of_attention}
    attention: AttentionConfig = validate(AttentionConfig, keys, section)
    if attention.sinks and attention.window is None:
        raise ConfigError(
            f"{section}.sinks={attention.sinks} has no effect without {section}.window: every "
            "query sees all tokens."
        )

    return LayerKind(MakeEncoding(encoding, section), attention)
