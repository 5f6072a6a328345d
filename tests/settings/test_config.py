"""Mistakes on the command line: one sentence, the key, and a word or value that works."""

import os
import re
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.identity import config_hash
from tape_exp.settings import compose, folders, plugins
from tape_exp.settings.compose import _composed, compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import CONF, ROOT
from tape_exp.settings.redaction import redact
from tape_exp.settings.schema import Arch, Optim, check
from tape_exp.training import assembly
from tape_exp.training.assembly import blank_task, check_parts, micro_batches
from tape_exp.training.plan import decoder_of
from tape_exp.training.run import run
from tests.conftest import MODELS, NUMBERS, TASKS
from tests.processes import train


def command(
    *arguments: str, module: tuple[str, ...] = ("train.py",)
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=tpae", "model=tpae is not known. Did you mean 'tape'? Choose one of: abacus,"),
        ("scale=../config", "scale=../config is not known. Choose one of: paper, rung12,"),
        (
            "model=../task/arithmetic",
            "model=../task/arithmetic is not known. Choose one of: abacus",
        ),
        ("task=shared/language", "task=shared/language is not known. Choose one of: arithmetic,"),
        ("task=aritmetic", "task=aritmetic is not known. Did you mean 'arithmetic'?"),
        ("foo", "foo is not an override: give a key and its value, as in model=tape."),
        ("modle=tape", "modle is not known. Did you mean 'model'?"),
        (
            "task.trian_digits=4",
            "task.trian_digits is not known. Did you mean 'task.train_digits'?",
        ),
        (
            "task.windows.lengths=[1]",
            "task.windows.lengths is not known. task=c4 has it. `python train.py --cfg job` shows "
            "every key.",
        ),
        ("model.thetta=4", "model.thetta is not known. Did you mean 'model.theta'?"),
        ("seed=first", "seed=first must be an integer, and `-m` takes several, as in seed=0,1,2."),
        ("trainer.devices=two", "trainer.devices=two must be an integer."),
        ("trainer.devices=[1]", "trainer.devices=[1] must be an integer."),
        ("trainer.devices=1.5", "trainer.devices=1.5 must be an integer."),
        ("=3", "=3 is not an override: give a key and its value, as in model=tape."),
        ("model=", "model= must choose one YAML of conf/model, as model=abacus does."),
        (
            "hydra/launcher=slrum",
            "hydra/launcher=slrum is not known. Did you mean 'slurm'? Choose one of: basic, slurm",
        ),
        ("task.optim.betas={a: 1}", "task.optim.betas is a list; set it as a whole, as in"),
        ("model.targe=1", "model.targe is not known. `python train.py --cfg job` shows"),
        ("trainer.max_steps=3", "trainer.max_steps is not known. task.optim.max_steps has this"),
        ("task.lr=3", "task.lr is not known. task.optim.lr has this name. `python train.py"),
        ("task.max_stps=3", "task.max_stps is not known. Did you mean 'task.optim.max_steps'?"),
        ("peft.rank=4", "peft.rank is not known. peft=lora has peft.lora.rank. `python train.py"),
        ("model=rope model.start=0.5", "model.start is not known. model=repo has it. `python"),
        ("task=c4 task.target=3", "task.target is not known. `python train.py --cfg job` shows"),
        ("task=c4 task.x=1 task.train_digits=3", "task.x is not known."),
        (
            "task=c4 task.train_digits=3 task.x=1",
            "task.train_digits is not known. task=arithmetic has it.",
        ),
        (
            "task=c4 task.optim.position_lr=2 task.x=1",
            "task.optim.position_lr is not set by this scale; add it with "
            "+task.optim.position_lr=2.",
        ),
    ],
)
def test_composition_errors(override, message):
    with pytest.raises(ConfigError) as error:
        compose_config(re.split(r" (?=[a-z]+[=.])", override))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert redact(str(error.value)) == str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        [
            "seed=3",
            "task=c4",
            "model=rope",
            "task.windows.lengths=[16,32]",
            "checkpoint=null",
            "scale.text=local",
        ],
        [
            "task.arch={layers: 1, heads: 2}",
            "task.optim.lr=1e-3",
            "task.optim.lr=2e-3",
            "runs='a b'",
            "model.theta=2e4",
        ],
        [
            "task=extend",
            "text@task.text=pg19",
            "task.text.path=${runs}/text",
            "peft=lora",
            "checkpoint=c4",
        ],
        ["task=arithmetic", "+model.toy=1", "~task.test_digits", "seed=2", "++task.more=3"],
    ],
)
def test_values_on_kept_choices_are_what_hydra_composes(words):
    for asked in (words, list(reversed(words))):
        found, whole = compose_config(asked), _composed(tuple(asked))
        assert OmegaConf.to_container(found) == OmegaConf.to_container(whole)
        assert OmegaConf.is_struct(found) == OmegaConf.is_struct(whole)
    assert compose_config(words) is not compose_config(words)


