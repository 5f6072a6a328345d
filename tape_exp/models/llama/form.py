"""A decoder in the words of transformers: the type that computes the same, its config."""

from dataclasses import replace
from typing import Any

from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import PLAIN
from tape_exp.models.llama.scaling import rope_parameters
from tape_exp.models.positions.rope import RoPE
from tape_exp.settings.schema import Arch


def form_of(decoder: Decoder) -> str:
    """Return the type of transformers that computes the same; empty where none does."""
    attention = decoder.kinds[0].attention
    arch = decoder.arch
    if len(decoder.kinds) > 1 or replace(attention, window=None, qk_norm=False) != PLAIN:
        return ""
    if type(decoder.blocks()[0].position) is not RoPE or arch.width % arch.heads:
        return ""
    forms = []
    if arch.qkv_bias:
        forms.append("qwen2")
    if attention.qk_norm:
        forms.append("qwen3")
    if attention.window:
        forms.append("mistral")
    if not forms:
        return "llama"
    return forms[0] if len(forms) == 1 else ""


def llama_config(decoder: Decoder) -> Any:
    """Return the config of transformers of a decoder that has a :func:`form_of` Llama."""
    from transformers import AutoConfig

    arch = decoder.arch
    form = form_of(decoder)
    rope = rope_parameters(decoder)
    keys = sizes(arch) | {"max_position_embeddings": max(arch.max_length, arch.train_length)}
    if rope["rope_type"] == "dynamic":  # transformers begins to stretch there
        keys["max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    if form == "mistral":
        keys["sliding_window"] = decoder.kinds[0].attention.window
    keys |= {"bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(form, **keys, rms_norm_eps=arch.norm_eps, rope_parameters=rope)


def sizes(arch: Arch) -> dict[str, Any]:
    """Return the sizes of a decoder in the words of transformers."""
    return {
        "vocab_size": arch.vocab,
        "hidden_size": arch.width,
        "intermediate_size": arch.ffn,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.key_heads,
        "head_dim": arch.head_dim,
        "max_position_embeddings": arch.max_length,
        "tie_word_embeddings": arch.tied,
    }
