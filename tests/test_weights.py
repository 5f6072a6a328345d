"""A base model, adapted, killed, gone on with, evaluated: which weights each of these runs begins from."""

import json
import shutil

import pytest
import torch

from tape_exp import weights
from tape_exp.config import ConfigError
from tape_exp.models import peft
from tape_exp.run import make_adaptation, make_decoder, make_task
from tape_exp.runs import RunDirectory

EXTEND = ["task.init_from=c4", "task.train_length=64", "task.optim.batch=4", "trainer.checkpoint_every=2"]


@pytest.fixture
def base(text_run):
    """A run of model=rope on blocks of 32 tokens."""
    cfg, _ = text_run("model=rope", steps=3)
    return cfg


@pytest.fixture
def extend(text_run, base):
    def call(model: str, method: str, *overrides: str, steps: int = 4):
        words = [*EXTEND, f"task.optim.max_steps={steps}", f"model={model}", f"peft={method}", *overrides]
        return text_run(*words, task="extend")

    return call


METHODS = [("rope", "lora"), ("rope", "longlora"), ("rope", "theta"), ("tape", "tape"), ("rope", "full")]


def loaded(cfg):
    """The decoder that a run with this config would begin with."""
    task = make_task(cfg)
    task.prepare_data()
    return make_decoder(cfg, task, make_adaptation(cfg, task))


@pytest.mark.parametrize(("model", "method"), METHODS)
def test_an_adapted_model_is_evaluated_as_it_was_trained(model, method, extend, text_run):
    """What checkpoint=extend loads is the base, unchanged, and what training made of the rest."""
    cfg, record = extend(model, method)
    folder = RunDirectory(cfg)
    assert folder.path.parent.name == f"{model}-{method}"
    content = torch.load(folder.checkpoints / "step00000004.ckpt", weights_only=True)
    evaluated, scores = text_run(f"model={model}", f"peft={method}", "checkpoint=extend", task="github")
    decoder = loaded(evaluated)
    own = {f"decoder.{name}": value for name, value in decoder.state_dict().items()}
    assert all(torch.equal(own[name], value) for name, value in content["state_dict"].items())
    assert scores["metrics"]["github/perplexity@32"] > 1
    if method == "full":
        assert content["state_dict"].keys() == own.keys()
        return
    assert content["state_dict"].keys() == {f"decoder.{name}" for name, _ in peft.trained(decoder)}
    assert record["trained_parameters"] == sum(value.numel() for value in content["state_dict"].values())
    before = torch.load(weights.base_of(folder.checkpoints / "step00000004.ckpt", cfg), weights_only=True)["state_dict"]
    frozen = {name.replace(".base_layer", ""): own[name] for name in own.keys() - content["state_dict"].keys()}
    kept = frozen.keys() & before.keys()
    assert len(kept) > 5
    assert all(torch.equal(frozen[name], before[name]) for name in kept)
    adapter = folder.artifacts / "adapter"
    assert json.loads((adapter / "adapter.json").read_text())["base"] == content["base"]
    assert (adapter / "adapter.safetensors").stat().st_size < 4 * record["trained_parameters"] + 5000


@pytest.mark.parametrize(("model", "method"), [("rope", "lora"), ("tape", "tape")])
def test_a_killed_adaptation_goes_on(model, method, extend, tmp_path):
    cfg, _ = extend(model, method)
    folder = RunDirectory(cfg)
    whole = torch.load(folder.checkpoints / "step00000004.ckpt", weights_only=True)["state_dict"]
    for leftover in ("DONE", "record.json", "checkpoints/step00000004.ckpt", "checkpoints/step00000004.json"):
        (folder.path / leftover).unlink()
    extend(model, method)
    again = torch.load(folder.checkpoints / "step00000004.ckpt", weights_only=True)["state_dict"]
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_adapters_of_another_base_are_refused(extend, text_run, base):
    extend("rope", "lora")
    place = RunDirectory(base).path
    _, _ = text_run("model=rope", "task.optim.lr=0.5", steps=3)
    shutil.rmtree(place)  # the other run of the base's task takes its place
    with pytest.raises(ConfigError, match=r"was trained beside another base, c4-smoke-rope-seed0-\w+/step00000003, than lies"):
        text_run("model=rope", "peft=lora", "checkpoint=extend", task="github")


def test_a_base_that_is_gone_is_named(extend, text_run, base):
    extend("rope", "lora")
    shutil.rmtree(RunDirectory(base).path)
    with pytest.raises(ConfigError, match=r"and the base is missing: checkpoint=c4 is neither .* task=c4 model=rope"):
        text_run("model=rope", "peft=lora", "checkpoint=extend", task="github")


def test_what_does_not_fit_says_what_to_set(extend, text_run, base):
    cfg, _ = extend("rope", "lora")
    folder = RunDirectory(cfg).path
    for words, message in (
        ([f"checkpoint={folder}"], r"was adapted with peft=lora; set model=rope peft=lora"),
        ([f"checkpoint={folder}", "peft=theta"], r"was adapted with peft=lora; set model=rope peft=lora"),
        ([f"checkpoint={folder}", "peft=lora", "peft.lora.rank=4"], r"adapted with other settings of peft: .*lora_A"),
        (["checkpoint=c4", "peft=lora"], r"is a base model, and peft=lora untrained changes nothing"),
        (["peft=lora"], r"peft=lora adapts a trained model: name it in checkpoint="),
        (["checkpoint=extend", "peft=theta"], r"task=extend model=rope scale=smoke seed=0 peft=theta, or: "),
    ):
        with pytest.raises(ConfigError, match=message):
            text_run("model=rope", *words, task="github")
    with pytest.raises(ConfigError, match=r"longer than the 32 tokens .* set peft\.interpolation=4"):
        extend("rope", "lora", "task.train_length=128")
    alone = folder.parent / "alone.ckpt"
    shutil.copy(folder / "checkpoints" / "step00000004.ckpt", alone)
    with pytest.raises(ConfigError, match=r"holds what was trained beside a base model alone; name its run's folder"):
        text_run("model=rope", f"checkpoint={alone}", task="github")