def test_configs_that_differ_only_in_values_are_composed_once():
    compose_config(["model=rope", "task=arithmetic"])
    before = _composed.cache_info().misses
    for word in ("seed=7", "task.optim.lr=0.5", "+task.more=1", "~task.test_digits", "runs=a"):
        compose_config(["model=rope", word, "task=arithmetic"])
    assert _composed.cache_info().misses == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.train_digits=1,2",
            "task.train_digits=1,2 gives several values to one run; `python train.py -m` runs one "
            "after the other, and task.train_digits=[1,2] is a list.",
        ),
        ("seeds=0,1", "seeds is not known. Did you mean 'seed'?"),
        ("task.optim.position_lr=1,3", "task.optim.position_lr is not set by this scale; add it"),
        (
            "task=arithmetic,c4",
            "task=arithmetic,c4 gives several values to one run; `python train.py -m` runs one "
            "after the other.",
        ),
        ("model._target_=os.system", "model._target_=os.system must name a class inside tape_exp"),
        ("task.train_digits=[1", "task.train_digits=[1 cannot be read"),
    ],
)
def test_values_are_checked_wherever_they_are_set(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        compose_config(["model=rope", override])


@pytest.mark.parametrize(
    ("section", "override", "message"),
    [
        ("task", "+task.arch.norm_eps=-3", r"task\.arch\.norm_eps=-3.0 must be above 0"),
        ("task", "task.train_digits=0", r"task\.train_digits=0 must be at least 1"),
        (
            "task",
            "task.train_digits=three",
            r"task\.train_digits=three is of a wrong type: int is expected",
        ),
        (
            "task",
            "task.arch.width=90",
            r"task\.arch\.width=90 is not divisible by task\.arch\.heads=4",
        ),
        ("task", "task.optim.lr=-1", r"task\.optim\.lr=-1\.0 must be positive"),
        ("task", "task.optim.lr=nan", r"task\.optim\.lr=nan must be a finite number"),
        ("task", "task.optim.warmup=nan", r"task\.optim\.warmup=nan must be a finite number"),
        ("task", "task.optim.lr=inf", r"task\.optim\.lr=inf must be a finite number"),
        ("task", "task.optim.clip=-1", r"task\.optim\.clip=-1\.0 must be positive"),
        ("task", "task.optim.clip=0", r"task\.optim\.clip=0\.0 must be positive"),
        ("task", "task.optim.final_lr=-3", r"task\.optim\.final_lr=-3\.0 must be from 0 to 1"),
        (
            "task",
            "task.optim.weight_decay=-50",
            r"task\.optim\.weight_decay=-50\.0 must be at least 0",
        ),
        ("task", "task.optim.betas=[0.9]", r"task\.optim\.betas=\[0\.9\] must be two numbers"),
        ("task", "task.optim.betas=[0.9,1]", r"task\.optim\.betas=\[0\.9, 1\.0\] must be two"),
        ("task", "task.rows_per_batch=-5", r"task\.rows_per_batch=-5 must be at least 1"),
        ("model", "model.theta=nan", r"model\.theta=nan must be a finite number"),
        (
            "task",
            "task.optim.decay=0.99",
            r"task\.optim\.warmup=0\.05 and task\.optim\.decay=0\.99",
        ),
        ("task", "+task.arch.depth=2", r"task\.arch\.depth is not known\..* Known keys: layers"),
        (
            "task",
            "+task.train_digit=2",
            r"task\.train_digit is not known\. Did you mean 'train_digits'",
        ),
        ("task", "task.optim.batch=many", r"task\.optim\.batch"),
        (
            "task",
            "task.optim.betas=0.9",
            r"task\.optim\.betas=0\.9 must be a list, as in .*=\[0\.9\]",
        ),
        ("task", "+task.arch.vocab=-3", r"task\.arch\.vocab=-3 must be from 0 to"),
        ("task", "~task.test_digits", r"task\.test_digits is missing"),
        (
            "model",
            "model._target_=tape_exp.models.positions.tape.TAP",
            r"model\._target_=.*cannot be loaded",
        ),
        (
            "model",
            "model.scaling.method=yran",
            r"model\.scaling\.method=yran is not known\. Did you mean 'yarn'",
        ),
    ],
)
def test_constructor_errors(section, override, message):
    cfg = compose_config(["model=tape", override])
    given = {"task": {"seed": 0}, "model": {"arch": Arch(1, 8, 2, 8)}}[section]
    with pytest.raises(ConfigError, match=message):
        build(cfg[section], section, **given)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "trainer.progress=fancy",
            r"trainer\.progress=fancy is not known\. Choose one of: auto, rich",
        ),
        ("trainer.devices=0", r"trainer\.devices=0 must be at least 1"),
        (
            "trainer.attention=flahs",
            r"trainer\.attention=flahs is not known\. Did you mean 'flash'",
        ),
        ("trainer.micro_batch=0", r"trainer\.micro_batch=0 must be at least 1, or null"),
        ("trainer.workers=100000", r"trainer\.workers=100000 must be from 0 to 256"),
        ("trainer.workers=-1", r"trainer\.workers=-1 must be from 0 to 256"),
        (
            "task=c4 task.text.path=/does/not/exist",
            r"task\.text\.path=/does/not/exist is not read, since task\.text\.source=builtin; "
            r"add scale\.text=local\.",
        ),
        ("task=perplexity checkpoint=c4 task.text.path=a", r"task\.text\.path=a is not read"),
        ("task=c4 task.tests.github.path=a", r"task\.tests\.github\.path=a is not read"),
        (
            "task=benchmarks checkpoint=c4 task.source=builtin task.path=a",
            r"task\.path=a is not read, since task\.source=builtin; add task\.source=local\.",
        ),
        ("task=c4 task.text.column=x", r"text\.column=x is not read.*add scale\.text=local\."),
        ("task=c4 task.text.revision=x", r"text\.revision=x is not read.*add scale\.text=hub\."),
        ("task=scrolls task.repository=x", r"task\.repository=x is not read"),
        (
            "task=c4 task.tokenizer.path=mine.json",
            r"tokenizer\.path=mine\.json is not read, since .*kind=bpe; add .*kind=file",
        ),
        ("task=c4 task.tokenizer.kind=byte task.tokenizer.vocab=999", r"vocab=999 is not read"),
        ("task=c4 task.tokenizer.kind=byte task.tokenizer.sample_mb=3", r"sample_mb=3 is not read"),
        ("task=c4 task.tests.github.column=nan", r"github\.column=nan must be a finite number"),
        ("task=c4 task.windows.lengths=[1,inf]", r"windows\.lengths\.1=inf must be a finite"),
        ("model.name=${seed}", r"model\.name=0 becomes a folder's name"),
        (f"task.name={'x' * 300}", r"task\.name has 300 characters"),
        ("task=scrolls task.init_from=0", r"task\.init_from=0 must be a task, a run's folder"),
        ("scale.language.train_length=9", r"train_length=9 changes nothing: task=arithmetic reads"),
        ("scale.language.arch={layers: 1}", r"scale\.language\.arch\.layers=1 changes nothing"),
        ("+scale.mine=1 task=c4", r"scale\.mine=1 changes nothing: task=c4 reads no scale\.mine"),
        ("task=c4 scale.arithmetic_20.test_digits=9", r"test_digits=9 changes nothing"),
        ("task=c4 task.text.path=data/pg19", r"text\.path=data/pg19 is not read"),
        ("logger.timeout=0", r"logger\.timeout=0 must be at least 1"),
        ("debug.max_steps=0", r"debug\.max_steps=0 must be at least 1"),
        ("debug.evaluation_batches=-1", r"debug\.evaluation_batches=-1 must be at least 1"),
        (
            "debug.max_steps=5",
            r"debug\.max_steps has an effect only beside debug=one_batch, .*: add one of them",
        ),
        ("debug.profiler=magic", r"debug\.profiler=magic is not known\. Choose one of: simple"),
        (
            "trainer.precision=bf16",
            r"trainer\.precision=bf16 is not known\. Did you mean 'bf16-true'|'bf16-mixed'",
        ),
        ("trainer=fsdp_7b trainer.compile=true", r"compile=true has no effect where weights are s"),
        ("logger.project=a/b:c", r"logger\.project=a/b:c holds / :, which W&B takes in no"),
        *(
            (f"logger={name} logger.{word}", rf"^logger\.{word.partition('=')[0]} has no effect")
            for name, word in (
                ("none", "project=x"),
                ("none", "tags=[x]"),
                ("csv", "entity=foo"),
                ("tensorboard", "mode=offline"),
            )
        ),
        ("logger=csv logger.notes=x", "beside logger=csv; set logger=wandb, or leave it out"),
        ("debug=plan debug.overfit=true", r"debug\.overfit has no effect beside debug=plan"),
        ("debug=plan debug.profiler=simple", r"debug\.profiler has no effect beside debug=plan"),
        ("seed=-1", "^seed=-1 must be at least 0"),
    ],
)
def test_cross_checks(override, message):
    with pytest.raises(ConfigError, match=message):
        check(compose_config(re.split(" (?=[+~]?[a-z]+[.=])", override)))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *(
            (f"{group}=null", f"{group}=null must choose one YAML of conf/{group}, as ")
            for group in ("task", "model", "scale", "trainer", "peft", "logger", "debug")
        ),
        ("task=3", "task=3 must choose one YAML of conf/task, as task=arithmetic does."),
        ("model=5", "model=5 must choose one YAML"),
        ("task=[c4,pg19]", "task=[c4,pg19] must choose one YAML of conf/task"),
        *(
            (f"~{group}", f"~{group} must choose one YAML of conf/{group}, as ")
            for group in ("task", "model", "scale", "trainer", "peft", "logger", "debug")
        ),
        ("task={name:foo}", "task={name:foo} must choose one YAML of conf/task, as task=arith"),
        ("scale={name:foo}", "scale={name:foo} must choose one YAML of conf/scale"),
        (
            "task.arch=[1]",
            "task.arch is a section of keys; set one of them, as in task.arch.<key>=",
        ),
        ("task.x=[1", "task.x=[1 cannot be read; close its brackets and quotes"),
        ("logger.project=ü", "logger.project=ü cannot be read"),
        ("~seed", "seed is missing: every run needs it, so leave out ~seed."),
        ("~runs", "runs is missing"),
        ("~task.name", "task.name=null must be a word, as in task.name=mine."),
        ("~model.name", "model.name=null must be a word"),
        ("task.name=null", "task.name=null must be a word"),
        ("+taks.optim.lr=5", "taks is not known. Did you mean 'task'? Leave it out."),
        ("+trainer.nope=5", "trainer.nope is not known."),
        ("+peft.nope=5", "peft.nope is not known."),
        ("+debug.nope=5", "debug.nope is not known."),
        ("task.name=5", "task.name=5 must be a word"),
        ("model.name=rope", "model.name=rope is the name of another model, model=rope; give a"),
        ("task.name=c4", "task.name=c4 is the name of another task, task=c4; give a name"),
        ("runs=''", "runs='' is empty; name a place, or leave runs out."),
        ("cache=''", "cache='' is empty"),
        ("checkpoint=''", "checkpoint='' is empty"),
        ("scale.name=foo", "scale.name=foo is not known. Choose one of: paper, rung12"),
        ("debug.name=foo", "debug.name=foo is not known. Choose one of: none, one_batch"),
        ("task.optim=null", "task.optim=null must be a section of keys"),
        ("task.optim=5", "task.optim=5 must be a section of keys"),
        ("task.arch=null", "task.arch=null must be a section of keys"),
        ("task.arch.width=1000000000", "task.arch.width=1000000000 must be from 1 to 1000000."),
        ("task.arch.layers=20000", "task.arch.layers=20000 must be from 1 to 10000."),
        ("task.arch.heads=20000", "task.arch.heads=20000 must be from 1 to 10000."),
        ("task.arch.ffn=2000000", "task.arch.ffn=2000000 must be from 1 to 1000000."),
        ("task.optim.lr=1e4", "task.optim.lr=10000.0 must be from 0 to 1000."),
        ("+task.optim.position_lr=1e300", "task.optim.position_lr=1e+300 must be from 0 to"),
        ("trainer.micro_batch=512", "trainer.micro_batch=512 is above task.optim.batch=256"),
        ("task.test_digits=20000", "task.test_digits=20000 must be from 1 to 10000."),
        ("model.scaling=5", "model.scaling=5 must be a section of keys"),
        (
            "task.optim.position_lr=10",
            "task.optim.position_lr is not set by this scale; add it with "
            "+task.optim.position_lr=10.",
        ),
        ("task.arch.tied=true", "task.arch.tied is not set by this scale; add it with +task.arch"),
        ("task.optim.max_steps=10000000000", "task.optim.max_steps=10000000000 must be from 1 to"),
        ("task.train_digits=1e400", "task.train_digits=inf must be a finite number"),
        ("task.samples_per_cell=10000000000000000", "task.samples_per_cell=10000000000000000 must"),
        ("task=patterns task.layers=null", "task.layers=null must be a list, as in task.layers=["),
        ("task=patterns task.layers=[a]", "task.layers[0]=a is of a wrong type: int is expected."),
        ("task=patterns task.split=''", "task.split= is not known. Choose one of: train, valid"),
        ("task=c4 task.test_split=x", "task.test_split=x is not known. Choose one of: train, val"),
        ("task=stability task.std=-1", "task.std=-1.0 must be positive."),
        ("task=efficiency task.timing.length=0", "task.timing.length=0 must be at least 1."),
        ("task=efficiency task.timing.seconds=0", "task.timing.seconds=0.0 must be positive."),
        ("task=c4 task.tokenizer.vocab=-3", "task.tokenizer.vocab=-3 must be at least 1."),
        ("task=c4 task.tokenizer.eos=''", "task.tokenizer.eos='' is empty; leave it out."),
        ("model.scaling.beta_fast=3", "model.scaling.beta_fast is not set by this model; add it"),
    ],
)
def test_values_that_no_run_has_are_refused_before_it_begins(override, message):
    def begin():
        cfg = compose_config(override.split())
        check(cfg)
        task = blank_task(cfg)
        decoder_of(cfg, task)
        micro_batches(cfg, task)

    with pytest.raises(ConfigError) as error:
        begin()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("key", "size"), [("vocab", 14), ("max_length", 33), ("train_length", 18)])
