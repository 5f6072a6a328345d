"""What the layers of a decoder are made of: one encoding for all, or a pattern of several."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.settings.construct import build, validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, AttentionConfig

PLAIN = AttentionConfig()
MOST = 2**22  # random positions to draw from: each row of a batch shuffles them all


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
    entries = [json.dumps(entry, sort_keys=True) for entry in model["layers"]]
    kinds = {one: _kind(json.loads(one), f"model.layers.{entries.index(one)}") for one in entries}
    return [kinds[one] for one in entries]


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


class RandomPositions:
    """Randomised positions: a sorted random subset of 0 … L_max - 1 instead of 0 … T - 1 (Ruoss et
    al., "Randomized Positional Encodings Boost Length Generalization of Transformers", 2023), so
    that training meets every position of longer sequences. With RoPE it is RandPE.

    One subset per sequence is drawn, also at evaluation; every layer and every cached step of that
    sequence sees the same one. Deliberately different from the TAPE paper's public code, which
    draws S positions out of S for arithmetic and so computes RoPE.

    The subset has as many positions as the padded row, as in the authors' code: how far apart those
    of a short row are depends on the longest row of its batch, and so, at evaluation, on the task's
    ``rows_per_batch``.

    Args:
        multiple: L_max as a multiple of the task's longest sequence: ``model.random_range``.
        arch: has this, and the trained length.
    """

    def __init__(self, multiple: float, arch: Arch) -> None:
        self.range, self.max_length = round(multiple * arch.max_length), arch.max_length
        self.train_length, max_length = arch.train_length, arch.max_length
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
        """(rows, length) fp32: for each row a sorted sample, without replacement.

        Raises:
            ConfigError: there are fewer positions than tokens.
            ValueError: no sampler is given.
        """
        if length > self.range:
            raise ConfigError(
                f"{length} tokens do not fit in {self.range} random positions; "
                f"model.random_range={2 * length / max(self.max_length, 1):.1f} would do."
            )
        if sampler is None:
            raise ValueError("The positions of this model are random: pass a RowSampler.")
        shuffled = sampler.integers(rows, self.range, device).argsort(dim=-1, stable=True)
        return shuffled[:, :length].sort(-1).values.float()


class RandomFloats(RandomPositions):
    """Random Float Sampling (Shimizu et al., "Position Encoding with Random Float Sampling Enhances
    Length Generalization of Transformers", 2026, arXiv:2602.14050): in training the positions of a
    row of T tokens are T sorted draws from a continuous range; in evaluation they are equally
    spaced in the same range, with T' tokens of which training has T_train at most::

        p_i = L_max u_(i),  u ~ U[0, 1);    p_i = L_max (2i - 1) / (2 max(T_train, T')),  i = 1 … T'

    Deliberately different: the paper's range is [0, 1), where RoPE's lower frequencies would not
    turn. The paper itself was not at hand; this is its algorithm 1 as others tell it.
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
        elif sampler is not None:
            drawn = sampler.integers(rows, length, device).double().sort(-1).values / 2**32
        else:
            raise ValueError("The positions of this model are random: pass a RowSampler.")
        return (self.range * drawn).float()


def random_positions(kinds: Sequence[LayerKind], arch: Arch) -> RandomPositions | None:
    """The random positions of all layers of a pattern, if any has the key ``random_range``.

    Raises:
        ConfigError: entries ask for different ones, and all layers have the same positions; or
            floats are asked for without a range.
    """
    every = [kind.attention for kind in kinds]
    if any(one.random_floats and one.random_range is None for one in every):
        raise ConfigError("model.random_floats=true needs model.random_range; 2 is usual.")
    ranges = {(r, one.random_floats) for one in every if (r := one.random_range) is not None}
    if len(ranges) > 1:
        told = [
            f"{multiple}{' of floats' if floats else ''}" for multiple, floats in sorted(ranges)
        ]
        raise ConfigError(
            f"the entries of model.layers have random_range={' and '.join(told)}, and all layers "
            "have the same positions; give one."
        )
    for multiple, floats in ranges:
        return (RandomFloats if floats else RandomPositions)(multiple, arch)
    return None
