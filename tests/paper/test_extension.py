"""Artifacts over methods of context extension: which runs they ask for, and table tune_ppl beside
the paper's.
"""

import pytest

from tape_exp.paper import artifacts
from tape_exp.paper.extension import Methods, TunedPerplexity
from tape_exp.paper.records import matches
from tape_exp.paper.tables import pairs
from tape_exp.runs.identity import identity_of, without_folders
from tests.paper.test_artifacts import shown
from tests.paper.test_language import record

LENGTHS = (64, 128, 256, 512)
NAMES = ["base", "lora", "longlora", "theta", "tape", "tape_embeddings"]


def invented(artifact, run: str, seed: int, shift: float = 0.0) -> dict:
    corpus = run.split("/")[1]
    metrics = {f"{corpus}/perplexity@{n}": 1000 / n + seed + shift for n in LENGTHS}
    metrics[f"{corpus}/tokens"] = 16_384.0 if corpus == "pg19" else 9_000.0
    return record(artifact, run, seed, metrics | {f"{corpus}/unigram_perplexity": 400.0 + shift})


@pytest.fixture
def artifact():
    table = artifacts.load("tab_tune_ppl")
    assert isinstance(table, TunedPerplexity)
    return table


def test_methods_are_the_words_of_their_runs():
    methods = {
        "base": ["model=rope", "checkpoint=c4"],
        "tape": ["model=tape", "checkpoint=extend", "task.windows.stride=32"],
    }

    words = ["task.windows.tokens=99"]
    table = Methods(
        name="tab", title="A table", task="pg19_sliding", overrides=words, methods=methods
    )
    found = list(table.configs("small", [0, 1], ["cache=here"]))
    assert [(name, cfg.seed) for name, cfg in found] == [
        ("base", 0),
        ("tape", 0),
        ("base", 1),
        ("tape", 1),
    ]
    for name, cfg in found:
        assert (cfg.task.name, cfg.scale.name, cfg.cache, cfg.task.windows.tokens) == (
            "pg19_sliding",
            "small",
            "here",
            99,
        )
        told = {"base": ("rope", "c4", 64), "tape": ("tape", "extend", 32)}[name]
        assert (cfg.model.name, cfg.checkpoint, cfg.task.windows.stride) == told
    assert table.models == ["base", "tape"]


def test_every_method_reads_every_corpus(artifact):
    found = list(artifact.configs("paper", [0]))
    assert [name for name, _ in found] == [
        f"{method}/{corpus}" for method in NAMES for corpus in ("proof_pile", "pg19")
    ]
    assert [cfg.task.name for _, cfg in found] == ["proof_pile_sliding", "pg19_sliding"] * len(
        NAMES
    )
    assert all(list(cfg.task.windows.lengths) == artifact.paper()["lengths"] for _, cfg in found)
    assert all(cfg.task.windows.stride == 256 for _, cfg in found)


def test_runs_of_a_llama_fill_the_tables_of_the_papers_scale(artifact):
    """Their configs hold the Llama's own sizes, and the precision of the trainer that ran them."""
    (label, cfg), *_ = artifact.configs("paper", [0], ["trainer=ddp_7b"])
    run = record(artifact, label, 0, {})
    run["config"] = without_folders(identity_of(cfg))
    run["config"]["task"]["arch"] = {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "ffn": 11008,
        "vocab": 32000,
    }
    run["config"]["model"] |= {"theta": 5e5, "scaling": {"type": "llama3"}}
    assert artifact.collect("paper", [run]) == {}, "without a Llama other sizes are another run"
    run["llama"] = "Llama-2-7b-hf-0123456789"
    assert artifact.collect("paper", [run]) == {label: [run]}
    assert matches(run, identity_of(cfg))
    run["config"]["checkpoint"] = "another"
    assert artifact.collect("paper", [run]) == {}


@pytest.mark.parametrize(
    ("wanted", "said", "ran", "same"),
    [
        ("auto", "auto", "bf16-mixed", True),
        ("bf16-mixed", "auto", "bf16-mixed", True),
        ("bf16-mixed", "auto", "32-true", False),
        ("auto", "bf16-mixed", "bf16-mixed", False),
    ],
)
def test_a_precision_counts_as_the_one_that_auto_chose(artifact, wanted, said, ran, same):
    (label, cfg), *_ = artifact.configs("smoke", [0])
    run = record(artifact, label, 0, {})
    run["config"]["precision"], run["precision"] = said, ran
    assert matches(run, identity_of(cfg) | {"precision": wanted}) == same


def test_the_papers_numbers_are_those_of_its_table(artifact):
    """The extremes of each part, and what its text says of them."""
    paper = artifact.paper()["perplexity"]
    assert paper["proof_pile"]["tape"] == [3.641, 3.196, 2.901, 2.708]
    assert paper["pg19"]["theta"][-1] == 7.999
    for corpus in ("proof_pile", "pg19"):
        assert set(paper[corpus]) == {"lora", "longlora", "theta", "tape"}
        for method, row in paper[corpus].items():
            assert row == sorted(row, reverse=True)
            assert all(
                best <= value for best, value in zip(paper[corpus]["tape"], row, strict=True)
            ), method


def test_ours_stands_beside_the_papers(artifact):
    records = [invented(artifact, "base/pg19", seed) for seed in (0, 1, 2)]
    records += [invented(artifact, "theta/proof_pile", 0, shift=0.5)]
    rows = {(row["corpus"], row["method"]): row for row in shown(artifact, records)}
    assert list(rows) == [
        (corpus, name) for corpus in ("proof_pile", "pg19") for name in (*NAMES, "unigram")
    ]
    base, theta = rows["pg19", "base"], rows["proof_pile", "theta"]
    assert [base[f"ours {n}"] for n in LENGTHS] == [
        f"{1000 / n + 1:.3f} ± 2.484" for n in LENGTHS
    ]  # t(0.975, 2) / √3
    assert [base[f"paper {n}"] for n in (1024, 2048, 4096, 8192)] == [""] * 4
    assert [theta[f"paper {n}"] for n in (1024, 2048, 4096, 8192)] == [
        "3.864",
        "3.415",
        "3.121",
        "2.934",
    ]
    assert theta["ours 512"] == "2.453"
    assert (base["seeds"], theta["seeds"], theta["scale"], rows["pg19", "lora"]["seeds"]) == (
        "3",
        "1",
        "smoke",
        "",
    )
    assert rows["pg19", "unigram"]["ours 64"] == "400.000"
    assert rows["proof_pile", "unigram"]["ours 512"] == "400.500"
    assert (
        rows["proof_pile", "unigram"]["paper 1024"] == rows["proof_pile", "base"]["ours 64"] == ""
    )
    caption = artifact.table("smoke", artifact.collect("smoke", records)).caption
    for told in (
        "scale smoke",
        "of 256 tokens",
        "training at 512",
        "every 64 tokens",
        "Scored: the first 9,000 to 16,384 tokens of each set, the same for all seeds",
        "Llama-2-7B",
    ):
        assert told in caption, told
    assert list(rows["pg19", "base"])[2:6] == ["paper 1024", "ours 64", "paper 2048", "ours 128"]


def test_the_longest_lengths_stand_together():
    assert [column.key for column in pairs([1, 2, 4], [10, 20])] == [
        ("paper", 1),
        ("paper", 2),
        ("ours", 10),
        ("paper", 4),
        ("ours", 20),
    ]
    assert [column.key for column in pairs([4], [10, 20])] == [
        ("ours", 10),
        ("paper", 4),
        ("ours", 20),
    ]
