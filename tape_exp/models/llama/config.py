"""What a checkpoint's ``config.json`` says, and whether the decoder computes it."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from tape_exp.models.llama.files import ADAPTER, CONFIG
from tape_exp.models.llama.scaling import read_scaling
from tape_exp.models.llama.tokenizer import read_special_tokens
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

FORMS = ("llama", "mistral", "qwen2", "qwen3")  # as transformers calls them


@dataclass(frozen=True)
class Llama:
    """What a checkpoint's config and tokenizer say. A fingerprint is made of the fields that its
    ``repr`` shows, so that names of runs stay as they are where a field is added.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int | None  # null: as many as heads
    head_size: int | None  # null: width / heads
    ffn: int
    vocab: int
    tied: bool
    norm_eps: float
    theta: float
    scaling: dict[str, Any]  # keys of tape_exp.models.positions.rope_scaling.Scaling
    max_positions: int  # tokens
    bos: str | None
    eos: str | None
    dtype: torch.dtype
    # whether its tokenizer begins a text with BOS; null: there is none
    add_bos: bool | None = field(default=None, repr=False)
    stops: list[str] | None = field(default=None, repr=False)  # what ends an answer besides EOS
    chat_template: str | None = field(default=None, repr=False)
    qkv_bias: bool = field(default=False, repr=False)
    # keys of model; null: as the config has them
    qk_norm: bool | None = field(default=None, repr=False)
    window: int | None = field(default=None, repr=False)  # tokens

    @property
    def arch(self) -> dict[str, Any]:
        """The keys of :class:`~tape_exp.settings.schema.Arch` that the checkpoint decides."""
        keys = {field.name for field in fields(Arch)}
        if not self.qkv_bias:
            keys.discard("qkv_bias")
        return {key: value for key, value in vars(self).items() if key in keys}


def read_config(folder: Path, further: float = 1.0) -> Llama:
    """Return the sizes and positions of a checkpoint, as transformers reads its ``config.json``.

    Args:
        further: multiplies the factor by which its positions are stretched.

    Raises:
        ConfigError: the decoder does not compute what the config says.
    """
    config = _transformers_config(folder)
    path = folder / CONFIG
    _require_computed(path, config)
    window = _window(path, config)
    config.standardize_rope_params()  # as transformers' models do once more
    heads = config.num_attention_heads
    width = config.hidden_size
    head_size = getattr(config, "head_dim", None) or width // heads
    tokens = read_special_tokens(folder, config)
    return Llama(
        layers=config.num_hidden_layers,
        width=width,
        heads=heads,
        kv_heads=None if config.num_key_value_heads == heads else config.num_key_value_heads,
        head_size=None if head_size * heads == width else head_size,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        norm_eps=float(config.rms_norm_eps),
        theta=float(config.rope_parameters["rope_theta"]),
        scaling=read_scaling(path, config, further),
        max_positions=config.max_position_embeddings,
        bos=tokens.bos,
        eos=tokens.eos,
        dtype=config.dtype or torch.float32,
        add_bos=tokens.add_bos,
        stops=tokens.stops,
        chat_template=tokens.chat_template,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=True if config.model_type == "qwen3" else None,
        window=window,
    )


def _transformers_config(folder: Path) -> Any:
    """Return the config of transformers in a folder that holds a whole model."""
    from transformers import AutoConfig

    path = folder / CONFIG
    if (folder / ADAPTER).is_file():
        raise ConfigError(
            f"{folder} holds an adapter ({ADAPTER}), which transformers puts onto its base. Write "
            "both as one model, AutoPeftModelForCausalLM.from_pretrained(<folder>)"
            ".merge_and_unload().save_pretrained(<new folder>) by peft, and copy the tokenizer's "
            "files there; or remove the adapter's files, to read the model beside them."
        )
    if not path.is_file():
        raise ConfigError(f"{folder} has no config.json; name the folder of a Llama.")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # of many kinds, its own for a wrong type among them
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({why}); fetch it again.") from error


def _require_computed(path: Path, config: Any) -> None:
    """Raise :class:`ConfigError` where the decoder does not compute what a config says."""
    choices: dict[str, tuple[Any, ...]] = {"model_type": FORMS, "hidden_act": ("silu", "swish")}
    for key in ("attention_bias", "mlp_bias"):
        if hasattr(type(config), key):
            choices[key] = (False,)
    choices["quantization_config"] = (None,)
    for key, values in choices.items():
        value = getattr(config, key, values[0])
        if value not in values:
            computed = ", ".join(map(str, values))
            raise ConfigError(f"{path}: {key} is {value}; the decoder computes only {computed}.")


def _window(path: Path, config: Any) -> int | None:
    """Return how many tokens a query sees; None: all before it."""
    layer_types = set(getattr(config, "layer_types", None) or ())
    if config.model_type == "llama" or layer_types == {"full_attention"}:
        return None
    window: int | None = config.sliding_window
    if window and len(layer_types) > 1:
        raise ConfigError(f"{path}: only some layers have a window; the decoder gives it to all.")
    return window
