"""Llama checkpoints: the decoder's logits are transformers', and what is not such a checkpoint is
told in one sentence.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import tokenizers
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

import tape_exp as te
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.models import export, llama
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.runs import llama_base
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch


def rope(kind: str, theta: float = 1e4, original: int | None = 32, **more) -> dict:
    """The key of a config of transformers."""
    more |= {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
SHAPES = {
    "mha": {},
    "gqa": {"num_key_value_heads": 2},
    "mqa": {"num_key_value_heads": 1},
    "head_dim": {"head_dim": 16, "num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "eps": {"rms_norm_eps": 1e-3},
    "theta": rope("default", 5e5, None),
    "linear": rope("linear", original=None, factor=2.0),
    "yarn": rope("yarn", factor=4.0),
    "yarn betas": rope("yarn", 100.0, 64, factor=4.0, beta_fast=8, beta_slow=2),
    "yarn mscale": rope("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.2),
    "yarn attention": rope("yarn", factor=4.0, attention_factor=1.3, truncate=False),
    "yarn of one": rope("yarn", factor=1.0, attention_factor=1.3),
    "llama3": rope("llama3", 5e5, **LLAMA3),
    "dynamic": rope("dynamic", original=None, factor=4.0) | {"max_position_embeddings": 32},
    "longrope": rope("longrope", **LISTS),
}


def theirs(form: str = "llama", dtype: torch.dtype = torch.float32, **changes):
    """A random model of a form, far from uniform, with biases and gains of all sizes."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 300}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(form, **sizes | {"max_position_embeddings": 128} | changes)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(key.endswith("weight") + 0.3 * torch.randn_like(parameter))
    return model.eval().to(dtype)


def ours(folder: Path, dtype: torch.dtype = torch.float32, **changes) -> Decoder:
    """The decoder that a checkpoint's config makes, with its weights; positions of RoPE or of
    ``target``.
    """
    config = llama.read_config(folder)
    target = changes.pop("target", "rope.RoPE")
    model = {"_target_": f"tape_exp.models.positions.{target}"}
    model |= {"theta": config.theta, "scaling": config.scaling}
    arch = Arch(**config.arch | changes, max_length=128, train_length=128)
    decoder = Decoder(arch, partial(make_position, model), blank=True).to(dtype).eval()
    llama.load(decoder, folder)
    return decoder


def make_position(model: dict, arch: Arch):
    return build(model, "model", arch=arch)


