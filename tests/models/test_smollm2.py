"""SmolLM2-135M-Instruct, where `make smollm2` has brought it: what a published model of language
gives here and in the libraries that people use.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tape_exp as te
from tape_exp import export
from tape_exp.models import llama
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import generate
from tape_exp.models.harness import Harness
from tape_exp.models.head import TokenNll
from tape_exp.models.peft import Lora
from tape_exp.runs.starting_weights import starting_checkpoint
from tape_exp.settings.compose import compose_config
from tape_exp.settings.folders import ROOT
from tape_exp.tasks.lm_eval_tasks import metrics_of, results_of
from tape_exp.training.on_device import OnDevice

PLACE = ROOT / "data" / "smollm2"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not [*PLACE.glob("*.gguf")], reason="`make smollm2` has not been run"),
]
PAGE = """The old lighthouse stood at the end of the pier, where fishermen mended their nets. In
winter the waves broke over the wall and the keeper, who was called Ellen, lit the lamp at four. """


@pytest.fixture(scope="module")
def folder():
    """The model in Hugging Face's format, converted into the cache of the clone."""
    return starting_checkpoint(
        compose_config(["task=perplexity", f"checkpoint={PLACE}", f"cache={ROOT}/cache"])
    )


@pytest.fixture(scope="module")
def pair(folder):
    """The model here, loaded, and in transformers."""
    decoder, task = te.build("rope", f"checkpoint={folder}", "task.lengths=[512]", task="passkey")
    llama.load(decoder, folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return decoder.eval(), theirs.eval(), task


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def test_logits_and_gradients_are_those_of_transformers(pair, tokenizer):
    ours, theirs, _ = pair
    tokens = torch.tensor([tokenizer(PAGE * 3).input_ids])
    a = ours(tokens, output=TokenNll(tokens)).mean()
    b = torch.nn.functional.cross_entropy(theirs(tokens).logits[0], tokens[0])
    assert abs(a - b) < 1e-5 * abs(b)
    for model, loss in ((ours, a), (theirs, b)):
        model.zero_grad()
        loss.backward()
    own = {llama.llama_name(name): p.grad for name, p in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        largest = parameter.grad.abs().max()
        assert (own[name] - parameter.grad).abs().max() < 1e-3 * largest + 1e-7, name
    for model in (ours, theirs):
        model.zero_grad(set_to_none=True)


def test_answers_are_those_of_generate(pair, tokenizer):
    """In the form of a chat, until the end of a turn, of different lengths in a batch."""
    ours, theirs, task = pair
    asked = ["What is the capital of France?", "Name three colours, and nothing else."]
    turns = [[{"role": "user", "content": text}] for text in asked]
    written = [
        tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        for turn in turns
    ]
    prompts = [task.encode(text) for text in written]
    answers = generate(ours, prompts, 24, task.stop_tokens)
    for text, prompt, answer in zip(written, prompts, answers, strict=True):
        assert prompt == tokenizer(text).input_ids
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        found = theirs.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)
        expected = found[0, len(prompt) :].tolist()
        ended = expected.index(task.eos) if task.eos in expected else len(expected)
        assert answer == expected[:ended]
    assert "Paris" in task.decode(answers[0])


def test_log_likelihoods_are_those_of_hflm(pair, folder, tokenizer):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    ours, theirs, task = pair
    pairs = [("The capital of France is", " Paris"), ("Two and two make", " four"), ("", "Once")]
    pairs += [(PAGE, "Then the ship was seen.")]
    requests = [Instance("loglikelihood", {}, given, n) for n, given in enumerate(pairs)]
    expected = HFLM(pretrained=theirs, tokenizer=tokenizer, device="cpu").loglikelihood(requests)
    model = OnDevice(ours, torch.device("cpu"))
    harness = Harness(model, task.tokenizer, 512, 3, lambda items, _: items)
    found = harness.loglikelihood(requests)
    for (a, greedy), (b, theirs_greedy) in zip(found, expected, strict=True):
        assert a == pytest.approx(b, abs=1e-3)
        assert greedy == theirs_greedy


def test_questions_in_its_chat_template_get_hflms_scores(folder, tokenizer, pair, tmp_path):
    from lm_eval.models.huggingface import HFLM

    ours, theirs, _ = pair
    words = [f"checkpoint={folder}", "task.source=builtin", "task.chat=true", f"cache={tmp_path}"]
    words += ["task.tasks=[arc_easy,mmlu_ages]"]
    _, task = te.build("rope", *words, task="benchmarks")
    model = OnDevice(ours, torch.device("cpu"))
    harness = Harness(model, task.tokenizer, 512, 8, lambda items, _: items, task.template)
    hf = HFLM(pretrained=theirs, tokenizer=tokenizer, device="cpu", batch_size=8)
    found = results_of(harness, task.loaded, limit=3, chat=True)
    expected = results_of(hf, task.loaded, limit=3, chat=True)
    for name, result in expected.items():
        assert metrics_of(found[name]) == metrics_of(result)


def test_keys_are_found_at_512_tokens(folder, tmp_path):
    words = {"task.lengths": "[512]", "task.trials": 4, "task.rows_per_batch": 4}
    run = te.train(
        task="passkey", model="rope", checkpoint=folder, quiet=True, **words, **at(tmp_path)
    )
    assert run.record["metrics"]["passkey/accuracy@512"] == 100
    assert "from-Q4_1" in run.record["llama"]


def at(place):
    return {"runs": f"{place}/runs", "logger": "none"}


def test_perplexity_of_a_text_is_a_plain_loops(pair, folder, tokenizer, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    document = " ".join(f"{n} " + PAGE for n in range(120))
    for split in ("train", "validation", "test"):
        (text / f"{split}.txt").write_text(f"{split} {document}" if split != "test" else document)
    words = {"scale.text": "local", "task.text.path": text, "cache": f"{tmp_path}/cache"}
    words |= {"task.windows.lengths": "[512]", "task.windows.tokens": 4096}
    run = te.train(
        task="perplexity", model="rope", checkpoint=folder, quiet=True, **words, **at(tmp_path)
    )
    _, theirs, task = pair
    ids = [task.tokenizer.bos, *tokenizer(document).input_ids][:4097]
    total, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, 4096, 512):
            row = torch.tensor([ids[first : first + 513]])
            logits = theirs(row[:, :-1]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum"))
            count += row.shape[1] - 1
    found = run.record["metrics"]["c4/perplexity@512"]
    assert found == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)


def test_a_step_of_lora_is_exported_as_it_computes(folder, tmp_path):
    """Trained for two steps, exported, and read by transformers."""
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "validation", "test"):
        (text / f"{split}.txt").write_text("\n".join(f"{split} {n} {PAGE}" for n in range(80)))
    words = {"scale.text": "local", "task.text.path": text, "task.validation.path": text}
    words |= {"task.validation_rows": 2, "task.train_length": 64, "task.optim.batch": 2}
    words |= {"task.optim.max_steps": 2, "task.rows": "{text: 1}", "task.init_from": folder}
    words |= {"peft": "lora", "peft.interpolation": 1, "cache": f"{tmp_path}/cache"}
    run = te.train(task="extend", model="rope", quiet=True, **words, **at(tmp_path))
    assert export.main([str(run.folder), str(tmp_path / "exported")]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "exported")(PAGE).input_ids])
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
        assert (run.model(tokens) - expected).abs().max() < 2e-3
        assert (base.eval()(tokens).logits - expected).abs().max() > 1e-2, "it was trained"


def test_lora_starts_from_the_same_logits(pair):
    ours, theirs, _ = pair
    tokens = torch.randint(10, 40_000, (1, 40), generator=torch.Generator().manual_seed(0))
    adapted = Decoder(ours.arch, ours.pattern, blank=True)
    adapted.load_state_dict(ours.state_dict())
    Lora().insert(adapted, 0)
    with torch.no_grad():
        assert (adapted.eval()(tokens) - theirs(tokens).logits).abs().max() < 1e-3
