"""The config of an exported model, as transformers' ``AutoConfig`` reads it; importing this
registers it.
"""

from importlib import import_module
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from tape_exp.settings.schema import Arch


class TapeExpConfig(PretrainedConfig):
    """The ``config.json`` of a decoder that is no Llama.

    Args:
        arch: the keys of :class:`~tape_exp.settings.schema.Arch`.
        model: the section ``model`` of a run's config: the positional encoding and its settings.
    """

    model_type = "tape_exp"

    def __init__(
        self, arch: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **others: Any
    ) -> None:
        self.arch, self.model = arch, model
        if arch is not None:
            sizes = Arch(**arch)
            others |= {
                "vocab_size": sizes.vocab,
                "hidden_size": sizes.width,
                "intermediate_size": sizes.ffn,
            }
            others |= {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads}
            others |= {"num_key_value_heads": sizes.key_heads, "head_dim": sizes.head_dim}
            others |= {
                "max_position_embeddings": sizes.max_length,
                "tie_word_embeddings": sizes.tied,
            }
        super().__init__(**others)
        import_module(
            "tape_exp.models.hf"
        )  # registers the model: not before, since it takes a second and every run gets here


AutoConfig.register(TapeExpConfig.model_type, TapeExpConfig, exist_ok=True)