def logits(model, length: int = 100) -> torch.Tensor:
    tokens = torch.randint(0, 250, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(tokens)
    return getattr(found, "logits", found)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A sharded Llama with grouped queries."""
    folder = tmp_path / "llama"
    theirs(num_key_value_heads=2).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def rewrite(folder: Path, **changes) -> Path:
    """The config with other values; None removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.mark.parametrize("target", ["rope.RoPE", "tape.TAPE"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(shape, target, tmp_path):
    """Both position encodings: TAPE begins as exactly RoPE."""
    model = theirs(**SHAPES[shape])
    model.save_pretrained(tmp_path)
    expected = logits(model)
    assert (logits(ours(tmp_path, target=target)) - expected).abs().max() < 1e-4
    assert expected.std() > 0.5


def test_shards_and_types(checkpoint):
    """Stored in bf16, loaded as fp32, and the other way round; the weights are exactly those that
    were stored.
    """
    expected = load_all(checkpoint)
    exact = ours(checkpoint).state_dict()
    assert all(torch.equal(exact[key], expected[llama.llama_name(key)]) for key in exact)
    rounded = ours(checkpoint, torch.bfloat16).state_dict()
    assert all(
        torch.equal(rounded[key], expected[llama.llama_name(key)].bfloat16()) for key in rounded
    )
    shutil.rmtree(checkpoint)
    theirs(dtype=torch.bfloat16, num_key_value_heads=2).save_pretrained(checkpoint)
    assert llama.read_config(checkpoint).dtype == torch.bfloat16
    widened = ours(checkpoint).state_dict()
    assert all(torch.equal(widened[key], rounded[key].float()) for key in widened)


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    return {
        key: value
        for file in folder.glob("*.safetensors")
        for key, value in load_file(file).items()
    }


def saved_over(folder: Path, first: str | None, then: str | None) -> Path:
    """A folder into which transformers saved one model over another, each in files of a size; the
    first one's files stay.
    """
    theirs(initializer_range=0.1).save_pretrained(folder, max_shard_size=first)
    kept = {path: path.read_bytes() for path in folder.glob("*.safetensors*")}
    theirs().save_pretrained(folder, max_shard_size=then)
    for path, content in kept.items():
        if not path.exists():
            path.write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("first", "then"), [("20KB", "1GB"), ("1GB", "20KB"), ("20KB", "20KB"), ("1GB", "1GB")]
)
@pytest.mark.parametrize("stale", ["whole", "index alone"])
def test_of_two_sets_of_weights_that_of_transformers_is_taken(first, then, stale, tmp_path, caplog):
    folder = saved_over(tmp_path, first, then)
    if stale == "index alone" and (folder / llama.SINGLE).exists():
        for shard in folder.glob("model-*.safetensors"):
            shard.unlink()
    expected = logits(LlamaForCausalLM.from_pretrained(folder).eval())
    assert (logits(ours(folder)) - expected).abs().max() < 1e-4
    told = f"its weights are those of {llama.SINGLE}, as in transformers; {llama.INDEX} and its"
    assert (told in caplog.text) == (first != then), "which are left aside"


def test_an_adapter_is_no_model_and_none_beside_one(tmp_path):
    """transformers puts it onto its base, so that the base by itself would be another model."""
    peft = pytest.importorskip("peft")
    base, alone = saved("llama", tmp_path / "base"), tmp_path / "alone"
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    adapted = peft.get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    for folder in (base, alone):
        adapted.save_pretrained(folder)
        with pytest.raises(ConfigError, match=r"holds an adapter .*merge_and_unload\(\)") as error:
            te.build("rope", f"checkpoint={folder}", task="c4")
        assert str(folder) in str(error.value)


def test_what_files_hold_besides(tmp_path):
    """Frequencies, and the head of a tied model, maybe instead of its embedding; another matrix is
    a head of its own, as in transformers.
    """
    model, file = theirs(tie_word_embeddings=True), tmp_path / "model.safetensors"
    model.save_pretrained(tmp_path)
    weights = load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    embedding = weights["model.embed_tokens.weight"]
    for head in (embedding.clone(), embedding.flip(0).contiguous()):
        save_file(weights | {"lm_head.weight": head}, file)
        if head.equal(embedding):
            assert (logits(ours(tmp_path)) - logits(model)).abs().max() < 1e-4
    with pytest.raises(ConfigError, match=r'"tie_word_embeddings": false'):
        ours(tmp_path)
    expected = LlamaForCausalLM.from_pretrained(rewrite(tmp_path, tie_word_embeddings=False))
    assert (logits(ours(tmp_path)) - logits(expected)).abs().max() < 1e-4
    del weights["model.embed_tokens.weight"]
    save_file(weights | {"lm_head.weight": embedding}, file)
    assert (
        logits(ours(rewrite(tmp_path, tie_word_embeddings=True))) - logits(model)
    ).abs().max() < 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_that_was_saved_without_its_head_is_what_transformers_reads(tied, tmp_path):
    model = theirs(tie_word_embeddings=tied)
    model.model.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    if tied:
        expected = logits(LlamaForCausalLM.from_pretrained(tmp_path).eval())
        assert (logits(ours(tmp_path)) - expected).abs().max() < 1e-4
        return
    with pytest.raises(ConfigError, match=r"lack lm_head.weight; set .*tie_word_embeddings"):
        ours(tmp_path)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"repetition_penalty": 1.3, "num_beams": 2}, "repetition_penalty=1.3, num_beams=2"),
        ({"repetition_penalty": 1.0, "do_sample": True, "temperature": 0.7, "top_k": 5}, ""),
    ],
)
def test_what_a_generation_config_asks_for_and_nothing_here_does_is_said(
    asked, told, checkpoint, caplog
):
    path = checkpoint / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    tokens = torch.tensor([[5, 6, 7]])
    theirs_too = LlamaForCausalLM.from_pretrained(checkpoint)
    found = theirs_too.generate(tokens, do_sample=False, max_new_tokens=16, eos_token_id=-1)
    decoder = ours(checkpoint)
    assert (f"asks for {told}, which" in caplog.text) == bool(told)
    same = generate(decoder, tokens, 16)[0] == found[0, 3:].tolist()
    assert same == (not told)


