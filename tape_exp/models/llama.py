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
PARTS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
PARTS |= {part: f"self_attn.{part}_proj" for part in "qkvo"}
PARTS |= {part: f"self_attn.{part}" for part in ("q_norm", "k_norm")}
PARTS |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
# Keys of Scaling, and what transformers calls them, of each method that both have.
SCALED: dict[str, dict[str, str]] = {
    "linear": {},
    "yarn": {key: key for key in ("truncate", "beta_fast", "beta_slow")},
    "llama3": {"low_frequency": "low_freq_factor", "high_frequency": "high_freq_factor"},
    "dynamic": {},
    "longrope": {key: key for key in ("short_factor", "long_factor", "attention_factor")},
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
        keys = {each.name for each in fields(Arch)} - ({"qkv_bias"} if not self.qkv_bias else set())
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
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # of many kinds, its own for a wrong type among them
        why = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({why}); fetch it again.") from error
    choices: dict[str, tuple[Any, ...]] = {"model_type": FORMS, "hidden_act": ("silu", "swish")}
    biases = [key for key in ("attention_bias", "mlp_bias") if hasattr(type(config), key)]
    choices |= dict.fromkeys(biases, (False,)) | {"quantization_config": (None,)}
    for key, values in choices.items():
        if (found := getattr(config, key, values[0])) not in values:
            told = ", ".join(map(str, values))
            raise ConfigError(f"{path}: {key} is {found}; the decoder computes only {told}.")
    config.standardize_rope_params()  # as transformers' models do once more
    form = config.model_type
    heads = config.num_attention_heads
    width = config.hidden_size
    head_size = getattr(config, "head_dim", None) or width // heads
    window = None
    of_layers = {*(getattr(config, "layer_types", None) or ())}
    if form != "llama" and of_layers != {"full_attention"}:
        window = config.sliding_window
    if window and len(of_layers) > 1:
        raise ConfigError(f"{path}: only some layers have a window; the decoder gives it to all.")
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
        qkv_bias=form == "qwen2",
        qk_norm=True if form == "qwen3" else None,
        window=window,
        **_tokenizer(folder, config),
    )


