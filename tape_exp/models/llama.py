"""Checkpoints of the Hugging Face hub, for a :class:`Decoder`: config, weights and name; and a
decoder's own config in the words of transformers.

"Llama" stands for every model of its form: Llama, TinyLlama, SmolLM and others of type ``llama``;
Mistral, whose queries see a window; Qwen2, whose queries, keys and values have biases; and Qwen3,
which normalises queries and keys.
"""

import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tape_exp.data.hub import download
from tape_exp.data.tokenizers import of_transformers
from tape_exp.machine.files import short_hash
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import PLAIN
from tape_exp.models.positions.rope import RoPE, Scaling
from tape_exp.settings.construct import validate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

log = logging.getLogger("tape_exp")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
FILES = [CONFIG, ADAPTER, "model*.safetensors", INDEX, "tokenizer*", "special_tokens_map.json"]
GENERATION = "generation_config.json"
FILES += [GENERATION, "chat_template.jinja"]
# Its keys that change a greedy answer, and the values that do not.
CHOOSES: dict[str, Any] = dict.fromkeys(
    ("repetition_penalty", "encoder_repetition_penalty", "num_beams"), 1
)
CHOOSES |= dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens"), 0)
CHOOSES |= dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"))
CHOOSES |= dict.fromkeys(("sequence_bias", "forced_bos_token_id", "guidance_scale"))
FORMS = ("llama", "mistral", "qwen2", "qwen3")
OUTSIDE = {
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
# Keys of Scaling, and what transformers calls them, of each method that both have.
SCALED: dict[str, dict[str, str]] = {
    "linear": {},
    "yarn": {"truncate": "truncate", "beta_fast": "beta_fast", "beta_slow": "beta_slow"},
    "llama3": {"low_frequency": "low_freq_factor", "high_frequency": "high_freq_factor"},
    "dynamic": {},
    "longrope": {
        "short_factor": "short_factor",
        "long_factor": "long_factor",
        "attention_factor": "attention_factor",
    },
}
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SAMPLE = 4096  # bytes in the middle of a tensor, which a fingerprint is made of


@dataclass(frozen=True)
class Llama:
    """What a checkpoint's config and tokenizer say; a fingerprint is made of what is shown."""

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

    @property
    def arch(self) -> dict[str, Any]:
        """The keys of :class:`~tape_exp.settings.schema.Arch` that the checkpoint decides."""
        keys = {field.name for field in fields(Arch)}
        if not self.qkv_bias:
            keys.discard("qkv_bias")
        return {key: value for key, value in vars(self).items() if key in keys}


def fetch(repository: str, what: str) -> Path:
    """The folder of a hub repository's config, weights and tokenizer, downloaded to the hub's cache
    if they are not there yet; its config first, which says whether it is a Llama. ``what`` is the
    key that asks for it, for messages: ``checkpoint=meta-llama/Llama-2-7b-hf``.
    """
    instead = (
        f"{what.split('=')[0]}=<a folder with config.json, model*.safetensors and tokenizer.json> "
        "needs no network."
    )
    read_config(download(repository, [CONFIG, ADAPTER], lambda x: [x / CONFIG], what, instead))
    return download(repository, FILES, lambda x: [x / "tokenizer.json", *files(x)], what, instead)


def read_config(folder: Path, further: float = 1.0) -> Llama:
    """The sizes and positions of a checkpoint, as transformers reads its ``config.json``; refused
    where the decoder does not compute them. Positions that are stretched are so by ``further``
    times their factor.
    """
    config = _config(folder)
    path = folder / CONFIG
    _require_computed(path, config)
    window = _window(path, config)
    config.standardize_rope_params()  # as transformers' models do once more
    heads = config.num_attention_heads
    width = config.hidden_size
    head_size = getattr(config, "head_dim", None) or width // heads
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
        scaling=_scaling(path, config, further),
        max_positions=config.max_position_embeddings,
        dtype=config.dtype or torch.float32,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=True if config.model_type == "qwen3" else None,
        window=window,
        **_tokenizer(folder, config),
    )