BOS_FIRST = processors.TemplateProcessing(single="<a> $A", special_tokens=[("<a>", 0)])


@pytest.mark.parametrize(
    ("settings", "ids", "processor", "expected"),
    [
        ({}, (1, [2, 0]), None, ("<b>", "<c>", False)),  # by config.json alone
        ({"bos_token": "<a>", "eos_token": "<b>"}, (2, 2), BOS_FIRST, ("<a>", "<b>", True)),
        ({"bos_token": "<a>", "eos_token": "<b>"}, (0, 1), None, ("<a>", "<b>", False)),
        ({"eos_token": "<b>"}, (None, 1), None, ("<b>", "<b>", False)),  # an ordinary <s> stays one
        ({"bos_token": "<c>", "eos_token": "<b>"}, (2, 1), BOS_FIRST, ("<a>", "<b>", True)),
    ],
)
def test_special_tokens_are_those_of_transformers(settings, ids, processor, expected, checkpoint):
    assert llama.read_config(checkpoint).bos is None
    vocabulary = {"<a>": 0, "<b>": 1, "<c>": 2, "a": 3, "<s>": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<c>"))
    if processor:
        tokenizer.post_processor = processor
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    rewrite(checkpoint, bos_token_id=ids[0], eos_token_id=ids[1])
    content = {"tokenizer_class": "PreTrainedTokenizerFast"} | settings
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(content))
    config = llama.read_config(checkpoint)
    assert (config.bos, config.eos, config.add_bos) == expected
    other = ["task.tokenizer.bos='<c>'", "+task.tokenizer.add_bos=true"]
    for words, wanted in (([], (expected[0], expected[2])), (other, ("<c>", True))):
        cfg = compose_config(["task=c4", "model=rope", f"checkpoint={checkpoint}", *words])
        told = llama_base.apply_llama_config(cfg, checkpoint).task.tokenizer
        assert (told.bos, told.add_bos) == wanted


def add_tokenizer(folder: Path, added: tuple[str, ...] = ()) -> Path:
    """A tokenizer of bytes beside a model, to which special tokens are added."""
    tokenizer = Tokenization("byte").make(Text("none"), folder).backend
    tokenizer.add_special_tokens([*added])
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.mark.long
def test_any_of_several_ends_stops_an_answer_as_in_transformers(tmp_path):
    """Of generation_config.json, which has precedence, or config.json; kept by an export."""
    folder = saved("llama", tmp_path / "base")
    ids = torch.randint(2, 258, (1, 20), generator=torch.Generator().manual_seed(1))
    model = LlamaForCausalLM.from_pretrained(folder)
    free = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)[0, 20:]
    third = int(free[4])
    (folder / "generation_config.json").unlink()
    rewrite(folder, eos_token_id=[1, third])
    for case in ("config.json", "generation_config.json"):
        if case == "generation_config.json":
            third = int(free[7])
            (folder / case).write_text(json.dumps({"eos_token_id": [1, third]}))
        decoder, task = te.build("rope", f"checkpoint={folder}", task="c4")
        model = LlamaForCausalLM.from_pretrained(folder)
        expected = model.generate(ids, max_new_tokens=20, do_sample=False)[0, 20:].tolist()
        assert third in expected[-1:]
        assert len(expected) < 20
        assert generate(decoder.eval(), [*ids], 20, task.stop_tokens) == [expected[:-1]]
    export.save(decoder, tmp_path / "out", task.tokenizer, model={"name": "rope"})
    again = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert again.generate(ids, max_new_tokens=20, do_sample=False)[0, 20:].tolist() == expected


