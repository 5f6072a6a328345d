"""``tape-exp <command>``, or ``python -m tape_exp <command>``: every command of the package."""

import runpy
import sys
from importlib.metadata import version

from tape_exp.settings.commands import command
from tape_exp.settings.errors import ConfigError, did_you_mean

COMMANDS = {  # the module that a command runs, and what it does
    "train": ("tape_exp.training", "train and evaluate a run; with -m several, one by one"),
    "plan": ("tape_exp.training", "estimate the time and memory of a run; run nothing"),
    "compare": ("tape_exp.artifacts", "run models on a task, and write a table and figures"),
    "check": ("tape_exp.check", "test an encoding of your own, in half a minute"),
    "bench": ("tape_exp.bench", "rank encodings on the battery of small problems"),
    "tune": ("tape_exp.tune", "search learning rates and other keys, fairly for each model"),
    "paper": ("tape_exp.paper", "list, run or draw the paper's tables and figures"),
    "theory": ("tape_exp.theory", "run theorem 1 and the propositions of TAPE's paper"),
    "report": ("tape_exp.paper.report", "build a site of all tables, figures and runs"),
    "export": ("tape_exp.export", "write a run as a model that transformers loads"),
    "data": ("tape_exp.prepare", "tokenise the text that a run reads; run nothing"),
    "sweep": ("tape_exp.sweep", "submit a set of runs to SLURM, or run it here"),
    "submit": ("tape_exp.experiments.submit_file", "submit a file of launch/ to SLURM, as one job"),
    "status": ("tape_exp.sweep", "show the state of each run of a sweep"),
    "collect": ("tape_exp.sweep", "copy the records of finished runs to results/"),
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
        print("usage: tape-exp <command> ...\n\nCompare positional encodings in transformers.\n")
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
            if {"-h", "--help"} & {*words}:
                words.append(f"hydra.help.header='{COMMANDS[name][1].capitalize()}.'")
        if name in VERBS:
            words.insert(0, name)
        sys.argv[1:] = words
        runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
