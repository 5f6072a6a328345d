"""Checkpoints of Llama's form, and the decoder in the words of transformers.

"Llama" stands for every model of its form: Llama, TinyLlama, SmolLM and others of type ``llama``;
Mistral, whose queries see a window; Qwen2, whose queries, keys and values have biases; and Qwen3,
which normalises queries and keys.

- :mod:`~tape_exp.models.llama.fetch`: a checkpoint of the Hugging Face hub becomes a folder;
- :mod:`~tape_exp.models.llama.config`: what its ``config.json`` and its tokenizer say;
- :mod:`~tape_exp.models.llama.weights`: its weights go into a decoder, or make a fingerprint;
- :mod:`~tape_exp.models.llama.form`: the way back, the config of transformers of a decoder;
- ``names``, ``scaling``, ``tokenizer`` and ``files`` have what these share.
"""

from tape_exp.models.llama.config import Llama, read_config
from tape_exp.models.llama.fetch import fetch
from tape_exp.models.llama.files import INDEX, SINGLE
from tape_exp.models.llama.form import form_of, llama_config, sizes
from tape_exp.models.llama.names import llama_name
from tape_exp.models.llama.scaling import rope_parameters
from tape_exp.models.llama.weights import fingerprint, load

__all__ = [
    "INDEX",
    "SINGLE",
    "Llama",
    "fetch",
    "fingerprint",
    "form_of",
    "llama_config",
    "llama_name",
    "load",
    "read_config",
    "rope_parameters",
    "sizes",
]