def test_a_size_that_the_task_sets_is_no_key(key, size):
    with pytest.raises(ConfigError, match=rf"arch\.{key}=9 has no effect, .* sets it to {size};"):
        blank_task(compose_config([f"+task.arch.{key}=9"]))
    assert blank_task(compose_config(["task=c4", "+task.arch.vocab=900"])).arch.vocab == 900


def test_a_gpu_that_is_not_there_is_told_in_one_sentence(monkeypatch):
    for kind in ("CUDA", "MPS"):
        monkeypatch.setattr(assembly, f"{kind}Accelerator", SimpleNamespace(is_available=bool))
    with pytest.raises(ConfigError, match=r"accelerator=gpu finds no GPU .*; trainer=cpu runs"):
        assembly.assemble(compose_config(["trainer=gpu"]), None, None)


def test_hash_depends_on_what_is_computed_and_on_nothing_else():
    base = config_hash(compose_config([]))
    for same in (
        "trainer=cpu",
        "logger=none",
        "trainer.workers=2",
        "trainer.log_every=3",
        "runs=/elsewhere",
        "trainer=ddp",
    ):
        assert config_hash(compose_config([same])) == base, same
    for other in (
        "seed=1",
        "model=rope",
        "task.optim.lr=0.1",
        "scale=small",
        "trainer.precision=bf16-true",
        "debug=one_batch",
    ):
        assert config_hash(compose_config([other])) != base, other


