"""Llama checkpoints of the Hugging Face hub: config, weights (for a :class:`Decoder`) and name."""

import hashlib
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch

from tape_exp.data.sources import check_hub, hub_errors, hub_refusal
from tape_exp.models.decoder import Decoder
from tape_exp.models.stored import INDEX, SINGLE, files, read_json, tensors
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

FILES = ["config.json", "model*.safetensors", INDEX, "tokenizer*"]
OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
PARTS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
PARTS |= {part: f"self_attn.{part}_proj" for part in "qkvo"} | {
    part: f"mlp.{part}_proj" for part in ("gate", "up", "down")
}


@dataclass(frozen=True)
class Llama:
    """What a checkpoint's ``config.json`` and tokenizer say; sizes are those of :class:`Arch`."""

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
    scaling: dict[str, Any]  # keys of tape_exp.models.positions.rope.Scaling
    max_positions: int  # tokens
    bos: str | None
    eos: str | None
    dtype: torch.dtype

    def sizes(self) -> dict[str, Any]:
        """The keys of :class:`~tape_exp.settings.schema.Arch` that the checkpoint decides."""
        keys = {field.name for field in fields(Arch)}
        return {key: value for key, value in vars(self).items() if key in keys}


def is_llama(path: Path) -> bool:
    """Whether the path is a folder of a Hugging Face model: one with a ``config.json``."""
    return (path / "config.json").is_file()


