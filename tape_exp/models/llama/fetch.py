"""Checkpoints of the Hugging Face hub, as folders."""

from pathlib import Path

from tape_exp.data.hub import download
from tape_exp.models.llama.config import read_config
from tape_exp.models.llama.files import ADAPTER, CONFIG, GENERATION, INDEX, TOKENIZER, weight_files

WANTED = [
    CONFIG,
    ADAPTER,
    GENERATION,
    INDEX,
    "model*.safetensors",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template.jinja",
]


def fetch(repository: str, key: str) -> Path:
    """Return the folder of a hub repository's config, weights and tokenizer, downloaded to the
    hub's cache if they are not there yet; its config first, which says whether it is a Llama.

    Args:
        key: what asks for it, for messages: ``checkpoint=meta-llama/Llama-2-7b-hf``.
    """
    instead = (
        f"{key.split('=')[0]}=<a folder with config.json, model*.safetensors and tokenizer.json> "
        "needs no network."
    )

    def config_file(folder: Path) -> list[Path]:
        return [folder / CONFIG]

    def all_files(folder: Path) -> list[Path]:
        return [folder / TOKENIZER, *weight_files(folder)]

    read_config(download(repository, [CONFIG, ADAPTER], config_file, key, instead))
    return download(repository, WANTED, all_files, key, instead)
