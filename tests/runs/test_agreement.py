"""Which differences between a config and that of a checkpoint's run are told, or refused."""

import functools
import logging
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.conformance import ARCH, rows
from tape_exp.models.decoder import Decoder
from tape_exp.models.layers import kinds_of
from tape_exp.models.peft import Adaptation
from tape_exp.models.sections import with_defaults
from tape_exp.runs.agreement import check_config, differences
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError

LORA = ["peft=lora", "peft.interpolation=1"]
# The words of a run, those of a config that takes its weights, and the key in which they differ.
PAIRS = [
    ("model=rope", "model=rope model.theta=500", "model.theta"),
    ("model=rope", "model=rope +model.window=3", "model.window"),
    ("model=rope", "model=rope_window model.window=3", "model.window"),
    ("model=rope_window model.window=4", "model=rope", "model.window"),
    ("model=rope_window model.window=4", "model=rope_window model.window=6", "model.window"),
    ("model=rope +model.window=4", "model=rope +model.window=4 +model.sinks=1", "model.sinks"),
    ("model=rope", "model=randpe", "model.random_range"),
    ("model=rope", "model=rope +model.random_range=2", "model.random_range"),
    ("model=randpe", "model=rfs", "model.random_floats"),
    ("model=rope", "model=[rope,nope]", "model"),
    ("model=[rope,nope]", "model=[nope,rope]", "model"),
    ("model=[rope,rope_window]", "model=rope", "model.layers.1.window"),
    ("model=rnope_swa", "model=rnope_swa +model.layers.0.window=5", "model.layers.0.window"),
    (
        "model=[rope,{name:rope,window:4}]",
        "model=[{name:rope,scaling:{method:linear,factor:2}},{name:rope,window:5}]",
        "model.layers.1.window",
    ),
    ("model=rope", "model=nope", "model"),
    ("model=rope", "model=alibi", "model"),
    ("model=rope", "model=xpos", "model"),
    ("model=p_rope", "model=p_rope model.p=0.5", "model.p"),
    ("model=rope_yarn", "model=rope", "model.scaling.method"),
]
# Encodings that begin as RoPE, and the words with which they do.
BEGIN_AS_ROPE = [
    "model=tape",
    "model=p_rope model.p=1",
    "model=grape",
    "model=repo model.start=rope",
    "model=selective_rope model.start=rope model.theta=10000",
]
ALIKE = [
    ("model=rope", "model=rope +model.window=null +model.ssmax=false"),
    ("model=rope", "model=[rope,rope]"),
    ("model=rope", "model=rope_theta model.theta=10000"),
    ("model=[rope,nope]", "model=[rope,nope,rope,nope]"),
]


@functools.cache
def config(words: str, *more: str):
    return compose_config(["task=battery", *words.split(), *more])


def logits(cfg) -> torch.Tensor:
    """Those of one set of weights, in which every key can be seen."""
    section = OmegaConf.to_container(cfg.model, resolve=True)
    decoder = Decoder(ARCH, kinds_of(section)).eval()
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            if ".position." not in name and weight.ndim > 1:
                weight.mul_(10)
        return decoder(rows(2, 40), sampler=RowSampler(0))


@pytest.mark.parametrize(("stored", "now", "key"), PAIRS)
def test_a_key_that_changes_logits_is_a_difference(stored, now, key):
    run = config(stored)
    cfg = config(now)
    assert not torch.allclose(logits(run), logits(cfg), atol=1e-4)
    assert key in differences(run, cfg, ARCH.layers)


@pytest.mark.parametrize(("stored", "now"), ALIKE)
def test_sections_of_equal_logits_do_not_differ(stored, now):
    run = config(stored)
    cfg = config(now)
    assert torch.equal(logits(run), logits(cfg))
    assert differences(run, cfg, ARCH.layers) == {}


def test_a_run_that_was_not_stretched_may_be():
    run = config("model=rope")
    stretched = config("model=rope model.scaling.method=yarn model.scaling.factor=2")
    assert differences(run, stretched, ARCH.layers) == {}


def check(stored: str, now: str, *, of_adapted: bool, method: list[str]):
    """Check a config as a run does, and return the differences that are left."""
    run = config(stored, *(method if of_adapted else []))
    cfg = config(now, *method)
    adaptation: Adaptation = build(OmegaConf.to_container(cfg.peft), "peft")
    decoder = Decoder(ARCH, kinds_of(OmegaConf.to_container(cfg.model, resolve=True)))
    check_config(decoder, cfg, run, Path("runs/base/last.ckpt"), adaptation)
    return differences(run, cfg, ARCH.layers, adaptation)


@pytest.mark.parametrize("of_adapted", [True, False], ids=["an adapted run", "a base"])
@pytest.mark.parametrize(("stored", "now", "key"), PAIRS)
def test_an_adaptation_refuses_other_logits(stored, now, key, of_adapted):
    with pytest.raises(ConfigError, match=r"was trained with|cannot continue from RoPE"):
        check(stored, now, of_adapted=of_adapted, method=LORA)


@pytest.mark.parametrize("of_adapted", [True, False], ids=["an adapted run", "a base"])
@pytest.mark.parametrize(("stored", "now"), ALIKE[:3])
def test_an_adaptation_takes_equal_logits(stored, now, of_adapted):
    assert check(stored, now, of_adapted=of_adapted, method=LORA) == {}


@pytest.mark.parametrize("now", BEGIN_AS_ROPE)
def test_an_encoding_that_begins_as_rope_takes_a_base_of_rope(now):
    """Stretched or not, since the base was not; but not with another theta."""
    full = ["peft=full", "peft.interpolation=1"]
    assert torch.allclose(logits(config("model=rope")), logits(config(now)), atol=1e-4)
    assert check("model=rope", now, of_adapted=False, method=full) == {}
    if "scaling" in with_defaults(OmegaConf.to_container(config(now).model, resolve=True)):
        yarn = f"{now} ++model.scaling.method=yarn ++model.scaling.factor=2"
        assert check("model=rope", yarn, of_adapted=False, method=full) == {}
    with pytest.raises(ConfigError, match=r"was trained with model\.theta=500"):
        check("model=rope model.theta=500", now, of_adapted=False, method=full)


def test_dropping_positions_keeps_the_window():
    assert check("model=rope", "model=nope", of_adapted=False, method=["peft=drope"]) == {}
    with pytest.raises(ConfigError, match=r"with model\.window=4, and model\.window is null here"):
        check("model=rope +model.window=4", "model=nope", of_adapted=False, method=["peft=drope"])


def test_theta_scaling_may_change_theta():
    other = "model=rope model.theta=500"
    assert check("model=rope", other, of_adapted=False, method=["peft=theta"]) == {}


def test_other_weights_are_only_warned_of_where_nothing_is_adapted(caplog):
    cfg = config("model=rope")
    with caplog.at_level(logging.WARNING, "tape_exp"):
        check_config(
            Decoder(ARCH, kinds_of(OmegaConf.to_container(cfg.model, resolve=True))),
            cfg,
            config("model=rope_window model.window=4"),
            Path("last.ckpt"),
            None,
        )
    (said,) = caplog.messages
    assert said == (
        "checkpoint last.ckpt was trained with model.window=4, and model.window is null here; set "
        "model.window=4 unless you mean it."
    )