RUNGS = sorted(path.stem for path in (CONF / "scale").glob("rung*.yaml"))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper", *RUNGS])
def test_scales_give_valid_sizes(scale):
    cfg = compose_config([f"scale={scale}"])
    task = build(cfg.task, "task", seed=0)
    assert isinstance(task.optim, Optim)
    assert task.test_digits == 2 * task.train_digits


def test_every_model_can_be_built_on_every_rung():
    assert len(RUNGS) == 4
    models = [compose_config([f"model={model}"]).model for model in [*MODELS, *NUMBERS]]
    for scale in RUNGS:
        cfg = compose_config([f"scale={scale}"])
        assert blank_task(cfg).arch.layers == 6, "the rungs share their depth"
        for cfg.model in models:
            check_parts(cfg)
    for cfg.model in models:
        assert len(decoder_of(cfg, blank_task(cfg)).blocks()) == 6


@pytest.mark.parametrize("task", ["c4", "pg19", "passkey", "word_problem", "arithmetic_20"])
def test_a_scale_that_a_task_has_no_sizes_for_is_refused(task):
    """Sizes are keys of a scale's YAML or a file of the task's folder; the sentence is the same."""
    with pytest.raises(ConfigError) as error:
        compose_config([f"task={task}", "scale=rung5"])
    expected = f"scale=rung5 is not one of {task}'s. Choose one of: paper, small, smoke."
    assert str(error.value) == expected


