"""What a run is warned of, and what passes without a word."""

import pytest

from tape_exp.settings.compose import compose_config
from tape_exp.training import cautions
from tape_exp.training.cautions import unread_states, unused_position_rate
from tape_exp.training.from_config import blank_parts
from tape_exp.training.run import run
from tests.conftest import SMALL, on_text

ADDITION = ["task.arch.width=16", "task.arch.heads=2", "task.arch.ffn=16"]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["model=tape", "task.arch.layers=1"], "task.arch.layers=2"),
        (["model=tape_householder", "task.arch.layers=1"], "task.arch.layers=2"),
        (["model=[rope,tape]", "task.arch.layers=2"], "task.arch.layers=4"),
        (["model=tape", "task.arch.layers=2"], None),
        (["model=rope", "task.arch.layers=1"], None),
        (["model=learned", "task.arch.layers=1"], None),
    ],
)
def test_a_state_that_no_layer_reads_is_told(words, remedy):
    decoder, _ = blank_parts(compose_config([*ADDITION, *words]))
    sentences = [*unread_states(decoder)]
    assert len(sentences) == (remedy is not None)
    assert all(sentence.endswith(f"as by {remedy}.") for sentence in sentences)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=rope", "+task.optim.position_lr=2.0"], True),
        (["model=tape_public_addition", "+task.optim.position_lr=2.0"], True),
        (["model=tape", "task.arch.layers=1", "+task.optim.position_lr=2.0"], True),
        (["model=rope", "+task.optim.position_lr=1.0"], False),
        (["model=fire", "+task.optim.position_lr=2.0"], False),
        (["model=tape", "task.arch.layers=2", "+task.optim.position_lr=2.0"], False),
    ],
)
def test_a_rate_of_positions_that_nothing_has_is_told(words, told):
    cfg = compose_config([*ADDITION, *words])
    decoder, task = blank_parts(cfg)
    assert bool([*unused_position_rate(cfg, task, decoder)]) == told


@pytest.mark.parametrize(
    ("load", "threads", "told"), [(8.2, 2, True), (8.2, 1, False), (1.5, 2, False)]
)
def test_more_load_than_cores_is_told_where_threads_would_wait(load, threads, told, monkeypatch):
    monkeypatch.setattr(cautions.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(cautions.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(cautions.torch, "get_num_threads", lambda: threads)
    sentences = [*cautions.busy_processor(compose_config(["trainer=cpu"]))]
    assert [*map(bool, sentences)] == [True] * told
    assert all("a load of 8.2 on 2 cores" in sentence for sentence in sentences)


@pytest.mark.slow
def test_a_base_that_is_extended_too_far_is_told_with_what_would_do(text_folder, tmp_path, capsys):
    """A base of 32 tokens, on rows of 96."""
    own = [f"runs={tmp_path}", "trainer=cpu", "logger=none", "model=rope", *SMALL]
    base = [*own, "task=c4", *on_text(text_folder), "debug=one_batch"]
    run(compose_config(base))
    capsys.readouterr()
    (checkpoint,) = tmp_path.rglob("step*.ckpt")
    words = [*on_text(text_folder, "extend"), "debug=one_batch", f"checkpoint={checkpoint}"]
    extended = [*own, "task=extend", *words, "task.train_length=96"]
    for further, told in (
        (["peft=lora"], True),
        (["peft=lora", "peft.interpolation=3"], False),
        (["peft=theta"], False),
    ):
        run(compose_config([*extended, *further]))
        printed = " ".join(capsys.readouterr().out.split())
        sentence = "longer than the 32 tokens that the base was trained on, times"
        assert (sentence in printed) == told, further
        assert ("Set peft.interpolation=3." in printed) == told
