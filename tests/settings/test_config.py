"""The command line: what composes, and one sentence with the nearest right word for a mistake."""

import dataclasses
import re
import subprocess
import sys

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tape_exp.machine.processes import first_process
from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.compose import compose_config, rewrite_for_hydra
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF, ROOT
from tape_exp.settings.naming import literal
from tape_exp.settings.schema import CONFIG_GROUPS, Arch, AttentionConfig, Optim
from tape_exp.training.from_config import blank_parts
from tape_exp.training.trainer import processes, require_devices
from tests.conftest import MODELS, NUMBERS
from tests.processes import train


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("model=tpae", ["model=tpae is not known", "'tape'", "`tape-exp train --help` lists all"]),
        ("task=aritmetic", ["task=aritmetic", "'arithmetic'"]),
        ("task=c4 scale=digits5", ["scale=digits5 for task=c4", "paper, small, smoke"]),
        ("modle=tape", ["modle is not known", "'model'"]),
        ("task.trian_digits=4", ["task.trian_digits", "'task.train_digits'"]),
        ("model=rope model.thetta=4", ["model.thetta", "'model.theta'"]),
        ("task.lr=3", ["task.lr", "'task.optim.lr'"]),
        ("task.windows=3", ["task.windows is not known. `tape-exp"]),  # not model.window
        ("trainer.max_steps=3", ["trainer.max_steps", "'task.optim.max_steps'"]),
        ("batch_size=8", ["batch_size is not known", "'task.optim.batch'"]),
        ("trainer.save_steps=8", ["Did you mean 'trainer.checkpoint_every'"]),
        ("task.warmup_steps=8", ["Did you mean 'task.optim.warmup'"]),
        ("output_dir=8", ["Did you mean 'runs'"]),
        ("task.max_seq_len=8", ["task.max_seq_len is not known. `tape-exp"]),  # addition has none
        ("bf16=true", ["bf16 is not known", "'trainer.precision'"]),
        ("task=c4 max_seq_len=64", ["max_seq_len", "'task.train_length'"]),
        ("lr=0.1", ["lr is not known", "'task.optim.lr'"]),
        ("foo", ["foo", "as in model=tape"]),
        ("seed=first", ["seed=first", "integer"]),
        ("trainer.devices=two", ["trainer.devices=two", "integer"]),
        ("seed=0,1", ["seed=0,1", "-m"]),
        ("--max_steps=20", ["max_steps is not known", "'task.optim.max_steps'"]),
        ("task.optim.positon_lr=2", ["Did you mean 'task.optim.position_lr'?"]),
        ("task.arch.kvheads=2", ["Did you mean 'task.arch.kv_heads'?"]),
        ("task=passkey task.optim.lr=1", ["task.optim", "is not known"]),
        ("task.train_digits=[1", ["task.train_digits=[1"]),
        ("model=[rope,nopee]", ["model.layers.1=nopee", "'nope'"]),
        ("model=[]", ["model.layers"]),
    ],
)
def test_a_mistake_is_one_sentence_with_its_key_and_the_nearest_word(words, parts):
    with pytest.raises(ConfigError) as error:
        compose_config(words.split())
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["seed=3", "task=c4", "model=rope", "task.windows.lengths=[16,32]", "scale.text=local"],
        [
            "task.arch={layers: 1, heads: 2}",
            "task.optim.lr=1e-3",
            "task.optim.lr=2e-3",
            "runs='a b'",
        ],
        ["task=extend", "text@task.text=pg19", "task.text.column=${runs}/text", "peft=lora"],
        ["task=arithmetic", "+model.toy=1", "~task.test_digits", "seed=2", "++task.more=3"],
        ["++task.test_digits=5", "~task.test_digits", "model='rope'"],
    ],
)
def test_values_on_cached_choices_are_what_hydra_composes(words):
    for order in (words, list(reversed(words))):
        cached = compose_config(order)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            by_hydra = compose("config", order)
        composed = OmegaConf.to_container(cached)
        del composed["overrides"]
        assert composed == OmegaConf.to_container(by_hydra)
        assert list(cached.overrides) == order, "what was typed, as it was typed"
        assert OmegaConf.is_struct(cached) == OmegaConf.is_struct(by_hydra)
    assert compose_config(words) is not compose_config(words)