def test_a_key_of_the_scale_reaches_the_tasks_that_read_it():
    words = ["task=passkey", "scale.language.arch.width=32", "scale.language.passkey.lengths=[96]"]
    task = build(compose_config(words).task, "task", seed=0)
    assert (task.arch.width, task.lengths) == (32, [96])


def test_paper_scale_is_the_papers():
    task = build(compose_config(["scale=paper"]).task, "task", seed=0)
    easier = build(compose_config(["scale=paper", "task=arithmetic_20"]).task, "task", seed=0)
    assert (task.train_digits, task.test_digits, easier.train_digits, easier.test_digits) == (
        40,
        80,
        20,
        40,
    )
    assert (task.arch.layers, task.arch.width, task.arch.heads) == (16, 1024, 16)
    assert (task.optim.batch, task.optim.max_steps, task.optim.lr) == (512, 20_000, 1e-4)


RECIPES = {  # table training_recipe of the paper: batch, steps, learning rate
    "arithmetic": (512, 20_000, 1e-4),
    "c4": (512, 10_000, 1e-4),
    "scrolls": (64, 1000, 1e-5),
    "extend": (64, 1000, 2e-5),
}


@pytest.mark.parametrize("task", RECIPES)
def test_only_scale_paper_has_the_papers_recipe(task):
    """The other scales have learning rates of their own, all above the paper's."""
    for scale in ("paper", "smoke", "small", *(RUNGS if task == "arithmetic" else [])):
        optim = compose_config([f"task={task}", f"scale={scale}"]).task.optim
        if scale == "paper":
            assert (optim.batch, optim.max_steps, optim.lr) == RECIPES[task]
        else:
            assert optim.lr > RECIPES[task][2], scale


