"""Checkpoints of the Hugging Face hub, for a :class:`Decoder`: config, weights and name.

"Llama" stands for every model of its form: Llama, TinyLlama, SmolLM and others of type ``llama``;
Mistral, whose queries see a window; Qwen2, whose queries, keys and values have biases; and Qwen3,
which normalises queries and keys.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tape_exp.data.hub import hub, reach
from tape_exp.models.decoder import Decoder
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
FILES = ["config.json", "model*.safetensors", INDEX, "tokenizer*"]
FILES += ["generation_config.json", "chat_template.jinja"]
OUTSIDE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
PARTS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
PARTS |= {part: f"self_attn.{part}_proj" for part in "qkvo"}
PARTS |= {part: f"self_attn.{part}" for part in ("q_norm", "k_norm")}
TYPES_OF_FORM = ("llama", "mistral", "qwen2", "qwen3")
PARTS |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
SCALED = ("linear", "yarn", "llama3", "dynamic", "longrope")
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SAMPLE = 4096  # bytes in the middle of a tensor, which a fingerprint is made of


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
    # whether its tokenizer begins a text with BOS; null: there is none
    add_bos: bool | None = field(default=None, repr=False)
    stops: list[str] | None = field(default=None, repr=False)  # what ends an answer besides EOS
    chat_template: str | None = field(default=None, repr=False)
    qkv_bias: bool = field(default=False, repr=False)
    # keys of model; null: as the config has them
    qk_norm: bool | None = field(default=None, repr=False)
    window: int | None = field(default=None, repr=False)  # tokens

    def sizes(self) -> dict[str, Any]:
        """The keys of :class:`~tape_exp.settings.schema.Arch` that the checkpoint decides."""
        keys = {each.name for each in fields(Arch)} - ({"qkv_bias"} if not self.qkv_bias else set())
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
    with hub(what, instead):
        try:
            here = snapshot_download(repository, allow_patterns=FILES, local_files_only=True)
            needed = (Path(here, "config.json"), Path(here, "tokenizer.json"), *files(Path(here)))
            if all(path.is_file() for path in needed):
                return Path(here)
        except (LocalEntryNotFoundError, ConfigError):
            pass  # nothing in the cache, or a download that was cut short
        reach()
        read_config(Path(snapshot_download(repository, allow_patterns="config.json")))
        return Path(snapshot_download(repository, allow_patterns=FILES))


def read_config(folder: Path) -> Llama:
    """The sizes and positions of a checkpoint, as transformers reads its ``config.json``.

    Raises:
        ConfigError: it is missing, damaged or incomplete, not of a Llama, or of one that the
            decoder does not compute.
    """
    from transformers import AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no config.json; name the folder of a Llama.")
    try:
        config: Any = AutoConfig.from_pretrained(folder)
    except Exception as error:  # of many kinds, its own for a wrong type among them
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({why}); fetch it again.") from error
    choices: dict[str, tuple[Any, ...]] = {
        "model_type": TYPES_OF_FORM,
        "hidden_act": ("silu", "swish"),
    }
    choices |= {"attention_bias": (False,), "mlp_bias": (False,), "quantization_config": (None,)}
    for key, values in choices.items():
        if (found := getattr(config, key, values[0])) not in values:
            told = ", ".join(map(str, values))
            raise ConfigError(f"{path}: {key} is {found}; the decoder computes only {told}.")
    config.standardize_rope_params()  # as transformers' models do once more
    heads, width = config.num_attention_heads, config.hidden_size
    head_size = getattr(config, "head_dim", None) or width // heads
    window = None if config.model_type == "llama" else config.sliding_window
    of_layers = {*(getattr(config, "layer_types", None) or ())}
    if window and len(of_layers) > 1:
        raise ConfigError(f"{path}: only some layers have a window; the decoder gives it to all.")
    words = _tokenizer(folder, config)
    return Llama(
        config.num_hidden_layers,
        width,
        heads,
        None if config.num_key_value_heads == heads else config.num_key_value_heads,
        None if head_size * heads == width else head_size,
        config.intermediate_size,
        config.vocab_size,
        bool(config.tie_word_embeddings),
        float(config.rms_norm_eps),
        float(config.rope_parameters["rope_theta"]),
        _scaling(path, config),
        config.max_position_embeddings,
        words.pop("bos"),
        words.pop("eos"),
        config.dtype or torch.float32,
        **words,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=True if config.model_type == "qwen3" else None,
        window=window if of_layers != {"full_attention"} else None,
    )


def load(decoder: Decoder, folder: Path) -> None:
    """Give a decoder a checkpoint's weights, converted to its dtype, one tensor at a time.

    Parameters of the positional encoding stay as they are: a Llama has none.

    Raises:
        ConfigError: a file is missing or cut short, or its keys and shapes are not exactly the
            decoder's.
    """
    own = {llama_name(k): p for k, p in decoder.named_parameters() if ".position." not in k}
    lacking, embedding, head = set(own), own["model.embed_tokens.weight"], None
    for path in files(folder):
        with _opened(path) as file, torch.no_grad():
            for name in file.keys():  # noqa: SIM118
                if name == "lm_head.weight" and decoder.arch.tied:
                    head = file.get_tensor(name).to(embedding.dtype)
                    continue
                # Old checkpoints also hold RoPE's frequencies, which are a function of theta.
                if name.endswith("rotary_emb.inv_freq"):
                    continue
                shape = file.get_slice(name).get_shape()
                wanted = list(own[name].shape) if name in own else "absent"
                if shape != wanted:
                    raise ConfigError(
                        f"{path}: {name} is {shape}, but by config.json {wanted}; they do not "
                        "belong together."
                    )
                own[name].copy_(file.get_tensor(name))
                lacking.discard(name)
    if head is not None and "model.embed_tokens.weight" in lacking:
        embedding.data.copy_(head)
        lacking.discard("model.embed_tokens.weight")
    elif head is not None and not torch.equal(head, embedding):
        raise ConfigError(
            f"{folder}: its weights have an lm_head.weight that is not the embedding; set "
            '"tie_word_embeddings": false in its config.json.'
        )
    if lacking == {"lm_head.weight"}:
        raise ConfigError(
            f"{folder}: its weights have no lm_head.weight. Where the head is the embedding, set "
            '"tie_word_embeddings": true in its config.json; else they are not of a language model.'
        )
    if lacking:
        raise ConfigError(f"{folder}: its weights lack {min(lacking)}; fetch the model again.")


def fingerprint(folder: Path) -> str:
    """A hash that names a checkpoint's weights, wherever and in how many files they are.

    It is made from the config's sizes and positions, and from the name, type, shape and the 4 KB in
    the middle of every tensor.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    digest = hashlib.sha256(repr(replace(read_config(folder), bos=None, eos=None)).encode())
    if (config := read_config(folder)).window:
        digest.update(str(config.window).encode())
    told = []
    for path in files(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                stored = file.get_slice(name)
                dtype, shape = stored.get_dtype(), tuple(stored.get_shape())
                described = f"{name} {TYPES.get(dtype, dtype)} {shape}"
                told.append((name, described.encode() + _middle(stored, shape)))
    for _, content in sorted(told):
        digest.update(content)
    return digest.hexdigest()[:16]


def llama_name(key: str) -> str:
    """The name in transformers of a weight: ``….self_attn.q_proj.weight`` for ``….q.weight``."""
    if key in OUTSIDE:
        return OUTSIDE[key]
    _, layer, part, rest = key.split(".", 3)
    return f"model.layers.{layer}.{PARTS[part]}.{rest}"


def files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, whether they exist or not."""
    if not (index := folder / INDEX).is_file():
        return [folder / SINGLE]
    try:
        names = json.loads(index.read_text())["weight_map"].values()
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} has no weight_map; fetch it again.") from error
    return sorted({folder / str(name) for name in names})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file. It is read, not mapped: the pages of a mapped file count as memory of
    this process, in addition to the weights.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path.parent} has no {path.name}; fetch the model again, or, where it has "
            "pytorch_model.bin, let transformers write it: from_pretrained, then save_pretrained."
        )
    try:
        with safe_open(path, "pt", backend="pread") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(f"{path} is cut short or damaged ({error}); fetch it again.") from error


def _middle(stored: Any, shape: tuple[int, ...]) -> bytes:
    """The :data:`SAMPLE` bytes in the middle of a stored tensor, or all where there are fewer."""
    of_row = stored[:1].numel() * stored[:1].element_size()  # bytes
    first = max(of_row * shape[0] // 2 - SAMPLE // 2, 0)
    last, begin = min(first + SAMPLE, of_row * shape[0]), first // of_row
    piece = stored[begin : -(-last // of_row)].flatten().view(torch.uint8).numpy().tobytes()
    return piece[first - begin * of_row : last - begin * of_row]


def _scaling(path: Path, config: Any) -> dict[str, Any]:
    """The keys of :class:`~tape_exp.models.positions.rope.Scaling`."""
    rope, longest = config.rope_parameters, config.max_position_embeddings
    method = rope.get("rope_type", "default")
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ConfigError(f"{path}: partial_rotary_factor is not 1; the decoder turns whole heads.")
    if method == "default":
        return {"method": "none"}
    if method not in SCALED:
        known = ", ".join(SCALED)
        raise ConfigError(f"{path}: the rope type {method} is not known; default, {known} are.")
    # As transformers has it: dynamic begins to stretch at max_position_embeddings.
    given = None if method == "dynamic" else rope.get("original_max_position_embeddings")
    original = given or longest
    factor = float(rope.get("factor") or longest / original)
    scaling: dict[str, Any] = {"method": method, "factor": factor}
    if method == "llama3":
        scaling["low_frequency"] = float(rope["low_freq_factor"])
        scaling["high_frequency"] = float(rope["high_freq_factor"])
    if method == "longrope":
        for key in ("short_factor", "long_factor"):
            scaling[key] = [float(number) for number in rope[key]]
        if rope.get("attention_factor") is not None:
            scaling["attention_factor"] = float(rope["attention_factor"])
    if method == "yarn":

        def magnitude(m: float = 1.0) -> float:
            return 0.1 * m * math.log(factor) + 1

        given, m, of_all = map(rope.get, ("attention_factor", "mscale", "mscale_all_dim"))
        if given is None and m and of_all:
            given = magnitude(m) / magnitude(of_all)
        if given is not None and not math.isclose(given, magnitude(), rel_tol=1e-6):
            scaling["attention_factor"] = float(given)
        if not rope.get("truncate", True):
            scaling["truncate"] = False
        scaling["beta_fast"] = float(rope.get("beta_fast") or 32)
        scaling["beta_slow"] = float(rope.get("beta_slow") or 1)
    return scaling if method == "linear" else scaling | {"original": int(original)}


def _tokenizer(folder: Path, config: Any) -> dict[str, Any]:
    """What :class:`Llama` has of the tokenizer: BOS, EOS and whether a text begins with BOS as
    transformers' tokenizer has them, or else by the ids in config.json; the other ids that end what
    ``generate`` of transformers writes; and the template of a chat. Without any BOS, EOS stands
    before documents and nothing before prompts.
    """
    from transformers import AutoTokenizer, GenerationConfig

    if not (folder / "tokenizer.json").is_file():
        return {"bos": None, "eos": None}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        name = tokenizer.convert_ids_to_tokens
        named = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
        for kind, token in named.items():
            numbers = _listed(getattr(config, f"{kind}_token_id"))
            named[kind] = token if token is not None or not numbers else name(numbers[0])
        ends = config.eos_token_id
        if (folder / "generation_config.json").is_file():
            ends = GenerationConfig.from_pretrained(folder).eos_token_id
        stops = [token for token in map(name, _listed(ends)) if token not in (None, named["eos"])]
        first = tokenizer("a").input_ids[:1]
        begins = first == [tokenizer.convert_tokens_to_ids(named["bos"])] if named["bos"] else False
        template = tokenizer.chat_template
    except Exception as error:  # the libraries raise bare exceptions
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); fetch it again."
        ) from error
    named["bos"] = named["bos"] or named["eos"]
    more = {
        "stops": stops or None,
        "chat_template": template if isinstance(template, str) else None,
    }
    return {**named, "add_bos": begins, **more}


def _listed(ids: int | list[int] | None) -> list[int]:
    """The ids of a key of transformers that has none, one or several."""
    return ids if isinstance(ids, list) else [] if ids is None else [ids]
