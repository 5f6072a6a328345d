"""An adapter in the format of the peft library, for a Llama in that of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.export import is_plain_llama, llama_config, new_folder
from tape_exp.models.llama import llama_name
from tape_exp.settings.errors import ConfigError


def save_for_peft(
    decoder: Decoder,
    folder: Path,
    base: str,
    name: str = "",
    describe: Callable[[str], str] = str,
) -> None:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and a ``README.md`` to a new
    folder: LoRA's matrices, and the embeddings and norms that were trained beside them.

    Args:
        decoder: with its adapters in place.
        base: the Llama that the run began from, a folder or a name on the hub, as peft loads it.
        name: by which the README loads it; none: the folder's.
        describe: makes the README from the lines that load the adapter.

    Raises:
        ConfigError: the run has no LoRA, its model is no Llama, its embeddings are tied, or
            there is something in the folder.
    """
    settings = getattr(decoder, "peft_config", {}).get("default")
    tensors = peft.adapter(decoder)
    if settings is None or not is_plain_llama(decoder):
        raise ConfigError(
            "--adapter is for LoRA on a Llama: a run of model=rope with peft=lora, longlora or "
            "theta; leave it out to export the whole model."
        )
    if decoder.arch.tied and "embedding.weight" in tensors:
        raise ConfigError(
            "the run trained an embedding that is also the head, which peft keeps as two; leave "
            "--adapter out to export the whole model."
        )
    with new_folder(folder) as temporary:
        named = {llama_name(key).replace(".default.", "."): one for key, one in tensors.items()}
        _write_config(temporary, decoder, named, base)
        weights = {f"base_model.model.{key}": one for key, one in named.items()}
        save_file(weights, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
        (temporary / "README.md").write_text(describe(_card(decoder, name or folder.name, base)))


def _write_config(folder: Path, decoder: Decoder, named: dict[str, Tensor], base: str) -> None:
    """The library's own ``adapter_config.json``."""
    from peft import LoraConfig

    settings: Any = decoder.peft_config["default"]  # type: ignore[index]
    parts = {key.rpartition(".")[0].rpartition(".") for key in named}
    LoraConfig(
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=sorted({path.rpartition(".")[2] for path, _, n in parts if "lora_" in n}),
        modules_to_save=sorted({name for _, _, name in parts if "lora_" not in name}) or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    ).save_pretrained(str(folder))


def _card(decoder: Decoder, name: str, base: str) -> str:
    """How to load it: the positions of the base are changed as they were in training."""
    config = llama_config(decoder)
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    rope = json.dumps({**scaling, "rope_theta": config["rope_theta"]})
    return f"""---
library_name: peft
base_model: {json.dumps(base)}
---
# {name}

An adapter for the Llama `{base}`, exported by `tape-exp export`.

```python
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained({json.dumps(base)})
config.rope_parameters = {rope}
base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, config=config)
model = PeftModel.from_pretrained(base, {json.dumps(name)})
```
"""