def _config(folder: Path) -> Any:
    """The config of transformers in a folder that holds a whole model."""
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
    """How many tokens a query sees; None: all before it."""
    layer_types = set(getattr(config, "layer_types", None) or ())
    if config.model_type == "llama" or layer_types == {"full_attention"}:
        return None
    window: int | None = config.sliding_window
    if window and len(layer_types) > 1:
        raise ConfigError(f"{path}: only some layers have a window; the decoder gives it to all.")
    return window


def load(decoder: Decoder, folder: Path) -> None:
    """Give a decoder a checkpoint's weights, converted to its dtype, one tensor at a time; their
    names and shapes are exactly the decoder's, but for those of its positional encoding.
    """
    weights = {}
    for key, parameter in decoder.named_parameters():
        if ".position." not in key:
            weights[llama_name(key)] = parameter.data
    tied = {"model.embed_tokens.weight", "lm_head.weight"} if decoder.arch.tied else set()
    for name in tied:
        weights[name] = weights["model.embed_tokens.weight"]
    _warn_of_leftovers(folder)
    lacking = set(weights)
    for path, name, stored in _stored(folder):
        if name.endswith("rotary_emb.inv_freq"):
            continue  # of old checkpoints: a function of theta
        if f"model.{name}" in weights:  # of a model that was saved without its head
            name = f"model.{name}"
        shape = stored.get_shape()
        wanted = list(weights[name].shape) if name in weights else "absent"
        if shape != wanted:
            raise ConfigError(f"{path}: {name} is {shape}, but by config.json {wanted}.")
        other_is_read = name in tied and bool(tied - lacking)
        if other_is_read and not stored[:].to(weights[name]).equal(weights[name]):
            raise ConfigError(
                f"{folder}: its weights have an lm_head.weight that is not the embedding; set "
                '"tie_word_embeddings": false in its config.json.'
            )
        weights[name].copy_(stored[:])
        lacking.discard(name)
    if lacking and not lacking < tied:  # of two tied ones one is enough
        advice = "fetch the model again"
        if lacking == {"lm_head.weight"}:
            advice = 'set "tie_word_embeddings": true in its config.json if it is the embedding'
        raise ConfigError(f"{folder}: its weights lack {min(lacking)}; {advice}.")