def test_scrolls_at_scale_paper_is_cut_to_1024_tokens():
    assert compose_config(["task=scrolls", "scale=paper"]).task.max_length == 1024


def test_help_lists_every_group_and_choice():
    shown = train("--help")
    assert shown.returncode == 0
    words = shown.stdout.replace(",", " ").split()
    for group in ("model", "task", "scale", "trainer", "logger", "peft", "debug", "paper"):
        assert group in words
        for path in (CONF / group).glob("*.yaml"):
            assert path.stem in words


def test_cfg_job_prints_resolved_values():
    shown = train("--cfg", "job", "model=rope", "task.train_digits=7")
    assert shown.returncode == 0
    assert "train_digits: 7" in shown.stdout
    assert "${" not in shown.stdout


def test_command_line_errors_are_one_sentence_and_exit_code_2():
    for arguments, message in (
        (["model=tpae"], "Did you mean 'tape'"),
        (["task.train_digits=0", "logger=none"], "task.train_digits=0 must be at least 1"),
        (["runs=/proc/runs", "logger=none"], "set runs="),
        (["debug=plan", "modle=tape"], "Did you mean 'model'"),
        (
            ["debug=plan", "task.optim.batch=7", "trainer.micro_batch=2"],
            "trainer.micro_batch=1 does",
        ),
    ):
        failed = train(*arguments)
        assert failed.returncode == 2, failed.stderr
        assert failed.stderr.startswith("error: ")
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
        assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("package", ["hydra", "torch"])