def test_a_pattern_of_layers_says_all_that_its_run_depends_on():
    model = compose_config(["model=[rope,rope,{name:nope,window:8}]"]).model
    assert model.name == "rope×2+nope"
    assert model.layers[0] == compose_config(["model=rope"]).model
    assert model.layers[2].window == 8
    nested = "model=[rnope_swa,nope]"
    with pytest.raises(ConfigError, match="is itself a pattern"):
        compose_config([nested])


@pytest.mark.parametrize(
    ("section", "override", "parts"),
    [
        ("task", "task.train_digits=three", ["task.train_digits=three", "integer"]),
        ("task", "task.train_digits=true", ["task.train_digits=True", "integer"]),
        ("task", "task.train_digits=0", ["task.train_digits=0", "greater than"]),
        ("task", "task.arch.width=90", ["task.arch.heads=4", "task.arch.width=96 would do."]),
        ("task", "task.arch.width=20", ["is 5 and must be even", "task.arch.width=24 would do."]),
        ("task", "task.arch.head_size=5", ["is 5 and must", "task.arch.head_size=6 would do."]),
        ("task", "task.arch.kv_heads=3", ["task.arch.heads=4", "task.arch.kv_heads=2 would do."]),
        ("task", "task.optim.warmup=64", ["at most 1", "task.optim.warmup=0.02 would do."]),
        ("task", "+task.arch.depth=2", ["task.arch.depth is not known", "layers"]),
        ("task", "+task.train_digit=2", ["task.train_digit is not", "'train_digits'"]),
        ("task", "task.optim.lr=-1", ["task.optim.lr=-1", "greater than 0"]),
        ("task", "task.optim.betas=[0.9]", ["task.optim.betas"]),
        ("task", "task.optim.betas=[0.9,1.0]", ["task.optim.betas.1=1.0", "less than 1"]),
        (
            "task",
            "task.optim.decay=0 ++task.optim.final_lr=0.1",
            ["final_lr=0.1 is where the decay ends", "task.optim.final_lr=0 would do."],
        ),
        ("task", "task.optim.decay=0.99", ["task.optim.warmup=0.05", "decay=0.95 would do."]),
        ("task", "task.optim=5", ["task.optim=5"]),
        ("task", "~task.test_digits", ["task.test_digits is missing"]),
        ("model", "model.theta=nan", ["model.theta=nan", "finite"]),
        ("model", "model.scaling.method=yran", ["model.scaling.method=yran", "'yarn'"]),
        ("model", "model._target_=os.system", ["model._target_=os.system", "PositionEncoding"]),
        (
            "model",
            "model._target_=tape_exp.models.positions.tape.TAP",
            ["model._target_=", "loaded"],
        ),
        ("model", "model._target_=null", ["model has no _target_", "must name a class"]),
        ("task", "task._target_=tape_exp.models.positions.nope.NoPE", ["subclass", "Task"]),
    ],
)
def test_keys_types_and_ranges_are_those_of_the_constructor(section, override, parts):
    cfg = compose_config(["model=tape", *override.split()])
    given = {"task": {"seed": 0}, "model": {"arch": Arch(1, 8, 2, 8)}}[section]
    with pytest.raises(ConfigError) as error:
        build(cfg[section], section, **given)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("trainer.strategy=fancy", "trainer.strategy=fancy is not known"),
        ("trainer.attention=flahs", "'flash'"),
        ("trainer.precision=16-mixed", "trainer.precision=16-mixed"),
        ("trainer.devices=0", "trainer.devices=0 should be greater"),
        ("logger.mode=on", "logger.mode="),
        ("seed=-1", "seed=-1 should"),
        ("seeds=1", "seeds is not known. Did you mean 'seed'?"),
        ("model.name=../x", "must be of letters, digits and _ . + -, as in model.name=mine_2."),
        ("~task.name", "task.name=None"),
        ("~model", "every run needs model: leave ~model out"),
        ("~seed", "every run needs seed: leave ~seed out"),
        ("~trainer.devices", "every run needs trainer.devices: leave ~trainer.devices out"),
        ("runs=", "runs= has no value"),
        ("cache=", "cache= has no value"),
        ("checkpoint=", "checkpoint= has no value"),
        ("seed='3'", "seed='3' should be a valid integer, and is a text: write seed=3 without"),
        ("seed=${oc.env:THREE}", "or the shell's $NAME instead of ${oc.env:NAME}"),
        ("model.name=<|a|>", """needs quotes around its value: 'model.name="<|a|>"'"""),
        ("seed=${oc.decode:${oc.env:X}}", """value: 'seed="${oc.decode:${oc.env:X}}"'"""),
        ("+trainer.device=5", "trainer.device is not known. Did you mean 'devices'?"),
        ("+taks=5", "taks is not known. Did you mean 'task'?"),
        ("task=c4 task.text.path=mine", "add scale.text=local"),
    ],
)
def test_choices_and_ranges_of_the_fixed_sections(words, part, monkeypatch):
    monkeypatch.setenv("THREE", "3")
    with pytest.raises(ConfigError, match=re.escape(part)):
        compose_config(words.split())


