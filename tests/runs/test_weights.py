"""A base model, adapted, killed, gone on with, evaluated: which weights each of these runs begins
from.
"""

import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from tape_exp import export
from tape_exp.artifacts import comparison
from tape_exp.data.tokenization import Tokenization
from tape_exp.experiments.grid import specs_of_grid
from tape_exp.models import peft
from tape_exp.models.positions.nope import NoPE
from tape_exp.results.record import Record
from tape_exp.runs import checkpoint_info, loading, starting_weights
from tape_exp.runs.checkpoints import SafeCheckpointIO
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.finished_runs import NoRunError
from tape_exp.runs.metrics import read_metrics
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.loaded_run import load
from tape_exp.training.run import run
from tests import conftest
from tests.conftest import on_text
from tests.processes import both, sketch

EXTEND = ["task.init_from=c4", "task.train_length=64", "task.optim.batch=4"]
EXTEND += ["trainer.checkpoint_every=2"]
WORDS = ["trainer=cpu", "logger=none", "trainer.log_every=1"]


@dataclass
class Runs:
    """A folder of runs on a little text. One that is there is not made again."""

    runs: Path
    text: Path

    def config(self, *words: str, task: str = "c4") -> DictConfig:
        chosen = [f"task={task}", *on_text(self.text, task), f"runs={self.runs}", *WORDS]
        chosen += ["task.optim.batch=16", "task.optim.max_steps=3"] if task == "c4" else []
        return compose_config([*chosen, *words])

    def __call__(self, *words: str, task: str = "c4"):
        """Make a run; (config, record)."""
        cfg = self.config(*words, task=task)
        return cfg, run(cfg)

    def extend(self, model: str, method: str, *words: str):
        """Adapt the base, a run of model=rope on blocks of 32 tokens."""
        self("model=rope")
        chosen = ["task.optim.max_steps=4", f"model={model}", f"peft={method}"]
        return self(*EXTEND, *chosen, *words, task="extend")

    def base(self) -> RunDirectory:
        return RunDirectory(self("model=rope")[0])


@pytest.fixture(scope="module")
def shared(tmp_path_factory, text_folder):
    """Runs that tests leave as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", sketch)
        yield Runs(tmp_path_factory.mktemp("weights"), text_folder)


@pytest.fixture
def own(shared, tmp_path):
    """Runs of a test's own: a base, and what LoRA made of it."""
    shared.extend("rope", "lora")
    for part in ("c4/smoke/rope", "extend/smoke/rope-lora"):
        shutil.copytree(shared.runs / part, tmp_path / "runs" / part)
    return Runs(tmp_path / "runs", shared.text)


METHODS = [("rope", name) for name in ("lora", "longlora", "theta", "full")] + [("tape", "tape")]


def loaded(cfg):
    """The decoder that a run with this config would begin with."""
    task = make_task(cfg, starting_weights.starting_checkpoint(cfg))
    task.prepare_data()
    return make_decoder(cfg, task)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "method"), METHODS)
@pytest.mark.long
def test_an_adapted_model_is_evaluated_as_it_was_trained(model, method, shared):
    """What checkpoint=extend loads is the base, unchanged, and what training made of the rest."""
    cfg, record = shared.extend(model, method)
    folder = RunDirectory(cfg)
    assert folder.path.parent.name == f"{model}-{method}"
    content = torch.load(folder.checkpoints / "step00000004.ckpt", weights_only=True)
    evaluated, scores = shared(
        f"model={model}", f"peft={method}", "checkpoint=extend", task="github"
    )
    decoder = loaded(evaluated)
    words = [f"model={model}", f"peft={method}", "peft.interpolation=3", "checkpoint=extend"]
    with pytest.raises(ConfigError, match=r"trained with peft\.interpolation=.*; set peft\."):
        shared(*words, task="github")
    own = {f"decoder.{name}": value for name, value in decoder.state_dict().items()}
    assert all(torch.equal(own[name], value) for name, value in content["state_dict"].items())
    assert scores["metrics"]["github/perplexity@32"] > 1
    if method == "full":
        assert content["state_dict"].keys() == own.keys()
        return
    assert content["state_dict"].keys() == {f"decoder.{name}" for name, _ in peft.trained(decoder)}
    assert record["trained_parameters"] == sum(
        value.numel() for value in content["state_dict"].values()
    )
    before = torch.load(
        starting_weights.base_of(folder.checkpoints / "step00000004.ckpt"), weights_only=True
    )["state_dict"]
    frozen = {
        name.replace(".base_layer", ""): own[name]
        for name in own.keys() - content["state_dict"].keys()
    }
    kept = frozen.keys() & before.keys()
    assert len(kept) > 5
    assert all(torch.equal(frozen[name], before[name]) for name in kept)


