"""The names that transformers has for the decoder's weights."""

OUTSIDE_BLOCKS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
IN_BLOCK = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def llama_name(key: str) -> str:
    """Return the name in transformers of one of the decoder's weights.

    >>> llama_name("layers.0.q.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    if key in OUTSIDE_BLOCKS:
        return OUTSIDE_BLOCKS[key]
    _, layer, module, parameter = key.split(".", 3)
    return f"model.layers.{layer}.{IN_BLOCK[module]}.{parameter}"