def load(decoder: Decoder, folder: Path) -> None:
    """Give a decoder a checkpoint's weights, converted to its dtype, one tensor at a time; their
    names and shapes are exactly the decoder's, but for those of its positional encoding.
    """
    own = {llama_name(k): p.data for k, p in decoder.named_parameters() if ".position." not in k}
    twins = {"model.embed_tokens.weight", "lm_head.weight"} if decoder.arch.tied else set()
    own |= dict.fromkeys(twins, own["model.embed_tokens.weight"])
    lacking = set(own)
    if (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        told = (
            "%s: its weights are those of %s, as in transformers; %s and its files are left aside."
        )
        log.warning(told, folder, SINGLE, INDEX)
    if unfollowed := _unfollowed(folder):
        told = (
            "%s: its %s asks for %s, which transformers and with it lm-eval follow; answers here "
            "are the most likely tokens without it."
        )
        log.warning(told, folder, GENERATION, unfollowed)
    for path, name, stored in _stored(folder):
        if name.endswith("rotary_emb.inv_freq"):
            continue  # of old checkpoints: a function of theta
        if f"model.{name}" in own:  # of a model that was saved without its head
            name = f"model.{name}"
        shape = stored.get_shape()
        wanted = list(own[name].shape) if name in own else "absent"
        if shape != wanted:
            raise ConfigError(f"{path}: {name} is {shape}, but by config.json {wanted}.")
        again = name in twins and twins - lacking
        if again and not stored[:].to(own[name]).equal(own[name]):
            raise ConfigError(
                f"{folder}: its weights have an lm_head.weight that is not the embedding; set "
                '"tie_word_embeddings": false in its config.json.'
            )
        own[name].copy_(stored[:])
        lacking.discard(name)
    if lacking and not (twins > lacking):
        told = "fetch the model again"
        if lacking == {"lm_head.weight"}:
            told = 'set "tie_word_embeddings": true in its config.json if it is the embedding'
        raise ConfigError(f"{folder}: its weights lack {min(lacking)}; {told}.")


def _unfollowed(folder: Path) -> str:
    """What a checkpoint asks for where it generates and nothing here does, as ``key=value``."""
    path = folder / GENERATION
    if not path.is_file():
        return ""
    asked = json.loads(path.read_text(encoding="utf-8"))
    return ", ".join(
        f"{key}={asked[key]}"
        for key, usual in CHOOSES.items()
        if asked.get(key) not in (None, usual)
    )


def fingerprint(folder: Path) -> str:
    """A hash that names a checkpoint's weights, in however many files: of the config's sizes and
    positions, and of the name, type, shape and the 4 KB in the middle of every tensor.
    """
    config = read_config(folder)
    told = {}
    for _, name, stored in _stored(folder):
        dtype = stored.get_dtype()
        shape = tuple(stored.get_shape())
        described = f"{name} {TYPES.get(dtype, dtype)} {shape}"
        told[name] = described.encode() + _middle(stored, shape)
    sizes = repr(replace(config, bos=None, eos=None)) + str(config.window or "")
    return short_hash([sizes, *(told[name] for name in sorted(told))])


def llama_name(key: str) -> str:
    """The name in transformers of a weight: ``….self_attn.q_proj.weight`` for ``….q.weight``."""
    if key in OUTSIDE:
        return OUTSIDE[key]
    _, layer, part, rest = key.split(".", 3)
    return f"model.layers.{layer}.{PARTS[part]}.{rest}"


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
            told = f"{path} is cut short or damaged ({error}); fetch it again."
            raise ConfigError(told) from error


def _middle(stored: Any, shape: tuple[int, ...]) -> bytes:
    """The :data:`SAMPLE` bytes in the middle of a stored tensor, or all where there are fewer."""
    of_row = stored[:1].numel() * stored[:1].element_size()  # bytes
    first = max(of_row * shape[0] // 2 - SAMPLE // 2, 0)
    last = min(first + SAMPLE, of_row * shape[0])
    begin = first // of_row
    piece = stored[begin : -(-last // of_row)].flatten().view(torch.uint8).numpy().tobytes()
    return piece[first - begin * of_row : last - begin * of_row]


def _scaling(path: Path, config: Any, further: float) -> dict[str, Any]:
    """The keys of :class:`~tape_exp.models.positions.rope.Scaling`."""
    rope = config.rope_parameters
    longest = config.max_position_embeddings
    method = rope.get("rope_type", "default")
    if (part := rope.get("partial_rotary_factor", 1)) != 1:
        raise ConfigError(
            f"{path}: partial_rotary_factor is {part}; the decoder turns whole heads, as 1 does."
        )
    if method == "default":
        return {"method": "none"}
    if method not in SCALED:
        known = ", ".join(SCALED)
        raise ConfigError(f"{path}: the rope type {method} is not known; default, {known} are.")
    # As transformers has it: dynamic begins to stretch at max_position_embeddings.
    given = None if method == "dynamic" else rope.get("original_max_position_embeddings")
    original = given or longest
    factor = further * float(rope.get("factor") or longest / original)
    scaling: dict[str, Any] = {"method": method, "factor": factor}
    if method == "yarn":
        usual = 0.1 * math.log(factor) + 1
        given, m, of_all = map(rope.get, ("attention_factor", "mscale", "mscale_all_dim"))
        if given is None and m and of_all:
            given = (0.1 * m * math.log(factor) + 1) / (0.1 * of_all * math.log(factor) + 1)
        if given is not None and not math.isclose(given, usual, rel_tol=1e-6):
            scaling["attention_factor"] = float(given)
    for key, name in SCALED[method].items():
        value = getattr(Scaling, key) if rope.get(name) is None else rope[name]
        if isinstance(value, list):
            scaling[key] = [float(number) for number in value]
        elif value is not None and value is not True:
            scaling[key] = value if value is False else float(value)
    scaling |= {} if method == "linear" else {"original": int(original)}
    try:
        validate(Scaling, scaling, "")
    except ConfigError as error:
        told = str(error).replace("model.scaling.", "")
        for key, name in {**SCALED[method], "original": "original_max_position_embeddings"}.items():
            told = re.sub(rf"\b{key}\b", name, told)
        raise ConfigError(f"{path}: in rope_parameters or rope_scaling {told}") from error
    return scaling


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
        for kind, token in named.items():
            numbers = _listed(getattr(config, f"{kind}_token_id"))
            named[kind] = token if token is not None or not numbers else name(numbers[0])
        ends = config.eos_token_id
        if (folder / GENERATION).is_file():
            ends = GenerationConfig.from_pretrained(folder).eos_token_id
        stops = [token for token in map(name, _listed(ends)) if token not in (None, named["eos"])]
        whole, bare = (tokenizer("a", add_special_tokens=add).input_ids for add in (True, False))
        before = whole[: next(n for n in range(len(whole)) if whole[n : n + len(bare)] == bare)]
        begins = name(before)
        template = tokenizer.chat_template
    except Exception as error:  # the libraries raise bare exceptions
        told = f"the tokenizer in {folder} cannot be read ({error}); fetch it again."
        raise ConfigError(told) from error
    if begins[1:]:
        told = f"the tokenizer in {folder} begins a text with {' '.join(begins)}, and one token can"
        raise ConfigError(f"{told}; leave one in the post_processor of its tokenizer.json.")
    return {
        "bos": next(iter(begins), None) or named["bos"] or named["eos"],
        "eos": named["eos"],
        "add_bos": bool(begins),
        "stops": stops or None,
        "chat_template": template if isinstance(template, str) else None,
    }


def _listed(ids: int | list[int] | None) -> list[int]:
    """The ids of a key of transformers that has none, one or several."""
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def form_of(decoder: Decoder) -> str:
    """The type of transformers that computes the same; empty where none does."""
    attention, *others = [kind.attention for kind in decoder.kinds]
    arch = decoder.arch
    rope = type(decoder.blocks()[0].position) is RoPE
    if others or replace(attention, window=None, qk_norm=False) != PLAIN:
        return ""
    found = {"qwen2": arch.qkv_bias, "qwen3": attention.qk_norm, "mistral": attention.window}
    names = [name for name, has in found.items() if has] or ["llama"]
    return names[0] if rope and arch.width % arch.heads == 0 and len(names) == 1 else ""


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
