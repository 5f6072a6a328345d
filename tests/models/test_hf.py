"""Exported models: what transformers loads computes what the decoder computes, bit for bit, and
generates the same.
"""

import dataclasses
import re
from functools import partialmethod

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.machine.seeding import RowSampler
from tape_exp.models import export, llama
from tape_exp.models.conformance import randomise
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.hf import TapeExpConfig, TapeExpForCausalLM
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tests.conftest import MODELS, make_decoder
from tests.models.test_llama import ours

ROPES = ["rope", "rope_linear", "rope_ntk", "rope_theta", "rope_yarn"]
TOKENS = torch.randint(0, 14, (3, 20), generator=torch.Generator().manual_seed(0))
SHAPES = {
    "mha": {},
    "gqa": {"kv_heads": 2},
    "tied": {"tied": True},
    "head size": {"head_size": 16, "kv_heads": 1, "norm_eps": 1e-3},
}


def section(name: str, *overrides: str) -> dict:
    return OmegaConf.to_container(compose_config([f"model={name}", *overrides]).model, resolve=True)


def model_of(name: str, arch: Arch, *overrides: str, **changes) -> Decoder:
    """A decoder none of whose parameters is what it began as: TAPE's P and W2 are not zero."""
    model = make_decoder(name, dataclasses.replace(arch, **changes), *overrides).eval()
    randomise(model)
    return model


def exported(name: str, arch: Arch, folder, *overrides: str, dtype=None, **changes):
    decoder = model_of(name, arch, *overrides, **changes)
    model = section(name, *overrides)
    export.save(decoder, folder / "exported", None, model=model, dtype=dtype)
    return decoder, folder / "exported"


def ours_in(name: str, arch: Arch, **changes) -> tuple[Decoder, TapeExpForCausalLM]:
    """A decoder, and a model of transformers that has it."""
    decoder = model_of(name, arch, **changes)
    config = TapeExpConfig(dataclasses.asdict(decoder.arch), section(name))
    return decoder, TapeExpForCausalLM(config, decoder)


def prompts(*lengths: int):
    """Rows of those lengths, and the batch of them, padded on the left, with its mask."""
    rows = [TOKENS[k, :length] for k, length in enumerate(lengths)]
    batch, mask = (
        torch.full((len(rows), max(lengths)), 13),
        torch.zeros(len(rows), max(lengths), dtype=torch.long),
    )
    for k, row in enumerate(rows):
        batch[k, -len(row) :], mask[k, -len(row) :] = row, 1
    return rows, batch, mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["rope", "tape"])
def test_every_shape_reloads_bit_for_bit(name, shape, arch, tmp_path, monkeypatch):
    kind = LlamaForCausalLM if name == "rope" else TapeExpForCausalLM
    small = partialmethod(kind.save_pretrained, max_shard_size=4000)
    monkeypatch.setattr(kind, "save_pretrained", small)
    decoder, folder = exported(name, arch, tmp_path, **SHAPES[shape])
    assert len(list(folder.glob("*.safetensors"))) > 3
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert type(again) is kind
    stored = again.state_dict()
    for key, value in decoder.state_dict().items():
        assert stored[llama.llama_name(key) if name == "rope" else f"decoder.{key}"].equal(value)
    with torch.no_grad():
        difference = (again(TOKENS).logits - decoder(TOKENS)).abs().max()
    assert difference == 0 if name == "tape" else difference < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_reloads(name, arch, tmp_path):
    """Also what no file holds: ALiBi's slopes."""
    decoder, folder = exported(name, arch, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert isinstance(again, LlamaForCausalLM) == (name in ROPES)
    with torch.no_grad():
        expected = decoder(TOKENS, sampler=RowSampler(0, "positions"))
        assert (again(TOKENS).logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2, "tied": True, "norm_eps": 1e-6}], ids=str)
@pytest.mark.parametrize("scaling", ["llama3", "yarn", "linear", "dynamic", "longrope"])
def test_out_and_in_again(scaling, changes, arch, tmp_path):
    """Export, transformers, export by transformers, and back, beyond the original length."""
    words = [f"model.scaling.method={scaling}", "model.scaling.factor=8", "model.theta=1e3"]
    words += [] if scaling == "linear" else ["model.scaling.original=12"]
    if scaling == "longrope":
        words += [f"+model.scaling.{key}_factor=[1,2,3,4]" for key in ("short", "long")]
    if scaling == "yarn":
        words += ["+model.scaling.attention_factor=1.3", "+model.scaling.truncate=false"]
    decoder, folder = exported("rope", arch, tmp_path, *words, **changes)
    tokens = TOKENS.repeat(1, 2)
    with torch.no_grad():
        expected = decoder(tokens)
        theirs = LlamaForCausalLM.from_pretrained(folder)
        assert (theirs(tokens).logits - expected).abs().max() < 1e-4
        theirs.save_pretrained(tmp_path / "theirs")
        assert llama.fingerprint(tmp_path / "theirs") == llama.fingerprint(folder)
        for path in (folder, tmp_path / "theirs"):
            assert torch.equal(ours(path)(tokens), expected)