def forget_the_end(run):
    """As if the run had been killed before its last checkpoint."""
    for name in ("DONE", "record.json", "checkpoints/step00000004.ckpt"):
        (run / name).unlink()


@pytest.mark.long
def test_a_killed_adaptation_goes_on(own):
    """As if it had been killed before its last checkpoint."""
    folder = RunDirectory(own.extend("rope", "lora")[0])
    last = folder.checkpoints / "step00000004.ckpt"
    whole = torch.load(last, weights_only=True)["state_dict"]
    forget_the_end(folder.path)
    own.extend("rope", "lora")
    again = torch.load(last, weights_only=True)["state_dict"]
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def rewrite(checkpoint: Path, factor: float) -> None:
    """Leave other weights in a base's place, as training it again on other text does."""
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"] = {k: factor * v for k, v in content["state_dict"].items()}
    torch.save(content, checkpoint)


@pytest.mark.long
def test_a_run_is_not_taken_for_one_of_the_weights_that_replaced_its_base(own):
    """Folder, step and hash are the same: only the weights tell."""
    cfg, record = own.extend("rope", "lora")
    folder, saved = RunDirectory(cfg), own.base().checkpoints / "step00000003.ckpt"
    assert record["begun_from_weights"] == checkpoint_info.fingerprint(saved)
    content = torch.load(folder.checkpoints / "step00000004.ckpt", weights_only=True)
    assert content["base_weights"] == checkpoint_info.fingerprint(saved)
    before = saved.read_bytes()

    rewrite(saved, 2.0)
    with pytest.raises(ConfigError, match="began from other weights than"):
        own.extend("rope", "lora")
    with pytest.raises(ConfigError, match=r"on top of c4-.* now, with other weights"):
        own("model=rope", "peft=lora", "checkpoint=extend", task="github")
    for leftover in ("DONE", "record.json"):
        (folder.path / leftover).unlink()
    with pytest.raises(ConfigError, match="began from other weights than"):
        own.extend("rope", "lora")

    saved.write_bytes(before)
    assert own.extend("rope", "lora")[1]["metrics"] == record["metrics"]


