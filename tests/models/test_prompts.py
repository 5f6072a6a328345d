"""What a prompt is: requests of lm-eval to Llamas with all kinds of tokenizers, answered as its own
HFLM answers them with the tokenizer and the model that transformers reads in the same folder.
"""

import itertools
import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import tape_exp as te
from tape_exp.models import export, llama
from tape_exp.settings.errors import ConfigError
from tape_exp.training.on_device import OnDevice

pytest.importorskip("lm_eval", reason="lm-eval is an optional package")
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tape_exp.models.harness import Harness

LENGTH = 64
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<pad>"]
CHAT = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
CONTEXTS = {
    "plain": "Question: What is 3 + 4?\nAnswer:",
    "spaces": "A context that ends in spaces   ",
    "none": "",
    "long": "word " * 60,
    "chat": CHAT,
    "begun": "<s>Question: x",
    "only begun": "<s>",
    "ended": "A </s> B",
    "begun by another": "<|endoftext|>Question: x",
}
CONTINUATIONS = [" A", " seven", " ended</s>", "<|im_end|> and more words"]


def tokenizer(ordinary: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> Tokenizer:
    """Byte-level, with the special tokens, of which some are ordinary entries or absent."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    entries = [token for token in SPECIAL if token in ordinary]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=entries, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text * 20 for text in CONTEXTS.values() if "<" not in text], trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = []  # an ordinary entry is one of the vocabulary only
    made = Tokenizer.from_str(json.dumps(content))
    left = [token for token in SPECIAL if token not in ordinary and token not in absent]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in left])
    return made


def decoder_of(*tokens: str, first: int = 306) -> dict:
    """The key of a tokenizer_config.json that adds tokens."""
    told = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {str(first + n): {"content": t, "special": True, **told} for n, t in enumerate(tokens)}
    return {"added_tokens_decoder": added}


LLAMA = {"bos_token": "<s>", "eos_token": "</s>"}
IM = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
# The tokenizer's changes, its post_processor's BOS, tokenizer_config.json, and by config.json the
# tokens bos and eos.
FORMS = {
    "llama": ({}, "<s>", LLAMA, ("<s>", "</s>")),
    "named only": ({}, None, LLAMA, ("<s>", "</s>")),
    "qwen instruct": ({}, None, IM, ("<|endoftext|>", "<|im_end|>")),
    "qwen base": ({}, None, IM | {"eos_token": "<|endoftext|>"}, ("<|endoftext|>",) * 2),
    "pad alone": ({}, "<s>", LLAMA | {"pad_token": "<pad>"}, ("<s>", "</s>")),
    "null everywhere": ({}, None, {"bos_token": None, "eos_token": "</s>"}, (None, "</s>")),
    "absent keys": ({}, None, {"eos_token": "</s>"}, (None, "</s>")),
    "by config.json": ({}, None, {"bos_token": None, "eos_token": "</s>"}, ("<s>", "</s>")),
    "ordinary": ({"ordinary": ("<s>",)}, None, {"eos_token": "</s>"}, (None, "</s>")),
    "ordinary, named": ({"ordinary": ("<s>", "</s>")}, None, LLAMA, ("<s>", "</s>")),
    "eos added": (
        {"absent": ("<|im_end|>", "<|im_start|>")},
        None,
        {**IM, **decoder_of("<|im_end|>", "<|im_start|>", first=304)},
        ("<|endoftext|>", None),
    ),
}


def folder_of(name: str, folder: Path) -> Path:
    """A random Llama with a tokenizer of a form."""
    changes, begins, named, by_config = FORMS[name]
    made = tokenizer(**changes)
    if begins:
        special = [(begins, made.token_to_id(begins))]
        made.post_processor = processors.TemplateProcessing(
            single=f"{begins} $A", pair=f"{begins} $A $B", special_tokens=special
        )
    ids = [token and made.token_to_id(token) for token in by_config]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 320}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    config = AutoConfig.for_model("llama", **sizes, max_position_embeddings=LENGTH)
    config.bos_token_id, config.eos_token_id = ids
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast"} | named
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module", params=FORMS)
def both(request, tmp_path_factory) -> tuple[Harness, HFLM, HFLM]:
    """Our answers, those of HFLM, and those of HFLM that puts no BOS before a text."""
    folder = folder_of(request.param, tmp_path_factory.mktemp("llama"))

    def theirs(**options) -> HFLM:
        hf = AutoModelForCausalLM.from_pretrained(folder).eval()
        fast = AutoTokenizer.from_pretrained(folder)
        # Its cache of logits gives requests that are cut elsewhere the answers of others.
        options |= {"max_length": LENGTH, "batch_size": 1, "logits_cache": False}
        return HFLM(hf, tokenizer=fast, **options)

    return harness_of(folder), theirs(), theirs(add_bos_token=False)


def harness_of(folder: Path) -> Harness:
    words = [f"checkpoint={folder}", "task.windows.tokens=50", f"cache={folder}/cache"]
    decoder, task = te.build("rope", *words, task="perplexity")
    model = OnDevice(decoder.eval(), torch.device("cpu"))
    return Harness(model, task.tokenizer, LENGTH, 3, lambda items, _: items)


def requests(kind: str, arguments) -> list[Instance]:
    return [Instance(kind, {}, a, i, ("task", i, 1)) for i, a in enumerate(arguments)]


@pytest.mark.long
def test_prompts_are_cut_into_the_tokens_of_hflm(both):
    ours, theirs, _ = both
    found = {name: ours.tok_encode(text) for name, text in CONTEXTS.items()}
    assert found == {name: theirs.tok_encode(text) for name, text in CONTEXTS.items()}
    assert ours.prefix_token_id == theirs.prefix_token_id
    assert ours.eot_token_id == theirs.eot_token_id


def test_log_likelihoods_are_those_of_hflm(both):
    ours, theirs, _ = both
    asked = requests("loglikelihood", itertools.product(CONTEXTS.values(), CONTINUATIONS))
    found, expected = ours.loglikelihood(asked), theirs.loglikelihood(asked)
    assert [f[0] for f in found] == pytest.approx([e[0] for e in expected], abs=1e-3)
    assert [f[1] for f in found] == [e[1] for e in expected]


def test_rolling_log_likelihoods_are_those_of_hflm_but_for_bos_given_bos(both):
    ours, _, theirs = both
    asked = requests("loglikelihood_rolling", [("a word",), ("the longer text " * 20,), (CHAT,)])
    found = ours.loglikelihood_rolling(asked)
    assert found == pytest.approx(theirs.loglikelihood_rolling(asked), abs=1e-2)
    begun = ours.ids.backend.id_to_token(ours.ids.prefix) + "a word"
    assert ours.loglikelihood_rolling(requests("", [(begun,)])) == pytest.approx(found[:1])


TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "Answer:"},
]


@pytest.mark.parametrize("answers", [True, False])
def test_a_chat_is_written_as_hflm_writes_it(both, answers):
    """Where the assistant answers next, and where it has begun to."""
    ours, theirs, _ = both
    ours.template = theirs.tokenizer.chat_template = TEMPLATE
    turns = TURNS[:2] if answers else TURNS
    written = ours.apply_chat_template(turns, add_generation_prompt=answers)
    assert written == theirs.apply_chat_template(turns, add_generation_prompt=answers)
    assert ours.tok_encode(written) == theirs.tok_encode(written)


def test_a_chat_that_the_template_refuses_is_one_sentence(both):
    ours, *_ = both
    refuses = "{{ raise_exception('the system has no turn') }}"
    with pytest.raises(ConfigError, match=r"turns of system, user: the system has no turn\."):
        ours.ids.chat(refuses, TURNS[:2])


ANSWERS = [
    {"until": ["e"], "max_gen_toks": 12, "do_sample": False},
    {"until": [], "max_gen_toks": 60, "temperature": 0.0},  # most of the context
    {"until": "word", "max_new_tokens": 30, "do_sample": False, "temperature": 0.7, "top_p": 0.9},
    {"until": ["\n\n"], "max_gen_toks": 20, "num_beams": 1, "repetition_penalty": 1.0},
]


@pytest.mark.long
def test_answers_are_those_of_hflm(both):
    """Of all lengths: a context loses its beginning where an answer needs the room."""
    ours, theirs, _ = both
    texts = [CONTEXTS[name] for name in ("plain", "long", "chat", "begun")]
    asked = requests("generate_until", itertools.product(texts, ANSWERS))
    assert ours.generate_until(asked) == theirs.generate_until(asked)


REFUSED = {
    "repetition_penalty=1.5 in its generation_kwargs": {"repetition_penalty": 1.5},
    "num_beams=3": {"num_beams": 3},
    "do_sample=True": {"do_sample": True, "temperature": 0.7},
    "max_length=50": {"max_length": 50},
    "answers of up to 64 tokens .* 64 together; set task.longest=128": {"max_gen_toks": LENGTH},
    "answers of up to 256 tokens": {},  # lm-eval's default
    "max_gen_toks=0 .* at least 1 token": {"max_gen_toks": 0},
    r"max_gen_toks=8 and until=\[1\] .* texts end it": {"max_gen_toks": 8, "until": [1]},
}


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Harness:
    return harness_of(folder_of("llama", tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize("told", REFUSED)
def test_answers_that_are_not_given_as_asked_are_refused_by_name(told, harness):
    asked = requests("generate_until", [("Question", {"until": ["\n"], **REFUSED[told]})])
    with pytest.raises(ConfigError, match=f"a benchmark asks for {told}"):
        harness.generate_until(asked)


def test_halves_of_letters_in_a_prompt_are_those_of_a_corpus(harness):
    assert harness.tok_encode("a\ud83d b") == harness.tok_encode("a? b")


@pytest.mark.parametrize("pair", [("", ""), ("Question", ""), ("", "<s>")])
def test_an_empty_continuation_is_one_sentence(pair, harness):
    with pytest.raises(ConfigError, match="empty continuation, which has none; give every"):
        harness.loglikelihood(requests("loglikelihood", [pair]))


@pytest.mark.parametrize("form", ["qwen instruct", "pad alone", "llama"])
def test_special_tokens_go_through_a_run_and_an_export(form, tmp_path):
    """A run's folder and an exported one name what the Llama's own folder names."""
    folder = folder_of(form, tmp_path / "llama")
    words = ["task.windows.tokens=50", f"cache={tmp_path}"]
    decoder, task = te.build("rope", f"checkpoint={folder}", *words, task="perplexity")
    base, tokenizer = AutoTokenizer.from_pretrained(folder), task.tokenizer
    run = tmp_path / "run"
    run.mkdir()
    for name, content in task.assets().items():
        (run / name).write_text(content)
    kept = task.tokenization.load(run / "tokenizer.json")
    names = [(one.prefix, one.fingerprint, one.named.pad) for one in (kept, tokenizer)]
    assert names[0] == names[1]
    for number, made in enumerate((kept, tokenizer)):
        out = tmp_path / f"out{number}"
        export.save(decoder, out, made, model={"name": "rope"})
        again = AutoTokenizer.from_pretrained(out)
        pad = base.pad_token or base.eos_token
        assert (again.bos_token, again.eos_token) == (base.bos_token, base.eos_token)
        assert again.pad_token == pad
        assert again(CHAT).input_ids == base(CHAT).input_ids
        told, theirs = llama.read_config(out), llama.read_config(folder)
        assert (told.bos, told.eos, told.add_bos) == (theirs.bos, theirs.eos, theirs.add_bos)


def test_a_token_that_the_model_lacks_is_refused_in_a_prompt(harness):
    harness.ids.embedded, whole = 302, harness.ids.embedded
    try:
        with pytest.raises(ConfigError, match=r"says <pad>, the token 305 .* only 302 tokens"):
            harness.tok_encode("A <pad>")
    finally:
        harness.ids.embedded = whole


def test_an_eos_beyond_the_embedding_is_refused_with_the_way_out(tmp_path):
    folder = folder_of("eos added", tmp_path)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    content["added_tokens_decoder"] = decoder_of(*(f"<{n}>" for n in range(20)))[
        "added_tokens_decoder"
    ]
    content["eos_token"] = "<19>"
    path.write_text(json.dumps(content))
    assert llama.read_config(folder).eos == "<19>"
    with pytest.raises(ConfigError, match=r"needs 324 tokens, .* 320: .*resize_token_embeddings"):
        te.build("rope", f"checkpoint={folder}", f"cache={tmp_path}", task="perplexity")
