"""The names of encodings for readers: of every YAML, of patterns, of one's own; in no config."""

import pytest
from omegaconf import OmegaConf

from tape_exp.settings import folders, naming
from tape_exp.settings.compose import compose_config
from tape_exp.settings.naming import display_name, literal, task_title
from tape_exp.settings.plugins import names_in


@pytest.mark.parametrize("group", ["model", "peft"])
def test_every_yaml_of_ours_has_a_name_of_its_own(group):
    names = [name for name in names_in(group) if name != "none"]
    shown = {display_name(name) for name in names}
    assert len(shown) == len(names)
    assert not any("_" in name or "," in name for name in shown)


def test_names_of_the_field():
    told = [display_name(name) for name in ("tape", "rope", "t5", "p_rope", "lora", "abacus†")]
    assert told == ["TAPE", "RoPE", "T5's bias", "p-RoPE", "LoRA", "Abacus†"]
    assert display_name("rope_window×3+nope") == "RoPE with a window ×3 + NoPE"
    assert display_name("unigram") == "unigram"


def test_a_variant_has_its_own_name_or_that_of_its_file(tmp_path, monkeypatch):
    naming._name.cache_clear()
    monkeypatch.setattr(folders, "CONF", tmp_path)
    (tmp_path / "model").mkdir()
    for name, text in {
        "mine": "# about it\n# display: My encoding\nname: mine\n",
        "other": "defaults: [mine]\nname: other\n",
    }.items():
        (tmp_path / "model" / f"{name}.yaml").write_text(text)
    assert [display_name(name) for name in ("mine", "other")] == ["My encoding", "other"]
    naming._name.cache_clear()


@pytest.mark.parametrize(
    "value", ["a b", "it's", "x\\", "null", "1e-3", "", "[1]", "${seed}", "ü", 3, 0.5, None, True]
)
def test_a_literal_is_what_hydra_reads_back(value):
    cfg = compose_config([f"+task.x={literal(value)}", f"+task.y={literal([value, {'a': value}])}"])
    read = OmegaConf.to_container(cfg.task, resolve=False)
    assert (read["x"], read["y"]) == (value, [value, {"a": value}])


def test_a_picture_of_the_battery_names_the_problem():
    tasks = [{"name": "battery", "problem": "flip_flop"}, {"name": "word_problem"}]
    assert [*map(task_title, tasks)] == ["flip flop", "word problem"]
