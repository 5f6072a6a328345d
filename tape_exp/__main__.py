"""``tape-exp <command>``, or ``python -m tape_exp <command>``: every command of the package."""

import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

from tape_exp.settings import arguments, folders
from tape_exp.settings.errors import ConfigError, did_you_mean


class Command(NamedTuple):
    """A command: the module that it runs, the words beside the user's, and what it does."""

    module: str
    words: Sequence[str]
    help: str


COMMANDS = {
    "train": Command("tape_exp.training", [], "train and evaluate a run, or with -m a local sweep"),
    "plan": Command(
        "tape_exp.training", ["debug=plan"], "estimate time and memory of a run, and run nothing"
    ),
    "sweep": Command("tape_exp.launch.sweep", [], "submit a grid of runs to SLURM"),
    "status": Command("tape_exp.launch.status", [], "what has become of the runs of a grid"),
    "paper": Command(
        "tape_exp.paper", [], "the tables and figures: list, run, compare, render, cost, push"
    ),
    "bench": Command("tape_exp.bench", [], "rank encodings on the battery of small problems"),
    "check": Command(
        "tape_exp.check", [], "test an encoding of your own on what every one must do"
    ),
    "report": Command("tape_exp.report", [], "one HTML page of all tables, figures and runs"),
    "export": Command("tape_exp.export", [], "write a run as a model that transformers loads"),
    "score": Command("tape_exp.tasks.scrolls", ["score"], "score a file of SCROLLS predictions"),
    "tune": Command("tape_exp.tune", [], "search keys with equal budgets for some models"),
    "theory": Command("tape_exp.theory", [], "run theorem 1 and the propositions of TAPE's paper"),
}


def main() -> None:
    """Become the command that the first word names, as ``python -m <its module>`` would.

    The processes of further devices are then started by the module's name.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if name == "--version":
        sys.exit(print(f"tape-exp {version('tape_exp')}"))
    if name not in COMMANDS:
        sys.exit(listed(name))
    command = COMMANDS[name]
    folders.called_as = "tape-exp" if name in command.words else f"tape-exp {name}"
    # A subcommand is first; an override is last, since Hydra takes no flag between overrides.
    first = [word for word in command.words if word == name]
    sys.argv[1:] = [*first, *words, *(word for word in command.words if word not in first)]
    runpy.run_module(command.module, run_name="__main__", alter_sys=True)


@arguments.command
def listed(word: str) -> int:
    """Print the commands, a line each; any word but a request for help is a mistake."""
    if word not in ("-h", "--help", "help"):
        raise ConfigError(f"{word}{did_you_mean(word, COMMANDS)} `tape-exp --help` lists all.")
    print("usage: tape-exp <command> ...\n")
    for name, command in COMMANDS.items():
        print(f"  {name:7} {command.help}")
    print(
        "\n`tape-exp <command> --help` explains one, `tape-exp --version` says which version it is."
        "\nOutside a clone of the repository all that is written, results/, runs/ and cache/, is"
        "\nbelow the working directory."
    )
    return 0


if __name__ == "__main__":
    main()