def test_a_signal_during_the_imports_ends_a_run_without_a_traceback(tmp_path, package, number):
    (tmp_path / f"{package}.py").write_text(f"import os; os.kill(os.getpid(), {number:d})\n")
    stopped = subprocess.run(
        [sys.executable, "train.py", f"runs={tmp_path}", "logger=none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert stopped.returncode == -number, stopped.stderr
    assert not stopped.stderr


def test_import_is_light():
    drawing = (
        "from tape_exp.paper import __main__, artifacts; [artifacts.load(name) for name in "
        "artifacts.names()]"
    )
    for imports in ("import tape_exp.settings.schema, tape_exp.cli", drawing):
        code = (
            f"{imports}; import sys; print([m for m in ('torch', 'lightning', 'wandb') if m in "
            "sys.modules])"
        )
        assert command("-c", code, module=()).stdout.strip() == "[]"


def test_a_key_that_another_run_of_a_chain_reads_is_no_mistake():
    for words in ("task=c4 scale.language.patterns.layers=[1]", "task=scrolls scale.text=local"):
        assert check(compose_config(words.split())) is None


@pytest.mark.parametrize(
    "words",
    [
        *((f"model={name}", "task=pg19_sliding", "peft=lora") for name in MODELS[::4]),
        *((f"task={name}", "scale=smoke") for name in TASKS),
        ("task=c4", "scale=paper", "peft=theta"),
        ("scale=rung5", "model=rope", "task=arithmetic"),
    ],
)
def test_sections_put_together_are_what_hydra_composes(words):
    assert all(compose._sections(group, "smoke") for group in compose.APART)
    together, whole = compose._composed(words), compose._by_hydra("config", words)
    assert OmegaConf.to_yaml(together) == OmegaConf.to_yaml(whole)
    assert described(together) == described(whole)


def described(node, key="") -> dict:
    """What is known of every node besides its value."""
    facts = node._metadata
    found = {key: (type(node), facts.flags or {}, facts.ref_type, facts.object_type)}
    if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation():
        for name in node:
            found |= described(node._get_node(name), f"{key}.{name}")
    return found


def test_a_yaml_under_work_spoils_no_other(composed_anew, tmp_path, monkeypatch):
    """One that is wrong, and one that sets more than its section."""
    conf = shutil.copytree(CONF, tmp_path / "conf")
    (conf / "model" / "broken.yaml").write_text("defaults: [nothing]\nname: broken\n")
    (conf / "model" / "latin.yaml").write_bytes(b"# caf\xe9\nname: latin\n")
    (conf / "model" / ".#rope.yaml").symlink_to("user@host.1:2")  # an editor's lock
    more = "# @package _global_\nmodel: {name: theirs}\ntask: {name: more}\n"
    (conf / "task" / "more.yaml").write_text(more)
    for module in (compose, folders):
        monkeypatch.setattr(module, "CONF", conf)
    assert compose.compose_config(["model=rope"]).model.name == "rope"
    assert compose.compose_config(["task=c4"]).task.name == "c4"
    assert compose._composed(("task=more",)) == compose._by_hydra("config", ("task=more",))
    with pytest.raises(ConfigError, match="nothing"):
        compose.compose_config(["model=broken"])
    with pytest.raises(ConfigError, match=r"latin\.yaml is not UTF-8"):
        compose.compose_config(["model=latin"])
    assert not any(name.startswith(".") for name in plugins.names_in("model"))


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["runs='~nobody-here/x'"], "runs=~nobody-here/x"),
        (["cache='~nobody-here/x'"], "cache=~nobody-here/x"),
        (["checkpoint='~nobody-here/x'"], "checkpoint=~nobody-here/x"),
        (["task=c4", "scale.text=local", "task.text.path='~nobody-here/x'"], "path=~nobody-here/x"),
        (
            ["task=c4", "task.tokenizer.kind=file", "task.tokenizer.path='~nobody-here/x'"],
            "task.tokenizer.path=~nobody-here/x",
        ),
    ],
)
def test_a_home_folder_that_nobody_has_is_named_with_its_key(tmp_path, words, key):
    with pytest.raises(ConfigError, match=f"{key}: this machine knows no home folder ~nobody-here"):
        run(compose_config(["model=rope", "logger=none", f"runs={tmp_path}", *words]))