def _warn_of_leftovers(folder: Path) -> None:
    """Say what of a checkpoint's folder is not read, or not followed."""
    if (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        log.warning(
            "%s: its weights are those of %s, as in transformers; %s and its files are left aside.",
            folder,
            SINGLE,
            INDEX,
        )
    unfollowed = _unfollowed(folder)
    if unfollowed:
        log.warning(
            "%s: its %s asks for %s, which transformers and with it lm-eval follow; answers here "
            "are the most likely tokens without it.",
            folder,
            GENERATION,
            unfollowed,
        )


def _unfollowed(folder: Path) -> str:
    """What a checkpoint asks for where it generates and nothing here does, as ``key=value``."""
    path = folder / GENERATION
    if not path.is_file():
        return ""
    generation = json.loads(path.read_text(encoding="utf-8"))
    words = []
    for key, without_effect in CHOOSES.items():
        if generation.get(key) not in (None, without_effect):
            words.append(f"{key}={generation[key]}")
    return ", ".join(words)


def fingerprint(folder: Path) -> str:
    """A hash that names a checkpoint's weights, in however many files: of the config's sizes and
    positions, and of the name, type, shape and the 4 KB in the middle of every tensor.
    """
    config = read_config(folder)
    samples = {}
    for _, name, stored in _stored(folder):
        dtype = stored.get_dtype()
        shape = tuple(stored.get_shape())
        described = f"{name} {TYPES.get(dtype, dtype)} {shape}"
        samples[name] = described.encode() + _middle(stored, shape)
    sizes = repr(replace(config, bos=None, eos=None)) + str(config.window or "")
    return short_hash([sizes, *(samples[name] for name in sorted(samples))])


def llama_name(key: str) -> str:
    """The name in transformers of a weight: ``model.layers.0.self_attn.q_proj.weight`` of
    ``layers.0.q.weight``.
    """
    if key in OUTSIDE:
        return OUTSIDE[key]
    _, layer, module, parameter = key.split(".", 3)
    return f"model.layers.{layer}.{IN_BLOCK[module]}.{parameter}"


def files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, whether they exist or not: as in transformers
    the single one, and those of the index where there is none.
    """
    index = folder / INDEX
    if (folder / SINGLE).is_file() or not index.is_file():
        return [folder / SINGLE]
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} has no weight_map; fetch it again.") from error
    return sorted({folder / str(name) for name in names})


def _stored(folder: Path) -> Iterator[tuple[Path, str, Any]]:
    """File, name and slice of each tensor. Files are read, not mapped: the pages of a mapped one
    count as memory of this process, in addition to the weights.
    """
    for path in files(folder):
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no {path.name}; fetch the model again. transformers makes it of a "
                "pytorch_model.bin: from_pretrained, then save_pretrained."
            )
        try:
            with safe_open(path, "pt", backend="pread") as file:
                yield from ((path, name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise ConfigError(
                f"{path} is cut short or damaged ({error}); fetch it again."
            ) from error


def _middle(stored: Any, shape: tuple[int, ...]) -> bytes:
    """The :data:`SAMPLE` bytes in the middle of a stored tensor, or all where there are fewer."""
    row_size = stored[:1].numel() * stored[:1].element_size()  # bytes
    first = max(row_size * shape[0] // 2 - SAMPLE // 2, 0)
    last = min(first + SAMPLE, row_size * shape[0])
    first_row = first // row_size
    last_row = -(-last // row_size)
    rows = stored[first_row:last_row].flatten().view(torch.uint8).numpy().tobytes()
    return rows[first - first_row * row_size : last - first_row * row_size]


def _scaling(path: Path, config: Any, further: float) -> dict[str, Any]:
    """The keys of :class:`~tape_exp.models.positions.rope.Scaling`."""
    rope = config.rope_parameters
    method = rope.get("rope_type", "default")
    turned = rope.get("partial_rotary_factor", 1)
    if turned != 1:
        raise ConfigError(
            f"{path}: partial_rotary_factor is {turned}; the decoder turns whole heads, as 1 does."
        )
    if method == "default":
        return {"method": "none"}
    if method not in SCALED:
        raise ConfigError(
            f"{path}: the rope type {method} is not known; default, {', '.join(SCALED)} are."
        )
    original = longest = config.max_position_embeddings
    if method != "dynamic":  # which, as transformers has it, begins to stretch there
        original = rope.get("original_max_position_embeddings") or longest
    factor = further * float(rope.get("factor") or longest / original)
    scaling: dict[str, Any] = {"method": method, "factor": factor}
    if method == "yarn":
        attention_factor = _yarn_attention_factor(rope, factor)
        if attention_factor is not None:
            scaling["attention_factor"] = attention_factor
    for key, name in SCALED[method].items():
        value = getattr(Scaling, key) if rope.get(name) is None else rope[name]
        if isinstance(value, list):
            scaling[key] = [float(number) for number in value]
        elif value is not None and value is not True:
            scaling[key] = value if value is False else float(value)
    if method != "linear":
        scaling["original"] = int(original)
    _require_valid(path, scaling)
    return scaling


def _yarn_attention_factor(rope: dict[str, Any], factor: float) -> float | None:
    """What YaRN multiplies q and k by, where it is not 0.1 ln s + 1."""
    default = 0.1 * math.log(factor) + 1
    number = rope.get("attention_factor")
    m = rope.get("mscale")
    m_all_dim = rope.get("mscale_all_dim")
    if number is None and m and m_all_dim:
        number = (0.1 * m * math.log(factor) + 1) / (0.1 * m_all_dim * math.log(factor) + 1)
    if number is None or math.isclose(number, default, rel_tol=1e-6):
        return None
    return float(number)


def _require_valid(path: Path, scaling: dict[str, Any]) -> None:
    """Raise :class:`ConfigError`, in the words of transformers, where numbers do not fit."""
    try:
        validate(Scaling, scaling, "")
    except ConfigError as error:
        sentence = str(error).replace("model.scaling.", "")
        names = {**SCALED[scaling["method"]], "original": "original_max_position_embeddings"}
        for key, name in names.items():
            sentence = re.sub(rf"\b{key}\b", name, sentence)
        raise ConfigError(f"{path}: in rope_parameters or rope_scaling {sentence}") from error


def _tokenizer(folder: Path, config: Any) -> dict[str, Any]:
    """What :class:`Llama` has of the tokenizer. BOS is the token that it begins a text with; else
    BOS, as EOS, is that of transformers' tokenizer or by its id in config.json. Without any, EOS
    stands before documents and nothing before prompts.
    """
    from transformers import GenerationConfig

    if not (folder / "tokenizer.json").is_file():
        return {"bos": None, "eos": None}
    tokenizer = of_transformers(folder)
    try:
        name = tokenizer.convert_ids_to_tokens
        named = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
        for kind in named:
            numbers = _listed(getattr(config, f"{kind}_token_id"))
            if named[kind] is None and numbers:
                named[kind] = name(numbers[0])
        ends = config.eos_token_id
        if (folder / GENERATION).is_file():
            ends = GenerationConfig.from_pretrained(folder).eos_token_id
        stops = [token for token in map(name, _listed(ends)) if token not in (None, named["eos"])]
        begins = name(_before_text(tokenizer))
        template = tokenizer.chat_template
    except Exception as error:  # the libraries raise bare exceptions
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); fetch it again."
        ) from error
    if begins[1:]:
        raise ConfigError(
            f"the tokenizer in {folder} begins a text with {' '.join(begins)}, and one token can; "
            "leave one in the post_processor of its tokenizer.json."
        )
    return {
        "bos": next(iter(begins), None) or named["bos"] or named["eos"],
        "eos": named["eos"],
        "add_bos": bool(begins),
        "stops": stops or None,
        "chat_template": template if isinstance(template, str) else None,
    }


def _before_text(tokenizer: Any) -> list[int]:
    """The ids that a tokenizer of transformers puts before a text."""
    bare = tokenizer("a", add_special_tokens=False).input_ids
    ids: list[int] = tokenizer("a", add_special_tokens=True).input_ids
    begin = next(n for n in range(len(ids)) if ids[n : n + len(bare)] == bare)
    return ids[:begin]


def _listed(ids: int | list[int] | None) -> list[int]:
    """The ids of a key of transformers that has none, one or several."""
    if ids is None:
        return []
    return ids if isinstance(ids, list) else [ids]


def form_of(decoder: Decoder) -> str:
    """The type of transformers that computes the same; empty where none does."""
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
    """The config of transformers of a decoder that has a :func:`form_of` Llama."""
    from transformers import AutoConfig

    arch = decoder.arch
    form = form_of(decoder)
    rope = rope_parameters(decoder)
    more = sizes(arch) | {"max_position_embeddings": max(arch.max_length, arch.train_length)}
    if rope["rope_type"] == "dynamic":  # transformers begins to stretch there
        more["max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    if form == "mistral":
        more["sliding_window"] = decoder.kinds[0].attention.window
    more |= {"bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(form, **more, rms_norm_eps=arch.norm_eps, rope_parameters=rope)


def sizes(arch: Arch) -> dict[str, Any]:
    """The sizes of a decoder in the words of transformers."""
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


def rope_parameters(decoder: Decoder) -> dict[str, Any]:
    """The positions at evaluation, as transformers has them; NTK's are the base they amount to."""
    position = decoder.blocks()[0].position
    assert isinstance(position, RoPE)
    scaling = position.scaling
    s = position.stretch
    if scaling.method in ("none", "ntk"):
        theta = position.base(s) if scaling.method == "ntk" else position.theta
        return {"rope_type": "default", "rope_theta": theta}
    rope: dict[str, Any] = {"rope_type": scaling.method, "rope_theta": position.theta, "factor": s}
    if scaling.method != "linear":
        rope["original_max_position_embeddings"] = position.original_length
    for key, name in SCALED[scaling.method].items():
        value = getattr(scaling, key)
        rope[name] = [*value] if isinstance(value, tuple) else value
    if scaling.method in ("yarn", "longrope"):
        rope["attention_factor"] = position.attention_factor
    return rope
