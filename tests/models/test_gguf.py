"""A GGUF file is the model that it was made of, and a broken one is told in one sentence."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import tape_exp as te
from tape_exp.models.gguf import converted
from tape_exp.models.llama import read_config
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError, missing_package

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")

SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NAMES |= {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}
NAMES |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm"}
NAMES |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
NAMES |= {"post_attention_layernorm": "ffn_norm", "model.layers.": "blk."}


def model_of(form="llama"):
    """A random model of transformers."""
    torch.manual_seed(0)
    made = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    config, model = made[form]
    return model(config(**SIZES)).eval()


def write(path, model, form="llama", quantised="F32", **fields):
    """A file as llama.cpp's converter writes it: its names, and the rows of a Llama's queries and
    keys in the order in which neighbours turn together.
    """
    made = gguf.GGUFWriter(path, form)
    config = model.config
    made.add_name("Tiny")
    made.add_context_length(config.max_position_embeddings)
    made.add_block_count(config.num_hidden_layers)
    made.add_embedding_length(config.hidden_size)
    made.add_feed_forward_length(config.intermediate_size)
    made.add_head_count(config.num_attention_heads)
    made.add_head_count_kv(config.num_key_value_heads)
    made.add_layer_norm_rms_eps(config.rms_norm_eps)
    made.add_rope_freq_base(20_000.0)
    made.add_vocab_size(config.vocab_size)
    for key, value in fields.items():
        add = made.add_string if isinstance(value, str) else made.add_uint32
        add(f"{form}.{key.replace('__', '.')}", value)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters += [f"<{n}>" for n in range(config.vocab_size - 3 - len(letters))] + ["ab"]
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("smollm")
    made.add_token_list(["<s>", "</s>", *letters])
    made.add_token_types([3, 3] + [1] * len(letters))
    made.add_token_merges(["a b"])
    made.add_bos_token_id(0)
    made.add_eos_token_id(1)
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if f"{part}.weight" in name and form == "llama":
                tensor = tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
        for theirs, its in NAMES.items():
            name = name.replace(theirs, its)
        data = tensor.float().numpy()
        kind = gguf.GGMLQuantizationType[quantised if tensor.ndim > 1 else "F32"]
        made.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


@pytest.mark.parametrize("form", ["llama", "qwen2"])
def test_logits_are_those_of_the_model_that_was_written(form, tmp_path):
    model = model_of(form)
    path = write(tmp_path / "tiny.gguf", model, form)
    model.config.rope_parameters["rope_theta"] = 20_000.0
    model = type(model)(model.config).eval()
    torch.manual_seed(0)
    model.load_state_dict(model_of(form).state_dict())
    words = ["task.lengths=[200]", "task.trials=1", f"checkpoint={path}", f"cache={tmp_path}/cache"]
    decoder, task = te.build("rope", *words, task="passkey")
    tokens = torch.randint(2, 300, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (decoder(tokens) - model(tokens).logits).abs().max() < 1e-4
    assert task.tokenizer.eos == 1


def test_quantised_weights_say_what_they_were(tmp_path):
    model = model_of()
    path = write(tmp_path / "tiny-Q8_0.gguf", model, quantised="Q8_0")
    folder = converted(path, tmp_path / "cache")
    assert folder.name == "tiny-from-Q8_0"
    loaded = LlamaForCausalLM.from_pretrained(folder)
    for (name, a), b in zip(model.named_parameters(), loaded.parameters(), strict=True):
        step = a.detach().abs().max() / 127
        assert (a - b).abs().max() <= step, name
    assert converted(path, tmp_path / "cache") == folder
    shutil.copy(path, tmp_path / "renamed.gguf")
    assert converted(tmp_path / "renamed.gguf", tmp_path / "cache") == folder, "the same content"


def test_a_folder_with_one_file_is_that_file(tmp_path):
    (tmp_path / "one").mkdir()
    path = write(tmp_path / "one" / "tiny.gguf", model_of())
    words = ["task=perplexity", f"cache={tmp_path}/cache"]
    assert (
        starting_checkpoint(compose_config([*words, f"checkpoint={path.parent}"])).name
        == "tiny-from-F32"
    )
    shutil.copy(path, path.with_name("other.gguf"))
    with pytest.raises(ConfigError, match=r"has 2 GGUF files: checkpoint=.*other\.gguf, check"):
        starting_checkpoint(compose_config([*words, f"checkpoint={path.parent}"]))
    with pytest.raises(ConfigError, match=r"missing\.gguf: there is no such file"):
        starting_checkpoint(compose_config([*words, f"checkpoint={path.parent}/missing.gguf"]))


REFUSED = {
    "rope__scaling__type": (
        "yarn",
        r"llama\.rope\.scaling\.type=yarn, which transformers does not",
    ),
    "attention__sliding_window": (16, r"llama\.attention\.sliding_window=16"),
    "expert_count": (4, r"llama\.expert_count=4"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_transformers_does_not_read_is_refused(key, tmp_path):
    value, told = REFUSED[key]
    path = write(tmp_path / "tiny.gguf", model_of(), **{key: value})
    with pytest.raises(ConfigError, match=told):
        converted(path, tmp_path / "cache")


def test_another_family_is_refused(tmp_path):
    path = write(tmp_path / "tiny.gguf", model_of(), form="gemma3")
    with pytest.raises(ConfigError, match="is of the family gemma3; the decoder knows llama"):
        converted(path, tmp_path / "cache")


@pytest.mark.parametrize("kept", [0, 3, 100, 5_000, -1])
def test_a_file_that_is_cut_short_is_one_sentence_and_leaves_nothing(kept, tmp_path):
    path = write(tmp_path / "tiny.gguf", model_of())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"tiny\.gguf is cut short.*; fetch it again"):
        converted(path, tmp_path / "cache")
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    path = write(tmp_path / "tiny.gguf", model_of())

    def full(self, folder, **_):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LlamaForCausalLM, "save_pretrained", full)
        with pytest.raises(ConfigError, match=r"cannot hold what is in .*No space left on device"):
            converted(path, tmp_path / "cache")
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]
    assert read_config(converted(path, tmp_path / "cache")).layers == 2


@pytest.mark.long
def test_a_killed_conversion_is_made_anew(tmp_path):
    """Killed after the weights and before the folder has its name."""
    path = write(tmp_path / "tiny.gguf", model_of())
    code = f"""
        import os, signal
        from pathlib import Path
        from tape_exp.models import gguf
        gguf.read_config = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
        gguf.converted(Path({str(path)!r}), Path({str(tmp_path / "cache")!r}))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=dict(os.environ))
    assert ended.returncode == -signal.SIGKILL
    assert [*(tmp_path / "cache").rglob("*.partial/model.safetensors")]
    folder = converted(path, tmp_path / "cache")
    assert folder.name == "tiny-from-F32"
    assert not [*(tmp_path / "cache").rglob("*.partial")]


def test_the_package_is_named_where_it_is_missing(tmp_path, monkeypatch):
    path = write(tmp_path / "tiny.gguf", model_of())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError) as error:
        converted(path, tmp_path / "cache")
    assert "pip install 'tape_exp[gguf]'" in missing_package(error.value)


def test_a_missing_model_says_how_it_comes(tmp_path):
    with pytest.raises(ConfigError, match=r"nor the folder of a run or a Llama\. `make smollm2`"):
        starting_checkpoint(compose_config(["task=passkey", "checkpoint=data/no/smollm2"]))
