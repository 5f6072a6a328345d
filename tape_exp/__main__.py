"""``tape-exp <command>``, or ``python -m tape_exp <command>``: every command of the package."""

import runpy
import sys
from importlib.metadata import version

from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError, did_you_mean

COMMANDS = {  # the module that a command runs, and what it does
    "train": ("tape_exp.training", "train and evaluate a run, or with -m a local sweep"),
    "plan": ("tape_exp.training", "estimate time and memory of a run, and run nothing"),
    "data": ("tape_exp.prepare", "tokenise what a run reads, and run nothing"),
    "sweep": ("tape_exp.sweep", "submit a grid of runs to SLURM, or run it here"),
    "submit": ("tape_exp.experiments.submit_file", "submit one job, a file of launch/, to SLURM"),
    "status": ("tape_exp.sweep", "show the state of each run of a sweep"),
    "collect": ("tape_exp.sweep", "copy the records of finished runs to results/"),
    "compare": ("tape_exp.artifacts", "a table and figures of any models on any task"),
    "paper": ("tape_exp.paper", "the tables and figures: list, run, render, cost"),
    "bench": ("tape_exp.bench", "rank encodings on the battery of small problems"),
    "check": ("tape_exp.check", "test an encoding of your own on what every one must do"),
    "report": ("tape_exp.paper.report", "a site of all tables, figures and runs"),
    "export": ("tape_exp.export", "write a run as a model that transformers loads"),
    "tune": ("tape_exp.tune", "search keys with equal budgets for some models"),
    "theory": ("tape_exp.theory", "run theorem 1 and the propositions of TAPE's paper"),
}

VERBS = ("sweep", "status", "collect")  # commands that share a module


@command
def main() -> int:
    """Become the command that the first word names, as ``python -m <its module>`` would.

    The processes of further devices are then started by the module's name.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(f"tape-exp {version('tape_exp')}")
    elif name in ("-h", "--help", "help"):
        print("usage: tape-exp <command> ...\n")
        for entry, (_, purpose) in COMMANDS.items():
            print(f"  {entry:7} {purpose}")
        print(
            "\n`tape-exp <command> --help` explains one, `tape-exp --version` prints the version."
            "\nOutside a clone, results/, runs/ and cache/ are below the working directory."
        )
    elif name not in COMMANDS:
        raise ConfigError(f"{name}{did_you_mean(name, COMMANDS)} `tape-exp --help` lists all.")
    else:
        if name == "plan":
            words.append("debug=plan")
        if name in VERBS:
            words.insert(0, name)
        sys.argv[1:] = words
        runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
