"""The help of the commands is whole sentences without markup."""

import importlib
import sys

import pytest

from tape_exp.tasks import scrolls

COMMANDS = ["measure.speed", "measure.overhead", "measure.data_speed", "measure.soak"]
COMMANDS += [
    "measure.fusion",
    "measure.goals",
    "measure.lengths",
    "measure.registers",
    "measure.utilisation",
]
COMMANDS += ["measure.page_speed", "theory.__main__", "export"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_whole_sentences_without_markup(name, monkeypatch, capsys):
    main = importlib.import_module(f"tape_exp.{name}").main
    monkeypatch.setattr(sys, "argv", ["command", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    assert "``" not in text
    assert "OTHERS" not in text
    assert text.split("\n\n")[1].endswith("."), "the description is cut off"


def test_help_of_score_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        scrolls.main(["score", "--help"])
    assert "Score a file of predictions" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_of_paper_has_description_example_and_defaults(command, capsys):
    main = importlib.import_module("tape_exp.paper.__main__").main
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert f"Example: python -m tape_exp.paper {command} " in text
    assert text.count("default:") >= 2