# A value of every key of the three classes whose keys YAMLs may leave out, or the sentence of one
# that the task sets itself.
VALUES = {
    "task.optim": {
        "batch": 32,
        "max_steps": 9,
        "lr": 0.5,
        "betas": [0.5, 0.75],
        "eps": 1e-6,
        "weight_decay": 0.25,
        "clip": 2.0,
        "warmup": 0.03125,
        "decay": 0.25,
        "decay_shape": "cosine",
        "final_lr": 0.5,
        "position_lr": 2.0,
    },
    "task.arch": {
        "layers": 3,
        "width": 48,
        "heads": 2,
        "ffn": 40,
        "vocab": "follows from the task",
        "max_length": "follows from the task",
        "train_length": "follows from the task",
        "digits": "follows from the task",
        "kv_heads": 1,
        "head_size": 6,
        "tied": True,
        "qkv_bias": True,
        "norm_eps": 0.5,
    },
    "model": {
        "window": 8,
        "sinks": 2,
        "ssmax": True,
        "temperature": True,
        "qk_norm": True,
        "random_range": 2.0,
        "random_floats": True,
    },
}
CLASSES = {"task.optim": Optim, "task.arch": Arch, "model": AttentionConfig}
TOGETHER = {"sinks": "model.window=8", "random_floats": "model.random_range=2.0"}  # what they need


def test_the_table_of_keys_is_whole():
    for section, cls in CLASSES.items():
        assert [*VALUES[section]] == [field.name for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, keys in VALUES.items() for key in keys]
)
def test_every_key_of_a_model_and_its_training_can_be_set(section, key):
    """As a word without a plus and with one, and by ``train.py`` as by the library."""
    value = VALUES[section][key]
    if value == "follows from the task":
        with pytest.raises(ConfigError, match=rf"{section}\.{key} {value}"):
            compose_config([f"{section}.{key}=7"])
        return
    word = f"{section}.{key}={literal(value)}"
    hashes = set()
    for written in (word, f"++{word}"):
        words = ["model=rope", *filter(None, [TOGETHER.get(key)]), written]
        cfg = compose_config(words)
        assert OmegaConf.select(cfg, f"{section}.{key}") == value
        _, task = blank_parts(cfg)
        hashes.add(RunDirectory(cfg).hash)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            assert compose("config", rewrite_for_hydra(words))[section.partition(".")[0]]
    assert len(hashes) == 1
    if section != "model":
        kind = section.removeprefix("task.")
        found = getattr(getattr(task, kind), key)
        assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize(
    ("present", "remedy"),
    [(0, "has no GPUs; use trainer=cpu."), (2, "has 2 GPUs; set trainer.devices=2.")],
)
def test_what_to_do_with_fewer_gpus(present, remedy, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: present)
    cfg = compose_config(["trainer=gpu", "trainer.devices=4"])
    with pytest.raises(ConfigError, match=remedy):
        require_devices(cfg.trainer)


