"""The section ``model`` of a config: its layers, a copy whose thresholds small rows pass, and
whether its decoders begin as RoPE.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from tape_exp.machine.seeding import RowSampler, generator_for
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.peft import selected
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Scaling
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.schema import Arch, AttentionConfig

Model = dict[str, Any]  # the section of a config
# As of addition: rows of up to 48 tokens, of which training shows 24; ids 4 to 13 are digits. Two
# query heads share each key head.
ARCH = Arch(2, 32, 4, 48, 14, max_length=48, train_length=24, kv_heads=2, digits=(*range(4, 14),))
# Longer than a CPU's blocks of queries and than the blocks of PaTH, Wall and Householder's product.
LONG = 160
SHORT = 16  # what a threshold becomes that is longer than the rows
LONG_ARCH = replace(ARCH, max_length=192, train_length=24, kv_heads=None)


def entries(model: Model) -> list[Model]:
    """Return the section of each kind of layer."""
    layers: list[Model] = model.get("layers", [model])
    return layers


def with_keys(model: Model, **keys: Any) -> Model:
    """Return the section with these keys in each kind of layer that does not have them."""
    if "layers" not in model:
        return keys | model
    return model | {"layers": [keys | layer for layer in model["layers"]]}


def with_defaults(layer: Model) -> Model:
    """Return the section of a layer with each key of attention and of its class's constructor that
    it leaves out; those that have no default stay out.

    >>> layer = {"_target_": "tape_exp.models.positions.rope.RoPE", "window": 16}
    >>> whole = with_defaults(layer)
    >>> whole["window"], whole["ssmax"], whole["theta"], whole["scaling"]["method"]
    (16, False, 10000.0, 'none')
    """
    cls: Any = locate(layer["_target_"], "model")
    whole = asdict(AttentionConfig())
    for key, field in arguments_model(cls, frozenset({"arch"})).model_fields.items():
        if not field.is_required():
            whole[key] = field.default
    whole |= layer
    if "scaling" in whole:
        whole["scaling"] = asdict(Scaling()) | (whole["scaling"] or {})
    return whole


def with_short_thresholds(model: Model) -> tuple[Model, list[str]]:
    """Return the section whose rows of :data:`LONG` tokens go beyond each of its numbers, and what
    was changed for that.
    """
    changed: list[str] = []
    layers = []
    for layer in entries(model):
        cls: Any = locate(layer["_target_"], "model")
        defaults = {key: field.default for key, field in arguments_model(cls).model_fields.items()}
        short = dict(layer)
        for key, value in (defaults | layer).items():
            is_number = isinstance(value, int | float)
            if is_number and value > LONG and key != "theta" and _constructible(short, key):
                short[key] = SHORT
                changed.append(f"{key}={SHORT}")
        layers.append(short)
    return (model | {"layers": layers} if "layers" in model else layers[0]), changed


def _constructible(layer: Model, key: str) -> bool:
    """Say whether an encoding takes a short length for this key."""
    try:
        kinds_of({**layer, key: SHORT})[0].position(LONG_ARCH)
    except Exception:  # whatever an author's constructor raises for a number that it does not take
        return False
    return True


@torch.no_grad()
def begins_as_rope(model: Mapping[str, Any], arch: Arch) -> bool:
    """Say whether fresh decoders with this section ``model`` give the logits of RoPE at the same
    theta, scaling, window, norms and scale of logits: measured on two small ones with the same
    backbone, in rows beyond every threshold.
    """
    model, _ = with_short_thresholds({**model})
    layers = entries(model)
    shared = {"theta", "scaling", *AttentionConfig.__dataclass_fields__}
    shared -= {"random_range", "random_floats"}
    rope = {"name": "rope", "_target_": f"{RoPE.__module__}.{RoPE.__qualname__}"}
    ropes = [rope | selected(layer, shared) for layer in layers]
    small = replace(
        arch,
        layers=2 * len(layers),
        width=32,
        heads=4,
        ffn=32,
        vocab=32,
        head_size=arch.head_dim,
        kv_heads=4 if arch.key_heads == arch.heads else 2,
        tied=False,
        max_length=max(arch.max_length, LONG),
    )
    tokens = torch.randint(0, 32, (2, LONG), generator=generator_for(0, "begins as RoPE"))
    logits = []
    for kinds in (kinds_of(model), kinds_of({"name": "rope", "layers": ropes})):
        decoder = Decoder(small, kinds)
        for name, module in decoder.named_modules():
            if isinstance(module, nn.Linear) and ".position." not in name:
                module.weight.mul_(10)  # so that attention is far from uniform
        logits.append(decoder(tokens, sampler=RowSampler(0)))
    return logits[0].allclose(logits[1], atol=1e-4)