@pytest.mark.parametrize("name", ["fire", "randpe", "rope", "tape"])
def test_generation_is_our_own(name, arch):
    """Greedy, rows of different lengths, padded on the left, with a cache and without; EOS stops a
    row.
    """
    decoder, model = ours_in(name, arch, kv_heads=2)
    rows, batch, mask = prompts(5, 12, 1)
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 13}
    expected = generate(decoder, rows, 8, sampler=RowSampler(0, "positions"))
    for cached in (True, False):
        found = model.generate(batch, **options, use_cache=cached)
        assert found[:, 12:].tolist() == expected
    eos = expected[0][3]
    stopped = model.generate(batch, **options, eos_token_id=eos)[:, 12:].tolist()
    for row, free in zip(stopped, expected, strict=True):
        end = free.index(eos) if eos in free else 8
        assert row[:end] == free[:end]
        assert set(row[end + 1 :]) <= {13}
    assert len({tuple(row) for row in expected}) > 1


def test_a_row_that_is_padded_at_its_end_is_as_long_as_it_is(arch):
    """Dynamic frequencies depend on the length of a row, which padding is no part of."""
    words = ["model.scaling.method=dynamic"]
    decoder = model_of("rope", arch, *words)
    config = TapeExpConfig(dataclasses.asdict(decoder.arch), section("rope", *words))
    model = TapeExpForCausalLM(config, decoder)
    tokens = torch.randint(0, 14, (2, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[1, 30:] = 0
    found = model(tokens, attention_mask=mask).logits
    for row, length in ((0, 40), (1, 30)):
        alone = model(tokens[row : row + 1, :length]).logits[0]
        assert torch.allclose(found[row, :length], alone, atol=1e-5)
    assert not torch.allclose(model(tokens).logits[1, :30], found[1, :30], atol=1e-3)


def test_padding_on_either_side_changes_no_logit_and_no_gradient(arch):
    decoder, model = ours_in("tape", arch)
    gradients = []
    for left in (0, 4, 2):
        batch, mask = torch.full((2, 14), 13), torch.zeros(2, 14, dtype=torch.long)
        batch[:, left : left + 10], mask[:, left : left + 10] = TOKENS[:2, :10], 1
        labels = batch.masked_fill(mask == 0, -100)
        labels[:, left] = -100  # the first token follows nothing
        found = model(batch, attention_mask=mask, labels=labels)
        wanted = torch.nn.functional.cross_entropy(
            decoder(TOKENS[:2, :10])[:, :-1].flatten(0, 1), TOKENS[:2, 1:10].flatten()
        )
        assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-4)
        model.zero_grad()
        found.loss.backward()
        gradients.append(decoder.layers[0].q.weight.grad.clone())
    assert all(torch.allclose(gradient, gradients[0], atol=1e-5) for gradient in gradients)
    kept = model(TOKENS, logits_to_keep=3).logits
    assert torch.allclose(kept, model(TOKENS).logits[:, -3:])
    assert torch.allclose(model(TOKENS, logits_to_keep=1).logits, kept[:, -1:], atol=1e-5)


def test_tokenizer_and_special_tokens(tmp_path, text_folder, arch):
    text = Text("local", source="local", path=str(text_folder))
    tokenizer = Tokenization(vocab=300).make(text, tmp_path)
    for name in ("rope", "tape"):
        decoder = make_decoder(name, dataclasses.replace(arch, vocab=tokenizer.vocab))
        export.save(decoder, tmp_path / name, tokenizer, model=section(name))
        loaded = AutoTokenizer.from_pretrained(tmp_path / name)
        words = "w1 w2, Ünïcode 漢字\n"
        assert loaded(words).input_ids == [tokenizer.bos, *tokenizer.encode_documents([words])[0]]
        assert loaded.decode(loaded(words).input_ids, skip_special_tokens=True) == words
        assert (loaded.bos_token_id, loaded.eos_token_id) == (tokenizer.bos, tokenizer.eos)
        config = AutoConfig.from_pretrained(tmp_path / name)
        assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos, tokenizer.eos)
        batch = loaded(["w1", "w1 w2 w3"], return_tensors="pt", padding=True)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.generation_config.eos_token_id == tokenizer.eos
        assert model.generate(**batch, max_new_tokens=3).shape[0] == 2
    assert (llama.read_config(tmp_path / "rope").bos, llama.read_config(tmp_path / "rope").eos) == (
        "<s>",
        "</s>",
    )


def test_a_folder_is_whole_or_absent(arch, tmp_path, monkeypatch):
    decoder = make_decoder("tape", arch)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="full is there already; name a new folder"):
        export.save(decoder, tmp_path / "full", None, model=section("tape"))

    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(TapeExpForCausalLM, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export.save(decoder, tmp_path / "new", None, model=section("tape"))
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("name", ["rope", "tape"])
def test_an_exported_model_says_how_to_load_it(name, arch, tmp_path, monkeypatch):
    """What needs nothing of this project imports nothing of it."""
    decoder, folder = exported(name, arch, tmp_path)
    told = (folder / "README.md").read_text()
    (loads,) = re.findall(r"```python\n(.*?)```", told, re.DOTALL)
    assert ("import tape_exp.models.hf" in loads) == (name == "tape")
    monkeypatch.chdir(folder.parent)
    exec(loads, names := {})
    with torch.no_grad():
        assert (names["model"](TOKENS).logits - decoder(TOKENS)).abs().max() < 1e-4


def test_recomputed_blocks_have_the_same_gradients(arch):
    (_, model), gradients = ours_in("tape", arch), []
    for recomputed in (False, True):
        if recomputed:
            model.train().gradient_checkpointing_enable()
        model.zero_grad()
        model(TOKENS, labels=TOKENS).loss.backward()
        assert model.decoder.recompute == recomputed
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(*pair, atol=1e-7) for pair in zip(*gradients, strict=True))
