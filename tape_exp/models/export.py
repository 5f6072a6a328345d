"""Export of a decoder for transformers: a plain Llama where it is one, else a model of our type;
and of an adapter for the peft library, to be put onto a Llama in the format of transformers.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.models import peft
from tape_exp.models.decoder import Decoder
from tape_exp.models.llama import form_of, llama_config, llama_name, rope_parameters
from tape_exp.settings import plugins
from tape_exp.settings.errors import ConfigError

MOVED = "rope_parameters that from_pretrained must be given as in README.md, with any version"


def save(
    decoder: Decoder,
    folder: Path,
    tokenizer: Tokenizer | None,
    *,
    model: dict[str, Any],
    dtype: torch.dtype | None = None,
    name: str = "",
    describe: Callable[[str], str] = str,
    chat_template: str | None = None,
) -> None:
    """Write a model to a new folder by ``save_pretrained`` of transformers, with a ``README.md``
    that says how to load it and, with a tokenizer, its two files.

    A decoder with RoPE becomes a Llama, which ``LlamaForCausalLM.from_pretrained`` loads. Any other
    encoding makes a model of type ``tape_exp``, which ``AutoModelForCausalLM.from_pretrained``
    loads after ``import tape_exp.models.hf``. The folder is whole or absent.

    Args:
        decoder: with merged adapters, if it had any.
        model: the section ``model`` of the run's config, resolved.
        describe: makes the README from the lines that load the model by its ``name``.
    """
    from transformers import AutoModelForCausalLM

    from tape_exp.models.hf import TapeExpConfig

    form = form_of(decoder)
    dtype = dtype or decoder.embedding.weight.dtype
    config = llama_config(decoder) if form else TapeExpConfig(asdict(decoder.arch), model)
    if tokenizer is not None:
        ends = tokenizer.ends
        config.bos_token_id = tokenizer.bos
        config.eos_token_id = ends if ends[1:] else ends[0]
    with torch.device("meta"):  # it says what to write, and holds nothing
        exported = AutoModelForCausalLM.from_config(config, dtype=dtype)
    buffers = dict(decoder.named_buffers())  # which keep their precision
    weights = {}
    for key, value in decoder.state_dict().items():
        if key == "head.weight" and decoder.arch.tied:
            continue
        name_there = llama_name(key) if form else f"decoder.{key}"
        weights[name_there] = value.detach().to("cpu", value.dtype if key in buffers else dtype)
    with new_folder(folder) as temporary:
        exported.save_pretrained(temporary, state_dict=weights)
        text = describe(card(name or folder.name, form, model))
        (temporary / "README.md").write_text(text, encoding="utf-8")
        if tokenizer is not None:
            keys = {"model_max_length": decoder.arch.max_length, "chat_template": chat_template}
            _transformers_tokenizer(tokenizer, keys).save_pretrained(temporary)


def _transformers_tokenizer(tokenizer: Tokenizer, keys: dict[str, Any]) -> Any:
    """Return a tokenizer of transformers, with these keys besides its special tokens."""
    from transformers import PreTrainedTokenizerFast

    bos = tokenizer.backend.id_to_token(tokenizer.bos)
    eos = tokenizer.backend.id_to_token(tokenizer.eos)
    pad = eos
    named = tokenizer.named
    if named is not None:
        # What pads is masked in fine-tuning, and so would be an EOS that pads.
        pad = named.pad or eos
        # A BOS that only config.json names precedes documents, and is not the tokenizer's.
        if not (named.bos or tokenizer.begin):
            bos = None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **keys,
    )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to write to, which becomes ``folder`` at the end: it is whole or
    absent.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; name a new folder to export to.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield temporary
        for path in temporary.iterdir():
            path.chmod(0o644)
        temporary.chmod(0o755)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def card(name: str, form: str, model: dict[str, Any]) -> str:
    """Return the beginning of a model card: what it is, and how to load it by its ``name``;
    ``model`` may name classes of other authors' packages.
    """
    head = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    every = {**head, "tags": ["tape_exp", "positional-encoding", model["name"]]}
    packages = ", ".join(f"`{package}`" for package in ("tape_exp", *plugins.versions_of(model)))
    ours = "" if form else "import tape_exp.models.hf  # registers the type tape_exp\n"
    needs = "" if form else f"\nThis needs {packages}.\n"
    return f"""---
{yaml.safe_dump(every, sort_keys=False)}---
# {name}

A model of type `{form or "tape_exp"}`, exported by `tape-exp export`.

```python
{ours}from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({json.dumps(name, ensure_ascii=False)})
```
{needs}"""


def save_adapter(
    decoder: Decoder,
    folder: Path,
    base: str,
    name: str = "",
    describe: Callable[[str], str] = str,
    moved: bool = True,
) -> None:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and a ``README.md`` to a new
    folder: LoRA's matrices, and the embeddings and norms that were trained beside them.

    peft's config has no place for positions. Where training ``moved`` them, the base must be given
    ``rope_parameters`` as the README does; the config has them below a key that says so, since peft
    warns of keys that it does not know.

    Args:
        base: the Llama that the run began from, a folder or a name on the hub.
        describe: makes the README from the lines that load the adapter by its ``name``.
    """
    settings = getattr(decoder, "peft_config", {}).get("default")
    tensors = {name: p.detach().cpu().contiguous() for name, p in peft.trained(decoder)}
    if settings is None or not form_of(decoder):
        raise ConfigError(
            "--adapter is for LoRA on a Llama: model=rope peft=lora, longlora or theta."
        )
    if decoder.arch.tied and "embedding.weight" in tensors:
        raise ConfigError(
            "the run trained an embedding that is also the head, which peft keeps as two; leave "
            "--adapter out to export the whole model."
        )
    named = {llama_name(key).replace(".default.", "."): one for key, one in tensors.items()}
    parts = {key.rpartition(".")[0].rpartition(".") for key in named}
    config = replace(
        settings,
        target_modules=sorted({path.rpartition(".")[2] for path, _, n in parts if "lora_" in n}),
        modules_to_save=sorted({name for _, _, name in parts if "lora_" not in name}) or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    rope = rope_parameters(decoder)
    with new_folder(folder) as temporary:
        config.save_pretrained(str(temporary))
        if moved:
            path = temporary / "adapter_config.json"
            settings_of_peft = json.loads(path.read_text(encoding="utf-8")) | {MOVED: rope}
            path.write_text(json.dumps(settings_of_peft, indent=2) + "\n", encoding="utf-8")
        weights = {f"base_model.model.{key}": one for key, one in named.items()}
        save_file(weights, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
        readme = describe(_adapter_card(name or folder.name, base, rope))
        (temporary / "README.md").write_text(readme, encoding="utf-8")


def _adapter_card(name: str, base: str, rope: dict[str, Any]) -> str:
    return f"""---
library_name: peft
base_model: {json.dumps(base)}
---
# {name}

An adapter for the Llama `{base}`, exported by `tape-exp export`.

```python
from peft import AutoPeftModelForCausalLM

rope = {rope}
model = AutoPeftModelForCausalLM.from_pretrained({json.dumps(name)}, rope_parameters=rope)
```
"""