@pytest.mark.long
def test_other_encodings_go_on_from_a_run_of_rope(shared, tmp_path):
    """With its logits, or without RoPE, or not at all, which a sentence says before any step."""
    base = shared.base()
    own, full = ["model=rope"], ["peft=full"]
    selective = ["model=selective_rope", "model.start=rope"]
    dynamic = ["model.scaling.method=dynamic", "model.scaling.original=64", "peft.interpolation=1"]
    rope, other, stretched, dropped = (
        loaded(shared.config(*EXTEND, *further, task="extend")).eval()
        for further in (
            [*own, *full],
            [*selective, *full, "model.theta=10000"],
            [*own, *full, *dynamic],
            [*own, "peft=drope"],
        )
    )
    assert all(len([*peft.trained(d)]) == len([*d.parameters()]) for d in (other, dropped))
    assert {type(block.position) for block in dropped.blocks()} == {NoPE}
    assert torch.equal(dropped.head.weight, rope.head.weight)
    assert stretched.reads_length
    tokens = torch.randint(0, 200, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for block in (*rope.blocks(), *other.blocks(), *dropped.blocks()):
            block.q.weight.mul_(10)  # so that attention is far from uniform
            block.k.weight.mul_(10)
        expected = rope(tokens)
        assert (other(tokens) - expected).abs().max() < 1e-5
        assert (dropped(tokens) - expected).abs().max() > 1e-3
    alibi = tmp_path / "alibi"
    shutil.copytree(base.path, alibi)
    config = (alibi / "config.yaml").read_text()
    config = config.replace("name: rope", "name: alibi").replace("rope.RoPE", "alibi.ALiBi")
    (alibi / "config.yaml").write_text(config)
    theta = r"with model\.theta=10000\.0, .* is 500000\.0 here; set model\.theta=10000\.0"
    ssmax = r"with model\.ssmax=false, .* is true here; set model\.ssmax=false"
    for further, message in (
        (
            ["model=repo", *full],
            r"model=repo cannot continue from RoPE: its first logits are not RoPE's",
        ),
        ([*selective, *full], theta),
        (["model=ssmax", *full], ssmax),
        (
            [*own, "peft=drope", f"checkpoint={alibi}"],
            "cannot continue from RoPE: the base was trained with model=alibi",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            loaded(shared.config(*EXTEND, *further, task="extend"))


@pytest.mark.long
def test_a_task_names_the_run_of_the_same_method(own):
    """Of two finished runs of LoRA checkpoint=extend is the one with the same learning rate."""
    paths = [
        RunDirectory(own.extend("rope", "lora", f"peft.lr={lr}")[0]).path for lr in (1e-3, 3e-3)
    ]
    words = ["model=rope", "peft=lora", "peft.lr=3e-3", "checkpoint=extend"]
    cfg, _ = own(*words, task="github")
    assert starting_weights.starting_checkpoint(cfg).parents[1] == paths[1]


@pytest.mark.hosts
def test_a_run_resumes_with_another_strategy(shared, tmp_path):
    """Begun by one process, gone on by FSDP on two, evaluated by one: losses, adapter and metrics
    of a run that was left alone.
    """
    runs = Runs(tmp_path, shared.text)
    words = [*EXTEND[1:], f"task.init_from={shared.base().path}", "model=rope", "peft=lora"]
    words += ["task.optim.max_steps=4"]
    cfg, whole = runs(*words, task="extend")
    directory = RunDirectory(cfg)

    def measured():
        rows = read_metrics(directory.metrics)
        last = torch.load(directory.checkpoints / "step00000004.ckpt", weights_only=True)
        return [row["train/loss"] for row in rows if "train/loss" in row], last["state_dict"]

    losses, adapter = measured()
    forget_the_end(directory.path)
    shutil.rmtree(directory.artifacts)
    sharded = ["task=extend", *on_text(runs.text, "extend"), f"runs={runs.runs}", *WORDS, *words]
    ended = [one.finish() for one in both(*sharded, "trainer.strategy=fsdp")]
    assert [one.returncode for one in ended] == [0, 0], ended
    assert "Resuming from step 2" in ended[0].stdout
    again, adapter_again = measured()
    assert len(losses) == 4
    assert again == pytest.approx(losses, abs=1e-5)
    assert adapter_again.keys() == adapter.keys()
    assert all((adapter_again[name] - adapter[name]).abs().max() < 1e-4 for name in adapter)
    (directory.path / "DONE").unlink()
    assert runs(*words, task="extend")[1]["metrics"] == pytest.approx(whole["metrics"], abs=1e-4)


EXPORTED = {("rope", "lora"): "LlamaForCausalLM", ("tape", "tape"): "TapeExpForCausalLM"}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "method"), EXPORTED)
def test_an_exported_run_is_the_model_that_was_trained(model, method, shared, tmp_path):
    """Merged, in transformers: the logits of the decoder that is evaluated."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import tape_exp.models.hf  # noqa: F401 - registers the type

    cfg, _ = shared.extend(model, method)
    folder = tmp_path / "exported"
    assert export.main([str(RunDirectory(cfg).path), str(folder)]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(theirs).__name__ == EXPORTED[model, method]
    evaluated, _ = shared(f"model={model}", f"peft={method}", "checkpoint=extend", task="github")
    ours = loaded(evaluated).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(
        "w3 w6 w9 w12 w15 w1 w4", return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        assert (theirs(tokens).logits - ours(tokens)).abs().max() < 1e-4


YARN = ("model.scaling.method=yarn", "model.scaling.factor=2", "peft.interpolation=1")


@pytest.mark.long
@pytest.mark.parametrize(("method", "words"), [("lora", ()), ("theta", ()), ("lora", YARN)])
def test_an_exported_adapter_is_what_peft_loads(method, words, shared, tmp_path, monkeypatch):
    """By the lines of its own README, onto the exported base: the logits of the trained model."""
    from peft import AutoPeftModelForCausalLM

    cfg, _ = shared.extend("rope", method, *words)
    run = RunDirectory(cfg)
    ours = load(run.path).model
    checkpoint = next(run.checkpoints.glob("step*.ckpt"))
    base = starting_weights.base_of(checkpoint).parents[1]
    assert export.main([str(base), str(tmp_path / "base")]) == 0
    words = [str(run.path), str(tmp_path / "adapter"), "--adapter", str(tmp_path / "base")]
    assert export.main(words) == 0
    told = (tmp_path / "adapter" / "README.md").read_text()
    assert "## Results" in told
    assert RunDirectory(cfg).hash in told
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    said = pytest.warns(UserWarning, match=r"must be given as in README\.md")
    with said:
        exec(re.findall(r"```python\n(.*?)```", told, re.DOTALL)[0], names)
    with said:  # which peft, left alone, ignores
        other = AutoPeftModelForCausalLM.from_pretrained("adapter").eval()
    theirs = names["model"].eval()
    tokens = torch.arange(20, 50)[None]
    with torch.no_grad():
        gap = (theirs(tokens).logits - ours(tokens)).abs().max()
        assert (other(tokens).logits - ours(tokens)).abs().max() > 1e-3
        with theirs.disable_adapter():
            assert (theirs(tokens).logits - ours(tokens)).abs().max() > 1e-3
    assert gap < 1e-4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("scale: {name: '${oc.env:HF_TOKEN}'}", "is not a config that a run wrote"),
        ("[", "config.yaml cannot be read"),
        ("- 1", "is not a config that a run wrote"),
    ],
)
def test_a_foreign_config_reads_nothing_of_this_machine(tmp_path, monkeypatch, capsys, line, said):
    monkeypatch.setenv("HF_TOKEN", "planted-1234")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(line)
    assert export.main([str(tmp_path / "run"), str(tmp_path / "new")]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert "planted-1234" not in told.out + told.err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_llama_is_extended_and_evaluated(text_run, tmp_path, text_folder):
    """Its sizes, theta and tokenizer come from its folder, whatever the scale says."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rope_theta=5e4,
        bos_token_id=0,
        eos_token_id=1,
    )
    folder = tmp_path / "llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenization("byte").make(None, tmp_path)
    (folder / "tokenizer.json").write_text(tokenizer.save())
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    words = ["model=tape", "peft=tape", f"task.init_from={folder}", *EXTEND[1:3]]
    text_run = partial(text_run, llama=True)
    _, record = text_run(*words, "task.optim.max_steps=2", task="extend")
    arch = record["config"]["task"]["arch"]
    expected = {"layers": 3, "width": 24, "heads": 4, "kv_heads": 2, "ffn": 40, "vocab": 300}
    assert arch.items() >= (expected | {"tied": False, "norm_eps": 1e-6}).items()
    assert record["config"]["model"]["theta"] == 5e4
    assert record["config"]["task"]["init_from"] == "llama"
    assert record["llama"] == record["begun_from"]
    own = ["task=extend", *on_text(text_folder, "extend", llama=True), *words]
    own += ["task.optim.max_steps=2"]
    view = comparison.view_of(comparison.requested(own)[0], [Record(record)], [0])
    assert view.runs(view.rows[0]) == [record]  # what has run is found
    _, scores = text_run("model=tape", "peft=tape", "checkpoint=extend", task="github")
    assert scores["metrics"]["github/perplexity@32"] == pytest.approx(300, rel=0.3)  # it is random
    assert scores["llama"] == record["llama"]
    assert not [word for word in scores["overrides"] if "arch" in word or word.startswith("+")]
    assert scores["begun_from"] == f"{record['run']}/step00000002"
    with pytest.raises(ConfigError, match=r"positions are RoPE, and model=alibi has others"):
        text_run("model=alibi", f"checkpoint={folder}", task="github")
    with pytest.raises(ConfigError, match=r"model=ssmax adds ssmax"):
        text_run("model=ssmax", f"checkpoint={folder}", task="github")
    _, tuned = text_run("model=rope", f"checkpoint={folder}", "task.optim.max_steps=2")
    _, scores = text_run("model=rope", "checkpoint=c4", task="github")
    assert scores["llama"] == tuned["llama"] == record["llama"]
    (done,) = (tmp_path / "runs" / "c4").glob("smoke/rope/*/DONE")
    assert export.main([str(done.parent), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert scores["config"]["model"]["theta"] == 5e4, "that of the run which fine-tuned it whole"
    assert scores["metrics"]["github/perplexity@32"] == pytest.approx(300, rel=0.3)
    stretch = ("model.scaling.method=yarn", "model.scaling.factor=2")
    text_run("model=rope", f"checkpoint={folder}", *stretch, task="github")
    stretched = [run.parent for run in (tmp_path / "runs").glob("github/smoke/rope/*/DONE")]
    (stretched,) = [run for run in stretched if "method: yarn" in (run / "config.yaml").read_text()]
    assert export.main([str(stretched), str(tmp_path / "yarn")]) == 0, "nothing was trained"
    theirs, tokens = LlamaForCausalLM.from_pretrained(tmp_path / "yarn"), torch.arange(60)[None]
    with torch.no_grad():
        gap = (theirs(tokens).logits - load(stretched).model(tokens)).abs().max()
        plain = LlamaForCausalLM.from_pretrained(folder)(tokens).logits
    assert gap < 1e-4 < (theirs(tokens).logits - plain).abs().max()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"llama has no tokenizer\.json"):
        text_run("model=rope", f"checkpoint={folder}", task="github")


def finished(folder, *words: str, step: int = 1):
    """A folder as a finished run leaves it; the config that would begin from it."""
    cfg = compose_config([*words, f"runs={folder}"])
    run = RunDirectory(cfg)
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / f"step{step:08}.ckpt").write_text("")
    (run.path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    (run.path / "DONE").touch()
    return run.checkpoints / f"step{step:08}.ckpt"


def beginning(runs, checkpoint="c4", *words: str) -> Path:
    """The checkpoint that a run of another task begins from."""
    chosen = ["task=passkey", f"checkpoint={checkpoint}", f"runs={runs}", *words]
    found = starting_weights.starting_checkpoint(compose_config(chosen))
    assert found is not None
    return found


@pytest.mark.slow
def test_of_several_runs_of_a_task_the_one_on_the_same_text_is_the_base(tmp_path, monkeypatch):
    finished(tmp_path, "task=c4", "debug=one_batch")
    with pytest.raises(ConfigError, match="nor a task with a finished run of seed 0"):
        beginning(tmp_path)
    finished(tmp_path, "task=c4", "task.optim.max_steps=5", "scale.text=local")
    plain = finished(tmp_path, "task=c4")
    assert beginning(tmp_path) == plain
    monkeypatch.chdir(tmp_path)  # which holds a folder c4
    assert beginning(tmp_path) == plain
    (tmp_path / "c4" / "checkpoints").mkdir()
    (tmp_path / "c4" / "checkpoints" / "step00000009.ckpt").touch()
    assert beginning(tmp_path, "./c4").name == "step00000009.ckpt", "a path, which it says it is"
    assert beginning(tmp_path, plain) == beginning(tmp_path, plain.parent.parent) == plain
    finished(tmp_path, "task=c4", "task.optim.max_steps=6", "seed=1")
    finished(tmp_path, "task=c4", "task.optim.max_steps=7", "seed=1")
    with pytest.raises(ConfigError, match="there are 2 finished runs"):
        beginning(tmp_path, "c4", "seed=1")


def test_weights_of_other_text_are_begun_from_by_their_folder_only(tmp_path):
    """A run on local files must not begin, without a word, from one on built-in text."""
    local = ["model=rope", "scale.text=local"]
    checkpoint = finished(tmp_path, "task=c4", "model=rope", "task.optim.max_steps=5")
    assert beginning(tmp_path, "c4", "model=rope") == checkpoint, "other steps, the same text"
    with pytest.raises(NoRunError) as error:
        beginning(tmp_path, "c4", *local)
    folder = checkpoint.parents[1]
    assert str(error.value) == (
        f"checkpoint=c4: its finished run {folder} was trained with scale.text=builtin, and "
        "scale.text is local here; train task=c4 with scale.text=local, or set "
        f"checkpoint={folder}."
    )
    assert beginning(tmp_path, folder, *local) == checkpoint
    of_base = finished(tmp_path, "task=c4", *local)
    assert beginning(tmp_path, "c4", *local, "peft=lora") == of_base
    added = finished(tmp_path, "task=arithmetic", "model=rope")
    assert beginning(tmp_path, "arithmetic", *local) == added, "it reads no text"


def test_a_sweep_makes_the_base_on_the_same_text(tmp_path):
    finished(tmp_path, "task=c4", "model=rope")
    words = ["task=passkey", "model=rope", "checkpoint=c4", f"runs={tmp_path}"]
    (run,) = specs_of_grid(words)
    assert run.config.task.name == "passkey"
    base, _ = specs_of_grid([*words, "scale.text=local"])
    assert (base.config.task.name, base.config.scale.text) == ("c4", "local")


def test_an_adapted_run_keeps_its_base_on_other_text(tmp_path):
    """It may have been begun by the base's folder; only its weights may not have changed."""
    base = finished(tmp_path, "task=c4", "model=rope")
    words = ["model=rope", "peft=lora", f"checkpoint={base.parents[1]}", "scale.text=local"]
    adapted = finished(tmp_path, "task=extend", *words)
    config = adapted.parents[1] / "config.yaml"
    config.write_text(
        config.read_text().replace(f"checkpoint: {base.parents[1]}", "checkpoint: c4")
    )
    assert starting_weights.base_of(adapted) == base


def test_a_run_of_another_adaptation_is_none_that_a_task_names(tmp_path):
    """So that a sweep makes the one that is asked for."""
    words = ["task=extend", "model=rope", "peft=longlora", "task.init_from=null"]
    checkpoint = finished(tmp_path, *words)
    named = ["extend", *words[1:3]]
    assert beginning(tmp_path, *named) == checkpoint
    for word, stored in [("peft.sparse_groups=2", "4"), ("peft.lr=0.003", "null")]:
        key, _, _ = word.partition("=")
        told = rf"was trained with {key}={stored}, .*; set {key}={stored}, or train .* with {word}"
        with pytest.raises(NoRunError, match=told):
            beginning(tmp_path, *named, word)
    assert beginning(tmp_path, checkpoint.parents[1], *words[1:3], "peft.lr=0.003") == checkpoint


@pytest.mark.parametrize(
    ("trained", "name", "word"),
    [
        ("nope.NoPE", "nope", ""),
        ("nope.NoPE", "sinusoidal", "model=other, and model is sinusoidal here; set model=other"),
        ("rope.RoPE, theta: 5", "rope", "set model.theta=5 unless"),
    ],
)
def test_a_run_is_warned_of_weights_of_other_positions(trained, name, word, tmp_path, caplog):
    """Such weights fit, and compute something else."""
    arch = Arch(1, 8, 2, 8, vocab=4, max_length=4, train_length=4)
    checkpoint = tmp_path / "checkpoints" / "step00000001.ckpt"
    checkpoint.parent.mkdir()
    decoder = conftest.make_decoder(name, arch)
    torch.save({"state_dict": conftest.make_decoder("nope", arch).state_dict()}, checkpoint)
    cfg = compose_config(["task=arithmetic", f"model={name}"])
    model = f"model: {{name: other, _target_: tape_exp.models.positions.{trained}}}"
    run = {**cfg, **OmegaConf.create(model)}
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(run)))
    loading.load_and_adapt(decoder, cfg, checkpoint, None, True)
    assert bool(caplog.text) == bool(word)
    assert word in caplog.text


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """A flipped byte of a weight would load without a word."""
    path = tmp_path / "step00000001.ckpt"
    content = {"state_dict": {"x": torch.zeros(999)}, "config_hash": "a", "global_step": 1}
    SafeCheckpointIO().save_checkpoint(content, path)
    assert checkpoint_info.read_checkpoint(path)["config_hash"] == "a"
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(bytes(999)) + 500] = 1
    path.write_bytes(damaged)
    assert torch.load(path, weights_only=True)["state_dict"]["x"].any(), "it loads"
    with pytest.raises(ConfigError, match="its checksums do not fit"):
        checkpoint_info.read_checkpoint(path)


@pytest.mark.parametrize(
    ("run", "runs"),
    [("/a/arithmetic/smoke/rope/seed0-0123456789", "/a"), ("/moved", "its"), ("/a/b/c/d/e", "its")],
)
def test_a_run_that_was_moved_out_of_its_folder_looks_for_others_where_its_config_says(run, runs):
    cfg = compose_config(["model=rope", "task=arithmetic", "runs=its"])
    assert checkpoint_info.folder_of_runs(Path(run), cfg) == runs


@pytest.mark.parametrize("name", ["mine.ckpt", "runs/mine.ckpt", "mine.gguf"])
def test_a_file_that_is_not_there_is_named_as_one(name):
    cfg = compose_config(["task=passkey", f"checkpoint={name}"])
    with pytest.raises(ConfigError, match=f"^checkpoint={name}: there is no such file"):
        starting_weights.starting_checkpoint(cfg)
