"""The decoder under lm-eval: the same answers as lm-eval's own HFLM gives for the same weights as a
Llama.
"""

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from tape_exp.data.builtin.benchmarks import write_benchmarks
from tape_exp.data.text import Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.models.conformance import randomise
from tape_exp.models.llama import llama_config, llama_name
from tape_exp.settings.schema import Arch
from tape_exp.tasks import lm_eval_tasks
from tape_exp.training.on_device import OnDevice
from tests.conftest import make_decoder

pytest.importorskip("lm_eval", reason="lm-eval is an optional package")
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tape_exp.models.harness import Harness

LENGTH = 96
CONTEXTS = [
    "Question: What is 3 + 4?\nAnswer:",
    "A context that ends in spaces   ",
    "",
    "word " * 60,  # longer than the model
]
CONTINUATIONS = [" A", " B", " seven", " a longer continuation, of some words"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    line = "Question: What is a word of the longer context? Answer: A, B, C or D. seven words\n"
    (folder / "train.txt").write_text(line * 20)
    return Tokenization("bpe", vocab=300).make(
        Text("tiny", source="local", path=str(folder)), folder
    )


@pytest.fixture(scope="module")
def decoder(tokenizer):
    model = make_decoder(
        "rope", Arch(layers=2, width=32, heads=4, ffn=48, vocab=tokenizer.vocab, max_length=LENGTH)
    )
    randomise(model)
    return model.eval()


def ours(decoder, tokenizer, max_length=LENGTH, rows=3) -> Harness:
    return Harness(
        OnDevice(decoder, torch.device("cpu")), tokenizer, max_length, rows, lambda items, _: items
    )


def theirs(decoder, tokenizer, bos: bool = True) -> HFLM:
    """HFLM over a Llama of transformers with the same weights and a tokenizer of transformers with
    the same ids.
    """
    from tokenizers import Tokenizer as Backend
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_config(llama_config(decoder)).eval()
    model.load_state_dict({llama_name(key): x for key, x in decoder.state_dict().items()})
    backend = Backend.from_str(tokenizer.save())
    special = [("<s>", tokenizer.bos)]
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=special)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    return HFLM(model, tokenizer=fast, max_length=LENGTH, batch_size=2, add_bos_token=bos)


def requests(kind: str, arguments: list[tuple]) -> list[Instance]:
    return [Instance(kind, {}, a, i, ("task", i, 1)) for i, a in enumerate(arguments)]


@pytest.mark.parametrize("rows", [1, 3])
def test_log_likelihoods_are_hflms(rows, decoder, tokenizer):
    """Contexts of all lengths, trailing spaces, none at all, shared by several continuations, and
    longer than the model, in batches of any size.
    """
    asked = requests(
        "loglikelihood", [(context, text) for context in CONTEXTS for text in CONTINUATIONS]
    )
    found, expected = (
        ours(decoder, tokenizer, rows=rows).loglikelihood(asked),
        theirs(decoder, tokenizer).loglikelihood(asked),
    )
    assert [f[0] for f in found] == pytest.approx([e[0] for e in expected], abs=1e-4)
    assert [f[1] for f in found] == [e[1] for e in expected]


@pytest.mark.parametrize("method", ["dynamic", "longrope"])
def test_a_row_scored_beside_longer_ones_is_a_row_alone(method, tokenizer):
    """Frequencies that depend on the length of a row do not see what fills up a batch."""
    words = [f"model.scaling.method={method}"]
    if method == "longrope":
        factors = ("short_factor=[1,1.5,2,3]", "long_factor=[1,2,4,8]")
        words += [f"+model.scaling.{factor}" for factor in factors]
    sizes = {"vocab": tokenizer.vocab, "max_length": LENGTH, "train_length": 8}
    model = make_decoder("rope", Arch(2, 32, 4, 48, **sizes), *words)
    randomise(model)
    asked = requests("loglikelihood", [(context, " A") for context in CONTEXTS[:3]])
    harness = ours(model.eval(), tokenizer, rows=3)
    together = [score for score, _ in harness.loglikelihood(asked)]
    alone = [harness.loglikelihood([one])[0][0] for one in asked]
    assert together == pytest.approx(alone, abs=1e-4)


def test_rolling_log_likelihood_is_hflms(decoder, tokenizer):
    """Of a text shorter than the model and of one that takes several windows; HFLM without its
    tokenizer's BOS adds one.
    """
    asked = requests(
        "loglikelihood_rolling", [("a word",), ("the longer context of words, " * 12,)]
    )
    found = ours(decoder, tokenizer).loglikelihood_rolling(asked)
    assert found == pytest.approx(
        theirs(decoder, tokenizer, bos=False).loglikelihood_rolling(asked), abs=1e-3
    )


def test_generated_text_is_hflms(decoder, tokenizer):
    """Greedy, each up to its stop sequence, contexts cut so that the answer fits."""
    settings = [{"until": ["e"], "max_gen_toks": 12}, {"until": [], "max_gen_toks": 7}]
    asked = requests(
        "generate_until",
        [(CONTEXTS[0], settings[0]), (CONTEXTS[3], settings[1]), (CONTEXTS[1], settings[1])],
    )
    assert ours(decoder, tokenizer).generate_until(asked) == theirs(
        decoder, tokenizer
    ).generate_until(asked)


@pytest.mark.slow
def test_benchmarks_score_as_under_hflm(decoder, tokenizer, tmp_path):
    """Every metric and standard error of the generated MMLU and ARC, with and without solved
    examples.
    """
    for shots, names in (
        (0, ["mmlu", "arc_easy", "arc_challenge"]),
        (2, ["mmlu_stem", "arc_easy"]),
    ):
        results = []
        for model in (ours(decoder, tokenizer), theirs(decoder, tokenizer)):
            loaded = lm_eval_tasks.load_benchmarks(names, write_benchmarks(tmp_path), shots)
            found = lm_eval_tasks.results_of(model, loaded, limit=8)
            results.append({name: lm_eval_tasks.metrics_of(row) for name, row in found.items()})
        assert results[0] == results[1]
        assert {"acc", "acc_norm"} == set(results[0]["arc_easy"])
        assert 0 < results[0]["arc_easy"]["acc"][1] < 20
