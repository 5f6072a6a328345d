"""What the layers of a decoder are made of: one encoding for all, or a pattern of several."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.construct import build, locate, validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, AttentionConfig

PLAIN = AttentionConfig()
MOST = 2**22  # random positions to draw from: each row of a batch shuffles them all


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


class RandomPositions:
    """Randomised positions: a sorted random subset of 0 … L_max - 1 instead of 0 … T - 1 (Ruoss et
    al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023), so
    that training meets every position of longer sequences. With RoPE it is RandPE.

    Each sequence draws one subset, also at evaluation, which all its layers and cached steps see.
    Deliberately different from the TAPE paper's public code, which draws S positions out of S for
    arithmetic and so computes RoPE. As in the authors' code the subset has as many positions as the
    padded row: how far apart those of a short row are depends on the longest row of its batch.
    ``multiple`` is L_max over the task's longest sequence.
    """

    def __init__(self, multiple: float, arch: Arch) -> None:
        self.range = round(multiple * arch.max_length)
        self.max_length = arch.max_length
        self.train_length = arch.train_length
        max_length = arch.max_length
        if not max_length < self.range <= MOST and max_length:
            raise ConfigError(
                f"model.random_range={multiple} makes {self.range:,} positions to draw from, which "
                f"must be above {max_length} and at most {MOST:,}; model.random_range=2 is usual."
            )

    def sample(
        self,
        rows: int,
        length: int,
        device: torch.device,
        sampler: RowSampler | None,
        training: bool = False,
    ) -> Tensor:
        """Draw a sorted sample for each row, without replacement: (rows, length) fp32."""
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in {self.range} random positions; "
                f"model.random_range={2 * length / max(self.max_length, 1):.1f} would do."
            )
        assert sampler is not None, "The positions of this model are random: pass a RowSampler."
        shuffled = sampler.integers(rows, self.range, device).argsort(dim=-1, stable=True)
        return shuffled[:, :length].sort(-1).values.float()


class RandomFloats(RandomPositions):
    """Random Float Sampling (Shimizu et al., "Position Encoding with Random Float Sampling Enhances
    Length Generalization of Transformers", 2026, arXiv:2602.14050): in training the positions of a
    row of T tokens are T sorted draws from a continuous range; in evaluation they are equally
    spaced in the same range, with T' tokens of which training has T_train at most::

        p_i = L_max u_(i),  u ~ U[0, 1);    p_i = L_max (2i - 1) / (2 max(T_train, T')),  i = 1 … T'

    Deliberately different from the paper's range [0, 1), where RoPE's lower frequencies would not
    turn. The paper was not at hand; this is its algorithm 1 as others tell it.
    """

    def sample(
        self,
        rows: int,
        length: int,
        device: torch.device,
        sampler: RowSampler | None,
        training: bool = False,
    ) -> Tensor:
        if not training:
            places = torch.arange(length, dtype=torch.float64, device=device) + 0.5
            drawn = (places / max(self.train_length, length)).expand(rows, -1)
        else:
            assert sampler is not None, "The positions of this model are random: pass a RowSampler."
            drawn = sampler.integers(rows, length, device).double().sort(-1).values / 2**32
        return (self.range * drawn).float()


def random_positions(kinds: Sequence[LayerKind], arch: Arch) -> RandomPositions | None:
    """Return the random positions of all layers, if any layer has the key ``random_range``."""
    settings = {(kind.attention.random_range, kind.attention.random_floats) for kind in kinds}
    if (None, True) in settings:
        raise ConfigError("model.random_floats=true needs model.random_range; 2 is usual.")
    if len(settings - {(None, False)}) > 1:
        raise ConfigError("model.random_range and model.random_floats are the same for all layers.")
    for multiple, floats in settings:
        if multiple is not None:
            return (RandomFloats if floats else RandomPositions)(multiple, arch)
    return None