def fetch(repository: str, what: str) -> Path:
    """The folder of a hub repository's config, weights and tokenizer, downloaded to the hub's cache
    if they are not there yet.

    Args:
        repository: as the hub names it, ``meta-llama/Llama-2-7b-hf``.
        what: the key that asks for it, for messages: ``checkpoint=meta-llama/Llama-2-7b-hf``.

    Raises:
        ConfigError: it is gated or missing, the hub cannot be reached, or it is not a Llama (which
            is known before its weights are fetched).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    instead = (
        f"{what.split('=')[0]}=<a folder with config.json, model*.safetensors and tokenizer.json> "
        "needs no network."
    )
    try:
        try:
            folder = Path(
                snapshot_download(repository, allow_patterns=FILES, local_files_only=True)
            )
            if all(
                path.is_file()
                for path in (folder / "config.json", folder / "tokenizer.json", *files(folder))
            ):
                return folder
        except (LocalEntryNotFoundError, ConfigError):
            pass  # nothing in the cache, or a download that was cut short
        check_hub(what, instead)
        read_config(Path(snapshot_download(repository, allow_patterns="config.json")))
        return Path(snapshot_download(repository, allow_patterns=FILES))
    except hub_errors() as error:
        raise ConfigError(f"{what}: {hub_refusal(repository, error)} {instead}") from error


def read_config(folder: Path) -> Llama:
    """The sizes and positions of a checkpoint, from the ``config.json`` of transformers 4 or 5.

    Raises:
        ConfigError: it is missing, damaged or incomplete, not of a Llama, or of one that the
            decoder does not compute.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no config.json; name the folder of a Llama, with config.json and "
            f"{SINGLE}."
        )
    config = read_json(path)
    kind = config.get("model_type")
    if kind != "llama":
        raise ConfigError(
            f"{path}: model_type is {kind}, which cannot be loaded; name a model whose model_type "
            "is llama."
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ConfigError(
                f"{path}: {key} is true, but the decoder has no biases; name a Llama without them."
            )
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(
            f"{path}: hidden_act is {config['hidden_act']}, the decoder has silu; name a Llama "
            "with it."
        )
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ConfigError(f"{path}: dtype is {dtype}; float32, float16 or bfloat16 can be loaded.")
    heads, width = _whole(path, config, "num_attention_heads"), _whole(path, config, "hidden_size")
    kv_heads = _whole(path, config, "num_key_value_heads", heads)
    head_size = _whole(path, config, "head_dim", width // heads)
    max_positions = _whole(path, config, "max_position_embeddings", 2048)
    theta, scaling = _rope(path, config, max_positions)
    return Llama(
        layers=_whole(path, config, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        head_size=None if head_size * heads == width else head_size,
        ffn=_whole(path, config, "intermediate_size"),
        vocab=_whole(path, config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        theta=theta,
        scaling=scaling,
        max_positions=max_positions,
        bos=_special(folder, config, "bos"),
        eos=_special(folder, config, "eos"),
        dtype=getattr(torch, dtype),
    )


def load(decoder: Decoder, folder: Path) -> None:
    """Give a decoder a checkpoint's weights, converted to its dtype, 16 MB at a time.

    Parameters of the positional encoding stay as they are: a Llama has none.

    Raises:
        ConfigError: a file is missing or cut short, or its keys and shapes are not exactly the
            decoder's.
    """
    # Old checkpoints also hold RoPE's frequencies, which are a function of theta.
    stored = {t.name: t for t in tensors(folder) if not t.name.endswith("rotary_emb.inv_freq")}
    wanted = {llama_name(k): p for k, p in decoder.named_parameters() if ".position." not in k}
    repeated = stored.pop("lm_head.weight", None) if decoder.arch.tied else None
    for name in sorted(stored.keys() | wanted.keys()):
        if name not in stored:
            raise ConfigError(
                f"{folder}: its weights lack {name}, which the decoder needs; fetch the model "
                "again."
            )
        where, shape = stored[name].file, stored[name].shape
        if name not in wanted:
            raise ConfigError(
                f"{where} holds {name}, which the decoder of its config.json lacks; name an "
                "unmodified Llama."
            )
        if shape != tuple(wanted[name].shape):
            raise ConfigError(
                f"{where}: {name} is {list(shape)}, but by config.json {list(wanted[name].shape)}; "
                "fetch both again."
            )
    with torch.no_grad():
        for tensor in stored.values():
            for rows, piece in tensor.pieces():
                wanted[tensor.name][rows].copy_(piece)
        if repeated is not None:
            embedding = decoder.embedding.weight
            for rows, piece in repeated.pieces():
                if not torch.equal(embedding[rows], piece.to(embedding)):
                    raise ConfigError(
                        f"{repeated.file}: lm_head.weight is not the embedding, though config.json "
                        "has tie_word_embeddings; set it to false there."
                    )


def fingerprint(folder: Path) -> str:
    """A hash that names a checkpoint's weights, wherever and in how many files they are.

    It is made from the config's sizes and positions, and from the name, type, shape and the 4 KB in
    the middle of every tensor.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    digest = hashlib.sha256(repr(replace(read_config(folder), bos=None, eos=None)).encode())
    for tensor in sorted(tensors(folder), key=lambda t: t.name):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.sample())
    return digest.hexdigest()[:16]


def llama_name(key: str) -> str:
    """The name in transformers of a weight: ``….self_attn.q_proj.weight`` for ``….q.weight``."""
    if key in OUTSIDE:
        return OUTSIDE[key]
    _, layer, part, rest = key.split(".", 3)
    return f"model.layers.{layer}.{PARTS[part]}.{rest}"


def _rope(path: Path, config: dict[str, Any], max_positions: int) -> tuple[float, dict[str, Any]]:
    """θ and the keys of Scaling, in the layout of transformers 5 or 4."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    method = rope.get("rope_type") or rope.get("type") or "default"
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1):
        raise ConfigError(
            f"{path}: partial_rotary_factor is not 1, but the decoder turns whole heads; name a "
            "Llama that does."
        )
    if method == "default":
        return theta, {"method": "none"}
    known = ("linear", "yarn", "llama3", "dynamic", "longrope")
    if method not in known:
        raise ConfigError(
            f"{path}: the rope type {method} is not known; default, {', '.join(known)} are."
        )
    # As transformers has it: dynamic begins to stretch at max_position_embeddings.
    original = (
        max_positions
        if method == "dynamic"
        else (
            config.get("original_max_position_embeddings")
            or rope.get("original_max_position_embeddings")
            or max_positions
        )
    )
    factor = rope.get("factor")
    if factor is None and method in ("yarn", "longrope"):
        factor = max_positions / original
    try:
        scaling: dict[str, Any] = {
            "method": method,
            "factor": float(rope["factor"] if factor is None else factor),
        }
        if method == "llama3":
            scaling |= {
                "low_frequency": float(rope["low_freq_factor"]),
                "high_frequency": float(rope["high_freq_factor"]),
            }
        if method == "longrope":
            scaling |= {
                key: [float(number) for number in rope[key]]
                for key in ("short_factor", "long_factor")
            }
            if rope.get("attention_factor") is not None:
                scaling["attention_factor"] = float(rope["attention_factor"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: the rope type {method} lacks a number ({error}); fetch the file again."
        ) from error
    if method == "yarn":
        magnitude = 0.1 * math.log(scaling["factor"]) + 1
        attention = rope.get("attention_factor")
        same = attention is None or math.isclose(attention, magnitude, rel_tol=1e-6)
        if (
            not same
            or rope.get("truncate", True) is not True
            or (attention is None and rope.get("mscale_all_dim"))
        ):
            raise ConfigError(
                f"{path}: its yarn has an attention_factor other than 0.1 ln factor + 1 = "
                f"{magnitude:.4f}, mscale_all_dim or truncate, which the decoder lacks; name a "
                "model without them."
            )
        scaling |= {
            "beta_fast": float(rope.get("beta_fast") or 32),
            "beta_slow": float(rope.get("beta_slow") or 1),
        }
    return theta, scaling if method == "linear" else scaling | {"original": int(original)}


def _special(folder: Path, config: dict[str, Any], kind: str) -> str | None:
    """The bos or eos token: from tokenizer_config.json, or by its id in config.json."""
    path = folder / "tokenizer_config.json"
    token = read_json(path).get(f"{kind}_token") if path.is_file() else None
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str):
        return token
    number = config.get(f"{kind}_token_id")
    number = number[0] if isinstance(number, list) and number else number
    path = folder / "tokenizer.json"
    if not isinstance(number, int) or not path.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path)).id_to_token(number)
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(
            f"{path} is not a tokenizer.json of the tokenizers library ({error}); fetch it again."
        ) from error


def _whole(path: Path, config: dict[str, Any], key: str, default: int | None = None) -> int:
    """A positive whole number of the config; null and absent give the default."""
    value = config.get(key) if config.get(key) is not None else default
    if value is None:
        raise ConfigError(f"{path} has no {key}; fetch the config.json again.")
    if type(value) is not int or value < 1:
        raise ConfigError(
            f"{path}: {key} is {value!r}, a positive whole number is expected; fetch the "
            "config.json again."
        )
    return value