FORMS = {
    "mistral": {"sliding_window": 16, "num_key_value_heads": 2},
    "mistral whole": {"sliding_window": None, "head_dim": 16, "num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen2 tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2 window": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen3 wide": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}


def saved(name: str, folder: Path) -> Path:
    """A random model of a form, with a tokenizer of bytes."""
    theirs(name.partition(" ")[0], **FORMS.get(name, {})).save_pretrained(folder)
    return add_tokenizer(folder)


def loaded(folder: Path):
    """The model of transformers in a folder, the decoder from there, and its task."""
    decoder, task = te.build("rope", f"checkpoint={folder}", task="c4")
    return AutoModelForCausalLM.from_pretrained(folder).eval(), decoder.eval(), task


@pytest.mark.parametrize("name", FORMS)
def test_models_of_llamas_form_have_the_logits_of_transformers(name, tmp_path):
    model, decoder, task = loaded(saved(name, tmp_path / "base"))
    expected = logits(model)
    assert (logits(decoder) - expected).abs().max() < 1e-4
    section = {"name": "rope", "_target_": "tape_exp.models.positions.rope.RoPE"}
    section |= {"qk_norm": "qwen3" in name, "window": decoder.kinds[0].attention.window}
    if "wide" not in name and "whole" not in name and name != "qwen2 window":
        export.save(decoder, tmp_path / "out", task.tokenizer, model=section)
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        assert again.config.model_type == name.partition(" ")[0]
        assert (logits(again) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("method", ["linear", "yarn", "llama3", "dynamic"])
@pytest.mark.parametrize("before", [1, 2])
def test_a_stretch_on_the_command_line_is_that_of_transformers(method, before, tmp_path):
    """Also of a model that is stretched already: the factors multiply."""
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if method == "llama3" else {}
    # transformers begins to stretch dynamic frequencies at max_position_embeddings
    more |= {} if method == "dynamic" else {"original_max_position_embeddings": 32}
    sizes = {"max_position_embeddings": 32}

    def stretched(factor):
        kind, factors = ("default", {}) if factor == 1 else (method, {"factor": float(factor)})
        return rope(kind, original=None, **factors, **(more if factors else {}))

    theirs(**sizes, **stretched(before)).save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    words = [f"checkpoint={tmp_path}", f"model.scaling.method={method}", "model.scaling.factor=3"]
    decoder, _ = te.build("rope", *words, task="c4")
    expected = logits(theirs(**sizes, **stretched(3 * before)))
    assert (logits(decoder.eval()) - expected).abs().max() < 1e-4
    if before > 1:
        with pytest.raises(ConfigError, match=r"scaling\.factor needs model\.scaling\.method"):
            te.build("rope", words[0], "model.scaling.factor=2", task="c4")
        with pytest.raises(ConfigError, match=f"stretched by {method} already"):
            te.build("rope", words[0], "model.scaling.method=ntk", task="c4")


@pytest.mark.parametrize(
    "more", [{"mscale": 0.7, "mscale_all_dim": 0.3}, {"attention_factor": 1.1}, {}], ids=str
)
def test_what_a_further_stretch_does_to_queries_is_that_of_transformers(more, tmp_path):
    """mscale makes the attention factor a function of the factor; a given one stays."""
    config = {"original_max_position_embeddings": 32, **more}
    theirs(**rope("yarn", factor=4.0, **config)).save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    words = ["model.scaling.method=yarn", "model.scaling.factor=2"]
    decoder, _ = te.build("rope", f"checkpoint={tmp_path}", *words, task="c4")
    expected = logits(theirs(**rope("yarn", factor=8.0, **config)))
    assert (logits(decoder.eval()) - expected).abs().max() < 1e-4


YARN = rope("yarn", factor=4.0)
UNHEEDED = [  # of a Llama, keys of the command line and what is told
    ({}, "model.theta=500000", r"model\.theta=500000 has no effect: .* it has 10000\.0\. Leave"),
    (rope("default", 5e5, None), "model.theta=10000", "it has 500000"),  # our own default
    ({}, "task.arch.layers=1", r"task\.arch\.layers=1 has no effect: .* it has 2"),
    ({}, "scale.language.arch.width=16", r"task\.arch\.width=16 has no effect: .* it has 32"),
    ({}, "+task.arch.tied=true", "it has false"),
    ({}, "task.tokenizer.kind=byte", "its own tokenizer comes with it"),
    (YARN, "model.scaling.method=none", "it has yarn"),
    (YARN, "model.scaling.method=yarn", r"method=yarn has no effect: .* by it already, 4 times"),
    (YARN, "model.scaling.original=64", r"original=64 has no effect: .* it has 32"),
]


@pytest.mark.parametrize(("changes", "word", "told"), UNHEEDED, ids=[one[1] for one in UNHEEDED])
def test_a_key_that_a_llama_decides_is_not_dropped_without_a_word(changes, word, told, tmp_path):
    theirs(**changes).save_pretrained(tmp_path)
    add_tokenizer(tmp_path, ("a",))
    words = ["task=perplexity", "model=rope", f"checkpoint={tmp_path}", word]
    with pytest.raises(ConfigError, match=told):
        llama_base.apply_llama_config(compose_config(words), tmp_path)


HEEDED = [  # keys of the command line that mean something, and the one that has their value
    ("task.arch.layers=2", "task.arch.layers", 2),  # which it has
    ("+model.window=8", "model.window", 8),  # which it leaves open
    ("task.tokenizer.bos='a'", "task.tokenizer.bos", "a"),
    ("task.tokenizer.eos='<s>'", "task.tokenizer.eos", "<s>"),
    ("model.scaling={method: yarn, factor: 2, original: 64}", "model.scaling.original", 64),
]


@pytest.mark.parametrize(("word", "key", "value"), HEEDED, ids=[one[0] for one in HEEDED])
def test_a_key_that_a_llama_leaves_open_is_heeded(word, key, value, tmp_path):
    theirs().save_pretrained(tmp_path)
    words = ["task=perplexity", "model=rope", f"checkpoint={add_tokenizer(tmp_path, ('a',))}", word]
    applied = llama_base.apply_llama_config(compose_config(words), tmp_path)
    assert OmegaConf.select(applied, key) == value
    assert "explicit_keys" not in applied


def test_bos_is_no_target_for_a_llama_that_nothing_is_trained_on(tmp_path):
    theirs().save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    words, start = ["task.windows.tokens=50", f"cache={tmp_path}"], f"checkpoint={tmp_path}"
    _, task = te.build("rope", start, *words, task="perplexity")
    assert task.unscored == task.tokenizer.bos
    for name, chosen in (("perplexity", "task.tokenizer.kind=byte"), ("c4", start)):  # trained here
        more = ["task.train_tokens=5000"] if name == "c4" else []
        assert te.build("rope", chosen, *words, *more, task=name)[1].unscored is None


def test_a_task_without_text_names_one_that_reads_it(checkpoint):
    with pytest.raises(ConfigError, match=r"is a Llama, which reads text, and task=arithmetic"):
        te.build("rope", f"checkpoint={checkpoint}")


LINEAR, TOP = {"type": "linear", "factor": 4.0}, {"original_max_position_embeddings": 32}
WINDOW = {"sliding_window": 16, "use_sliding_window": True, "layer_types": None}
WRITTEN = [  # config.json as other versions, or people, write it
    ("llama", {"rope_theta": 5e5, "rope_scaling": LINEAR}),
    (
        "llama",
        {**rope("default", 5e5, None), "rope_scaling": {"type": "yarn", "factor": 4.0, **TOP}},
    ),
    ("llama", {"rope_scaling": {"rope_type": "longrope", **LISTS}, **TOP}),
    ("qwen3", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5, **TOP}),
    ("llama", {**WINDOW, "hidden_act": "swish", "head_dim": None}),  # which has no windows
    ("mistral", WINDOW | {"use_sliding_window": False}),  # which has one, whatever this says
    ("qwen2", WINDOW | {"use_sliding_window": False}),
    ("qwen2", WINDOW | {"max_window_layers": 28}),  # from layer 28 of 2 on
    ("mistral", {"attention_bias": True}),  # which has no such key
]


@pytest.mark.parametrize(("form", "changes"), WRITTEN, ids=str)
def test_a_config_means_what_it_means_to_transformers(form, changes, tmp_path):
    folder = rewrite(saved(form, tmp_path), **{"rope_parameters": None} | changes)
    model, decoder, _ = loaded(folder)
    assert (logits(decoder) - logits(model)).abs().max() < 1e-3


def test_fingerprint_names_the_weights(checkpoint, tmp_path):
    name = llama.fingerprint(checkpoint)
    whole = tmp_path / "copy"
    theirs(num_key_value_heads=2).save_pretrained(whole)  # one file instead of many
    assert llama.fingerprint(whole) == name
    weights = load_file(whole / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"].neg_()
    save_file(weights, whole / "model.safetensors")
    changed = llama.fingerprint(whole)
    rewrite(checkpoint, rms_norm_eps=1e-4)
    assert len({name, changed, llama.fingerprint(checkpoint)}) == 3


BAD_CONFIGS = [
    ({"model_type": "gemma"}, r"config\.json: model_type is gemma; .* only llama, mistral"),
    ({"model_type": None}, r"config\.json cannot be read .*model_type"),
    ({"attention_bias": True}, "attention_bias is True; .* only False"),
    ({"hidden_act": "gelu"}, "hidden_act is gelu; .* only silu"),
    (rope("su"), "rope type su is not known; default, linear"),
    (rope("linear", factor=0.5), r"config\.json: in rope_parameters or rope_scaling factor=0\.5"),
    (
        rope("llama3", factor=4.0, low_freq_factor=4.0, high_freq_factor=1.0),
        r"config\.json: .*low_freq_factor must be below high_freq_factor",
    ),
    (rope("longrope", short_factor=[1.0]), "cannot be read .*longrope.*long_factor"),
    ({"partial_rotary_factor": 0.5}, r"config\.json: partial_rotary_factor is 0\.5"),
]


@pytest.mark.parametrize(("changes", "told"), BAD_CONFIGS, ids=[told for _, told in BAD_CONFIGS])
def test_configs_that_the_decoder_does_not_compute_are_refused(checkpoint, changes, told):
    with pytest.raises(ConfigError, match=told) as error:
        llama.read_config(rewrite(checkpoint, **changes))
    assert str(checkpoint) in str(error.value)
    assert "\n" not in str(error.value)


def test_damaged_weights_are_told(checkpoint):
    file = sorted(checkpoint.glob("*.safetensors"))[1]
    content, index = file.read_bytes(), checkpoint / "model.safetensors.index.json"
    for damaged, told in ((content[:-8], "not fully covered"), (b"", "")):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=rf"{file.name} is cut short or damaged \(.*{told}"):
            ours(checkpoint)
    file.unlink()
    with pytest.raises(ConfigError, match=rf"has no {file.name}; fetch the model again"):
        ours(checkpoint)
    index.write_text("{}")
    with pytest.raises(ConfigError, match=r"index\.json has no weight_map"):
        ours(checkpoint)
    index.unlink()
    with pytest.raises(ConfigError, match=r"has no model\.safetensors; fetch the model again"):
        ours(checkpoint)


def test_surplus_missing_and_misshapen_weights_are_told(tmp_path):
    theirs().save_pretrained(tmp_path)
    file, bias = tmp_path / "model.safetensors", "model.layers.0.self_attn.q_proj.bias"
    weights = load_file(file)
    for changed, told in (
        (weights | {bias: torch.zeros(32)}, rf"{bias} is \[32\], but by config\.json absent"),
        ({k: x for k, x in weights.items() if k != "lm_head.weight"}, "tie_word_embeddings"),
        (weights | {"model.norm.weight": torch.ones(31)}, r"is \[31\], but by config\.json \[32\]"),
    ):
        save_file(changed, file)
        with pytest.raises(ConfigError, match=told):
            ours(tmp_path)