def test_what_starts_the_processes_of_several_nodes(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    cfg = compose_config(["trainer=cpu", "trainer.nodes=2"])
    with pytest.raises(ConfigError, match=r"torchrun --nnodes=2, .* on each node\."):
        require_devices(cfg.trainer)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_a_rank_of_another_run_does_not_silence_one_of_one_process(name, monkeypatch):
    """As it is left in a shell by ``srun --pty`` or torchrun: the run still writes its record."""
    monkeypatch.setenv(name, "1")
    with processes(compose_config([]).trainer, "hash"):
        assert first_process()


def test_hash_depends_on_what_is_computed_and_on_nothing_else():
    base = RunDirectory(compose_config([])).hash
    for same in (
        "trainer=cpu",
        "logger=none",
        "trainer.workers=2",
        "trainer.log_every=3",
        "runs=/elsewhere",
        "trainer=ddp",
    ):
        assert RunDirectory(compose_config([same])).hash == base, same
    for other in (
        "seed=1",
        "model=rope",
        "task.optim.lr=0.1",
        "scale=small",
        "trainer.precision=bf16-true",
        "debug=one_batch",
    ):
        assert RunDirectory(compose_config([other])).hash != base, other


SIZES = sorted(path.stem for path in (CONF / "scale").glob("digits*.yaml"))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper", *SIZES])
def test_scales_give_valid_sizes(scale):
    cfg = compose_config([f"scale={scale}"])
    task = build(cfg.task, "task", seed=0)
    assert isinstance(task.optim, Optim)
    assert task.test_digits == 2 * task.train_digits


@pytest.mark.long
def test_every_model_can_be_built_on_every_size_of_the_ladder():
    assert len(SIZES) == 4
    models = [compose_config([f"model={model}"]).model for model in [*MODELS, *NUMBERS]]
    for scale in SIZES:
        cfg = compose_config([f"scale={scale}"])
        for cfg.model in models:
            assert len(blank_parts(cfg)[0].blocks()) == 6, "the sizes share their depth"


def test_a_key_of_the_scale_reaches_the_tasks_that_read_it():
    words = ["task=passkey", "scale.language.arch.width=32", "scale.language.passkey.lengths=[96]"]
    task = build(compose_config(words).task, "task", seed=0)
    assert (task.arch.width, task.lengths) == (32, [96])


RECIPES = {  # table training_recipe of the paper: batch, steps, learning rate
    "arithmetic": (512, 20_000, 1e-4),
    "c4": (512, 10_000, 1e-4),
    "scrolls": (64, 1000, 1e-5),
    "extend": (64, 1000, 2e-5),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", RECIPES)
def test_only_scale_paper_has_the_papers_recipe(task):
    """The other scales have learning rates of their own, all above the paper's."""
    for scale in ("paper", "smoke", "small", *(SIZES if task == "arithmetic" else [])):
        optim = compose_config([f"task={task}", f"scale={scale}"]).task.optim
        if scale == "paper":
            assert (optim.batch, optim.max_steps, optim.lr) == RECIPES[task]
        else:
            assert optim.lr > RECIPES[task][2], scale


@pytest.mark.slow
def test_help_lists_every_choice_and_cfg_the_resolved_values():
    listed = train("--help").stdout.replace(",", " ").split()
    for group in (*CONFIG_GROUPS, "paper"):
        assert {path.stem for path in (CONF / group).glob("*.yaml")} <= set(listed)
    printed = train("--cfg", "job", "--resolve", "model=rope", "task.train_digits=7").stdout
    assert "train_digits: 7" in printed
    assert "${" not in printed


@pytest.mark.slow
def test_mistakes_end_with_status_2_and_one_line(tmp_path):
    for words, part in (
        (["debug=plan", "modle=tape"], "'model'"),
        (["debug=plan", "trainer=ddp", "task.optim.batch=7"], "task.optim.batch=8 could."),
        (["debug=plan", "trainer.frozen_bf16=true"], "trainer.precision=bf16-mixed"),
        (["task.optim.batch=7", "trainer.micro_batch=2"], "trainer.micro_batch=1 does."),
        (["trainer=gpu", "trainer.devices=64"], "use trainer=cpu"),
        (["--mutlirun"], "Did you mean '--multirun'? `tape-exp train --help` explains"),
        (["-m", "--cfg", "job"], "Only one of --run, --multirun, --cfg"),
    ):
        failed = train("logger=none", f"runs={tmp_path}", *words)
        assert failed.returncode == 2, failed.stderr
        assert failed.stderr.startswith("error: ")
        assert part in failed.stderr
        assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr


@pytest.mark.slow
def test_a_pattern_of_layers_is_a_word_of_the_command():
    planned = train("-m", "model=[rope_window,{name:nope,window:8}]", "seed=0,1", "debug=plan")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.count("rope_window+nope on") == 2


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_job_that_failed(tmp_path):
    words = ["task.arch.layers=1", "task.arch.width=16", "task.optim.max_steps=1", "logger=none"]
    words += ["task.samples_per_cell=1", "task.train_digits=1", "task.test_digits=2"]
    done = train("-m", *words, "task.optim.batch=0,4", f"runs={tmp_path}")
    assert done.returncode == 2
    assert "task.optim.batch=0" in done.stderr
    assert len(list(tmp_path.rglob("DONE"))) == 1


LIGHT = {
    "a wrong key": (["train", "task.trian_digits=4"], {"torch", "lightning", "wandb"}),
    "train --help": (["train", "--help"], {"torch", "lightning", "wandb"}),
    "--help": (["--help"], {"torch", "lightning", "hydra", "omegaconf", "numpy", "pydantic"}),
    # It is asked for every few seconds, and on login nodes.
    "status": (["status", "--runs", "runs"], {"torch", "lightning", "hydra", "omegaconf", "numpy"}),
    "compare": (
        ["compare", "task=arithmetic", "model=rope,tape", "seed=0,1,2"],
        {"torch", "lightning", "wandb"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("command", LIGHT)
def test_a_command_that_trains_nothing_imports_no_torch(command, tmp_path):
    words, heavy = LIGHT[command]
    assert not heavy & modules_of(words)


@pytest.mark.slow
def test_a_finished_run_is_answered_without_torch(tmp_path):
    words = ["model=rope", "task=arithmetic", f"runs={tmp_path}"]
    directory = RunDirectory(compose_config(words))
    directory.path.mkdir(parents=True)
    directory.finish({"metrics": {}})
    assert not {"torch", "lightning"} & modules_of(["train", *words])


def modules_of(words):
    """The packages that a command has imported when it ends."""
    program = (
        "import sys, atexit; from tape_exp.__main__ import main\n"
        "atexit.register(lambda: print('modules:', *{m.partition('.')[0] for m in sys.modules}))\n"
        f"sys.argv = ['tape-exp', *{words}]; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    loaded = set(ended.stdout.rpartition("modules:")[2].split())
    assert "tape_exp" in loaded, ended.stderr
    return loaded
