"""How RoPE is stretched, in the words of transformers: ``rope_parameters``, read and written."""

import math
import re
from pathlib import Path
from typing import Any

from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Scaling
from tape_exp.settings.construct import validate
from tape_exp.settings.errors import ConfigError

# Of each method that both have: keys of Scaling, and what transformers calls them.
KEYS: dict[str, dict[str, str]] = {
    "linear": {},
    "yarn": {"truncate": "truncate", "beta_fast": "beta_fast", "beta_slow": "beta_slow"},
    "llama3": {"low_frequency": "low_freq_factor", "high_frequency": "high_freq_factor"},
    "dynamic": {},
    "longrope": {
        "short_factor": "short_factor",
        "long_factor": "long_factor",
        "attention_factor": "attention_factor",
    },
}


def read_scaling(path: Path, config: Any, further: float) -> dict[str, Any]:
    """Return the keys of :class:`Scaling` that a config of transformers amounts to, its factor
    multiplied by ``further``. ``path`` is that of the config, for messages.
    """
    rope = config.rope_parameters
    method = rope.get("rope_type", "default")
    turned = rope.get("partial_rotary_factor", 1)
    if turned != 1:
        raise ConfigError(
            f"{path}: partial_rotary_factor is {turned}; the decoder turns whole heads, as 1 does."
        )
    if method == "default":
        return {"method": "none"}
    if method not in KEYS:
        raise ConfigError(
            f"{path}: the rope type {method} is not known; default, {', '.join(KEYS)} are."
        )
    longest = config.max_position_embeddings
    original = longest
    if method != "dynamic":  # which, as transformers has it, begins to stretch at the longest
        original = rope.get("original_max_position_embeddings") or longest
    factor = further * float(rope.get("factor") or longest / original)
    scaling: dict[str, Any] = {"method": method, "factor": factor}
    if method == "yarn":
        attention_factor = _yarn_attention_factor(rope, factor)
        if attention_factor is not None:
            scaling["attention_factor"] = attention_factor
    scaling |= _own_keys(method, rope)
    if method != "linear":
        scaling["original"] = int(original)
    _require_valid(path, scaling)
    return scaling


def _own_keys(method: str, rope: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a method alone; a key that transformers lacks has our default."""
    keys: dict[str, Any] = {}
    for key, name in KEYS[method].items():
        value = getattr(Scaling, key) if rope.get(name) is None else rope[name]
        if isinstance(value, list):
            keys[key] = [float(number) for number in value]
        elif value is False:
            keys[key] = False
        elif value is not None and value is not True:  # as they are by default
            keys[key] = float(value)
    return keys


def _yarn_attention_factor(rope: dict[str, Any], factor: float) -> float | None:
    """Return what YaRN multiplies q and k by; None where it is 0.1 ln s + 1."""
    default = 0.1 * math.log(factor) + 1
    number = rope.get("attention_factor")
    m = rope.get("mscale")
    m_all_dim = rope.get("mscale_all_dim")
    if number is None and m and m_all_dim:
        number = (0.1 * m * math.log(factor) + 1) / (0.1 * m_all_dim * math.log(factor) + 1)
    if number is None or math.isclose(number, default, rel_tol=1e-6):
        return None
    return float(number)


def _require_valid(path: Path, scaling: dict[str, Any]) -> None:
    """Raise :class:`ConfigError`, in the words of transformers, where numbers do not fit."""
    try:
        validate(Scaling, scaling, "")
    except ConfigError as error:
        sentence = str(error).replace("model.scaling.", "")
        names = {**KEYS[scaling["method"]], "original": "original_max_position_embeddings"}
        for key, name in names.items():
            sentence = re.sub(rf"\b{key}\b", name, sentence)
        raise ConfigError(f"{path}: in rope_parameters or rope_scaling {sentence}") from error


def rope_parameters(decoder: Decoder) -> dict[str, Any]:
    """Return the positions of a decoder with RoPE at evaluation, as transformers has them; NTK's
    are the base that they amount to.
    """
    position = decoder.blocks()[0].position
    assert isinstance(position, RoPE)
    scaling = position.scaling
    stretch = position.stretch
    s = stretch.factor
    if scaling.method in ("none", "ntk"):
        theta = stretch.base(s) if scaling.method == "ntk" else position.theta
        return {"rope_type": "default", "rope_theta": theta}
    rope: dict[str, Any] = {"rope_type": scaling.method, "rope_theta": position.theta, "factor": s}
    if scaling.method != "linear":
        rope["original_max_position_embeddings"] = stretch.original_length
    for key, name in KEYS[scaling.method].items():
        value = getattr(scaling, key)
        rope[name] = list(value) if isinstance(value, tuple) else value
    if scaling.method in ("yarn", "longrope"):
        rope["attention_factor"] = stretch.attention_factor
    return rope
