"""``tape-exp check model=mine``: test an encoding of one's own on what every encoding must do.

Each situation is a function of :mod:`tape_exp.models.conformance`, whose docstring says what it is.
"""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from tape_exp.settings import plugins
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.parser import ArgumentParser


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Put the encoding in every situation and print a line for each; status 1 if one fails."""
    parser = ArgumentParser(
        prog="tape-exp check",
        description="Test a positional encoding: compare its logits and gradients in every "
        "situation with those of the explicit softmax in fp64.",
        epilog="Example: tape-exp check model=rope model.window=16",
    )
    words = "or the name alone; and keys of it"
    parser.add_argument("words", nargs="+", metavar="model=<name>", help=words)
    words = parser.parse_args(arguments).words
    cfg = compose_config(list(map(_override, words)))
    from tape_exp.models.conformance import SITUATIONS, random_decoder  # imports torch
    from tape_exp.models.sections import entries, with_short_thresholds

    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    classes = dict.fromkeys(layer["_target_"] for layer in entries(model))
    used = plugins.versions_of(model)
    packages = [" ".join(filter(None, (name, of["version"]))) for name, of in used.items()]
    origin = f", of the package {' and '.join(packages)}" if packages else ""
    print(f"{model['name']}: {', '.join(classes)}{origin}")
    try:
        random_decoder(model)
        short = with_short_thresholds(model)[1]
    except ConfigError:
        raise
    except Exception as error:
        _print_failure("construction", error, "A decoder with this encoding is made.")
        return 1
    if short:
        print(f"also with {', '.join(short)}, so that rows go beyond it")
    print(f"  {'situation':24} {'difference':>10}  {'allowed':>7}")
    failed = sum(not _passes(name, model) for name in SITUATIONS)
    print(f"{failed} of {len(SITUATIONS)} failed." if failed else "No situation failed.")
    return int(failed > 0)


def _override(word: str) -> str:
    """Write a word as an override: a name that is no key and removes none is that of a model.

    >>> list(map(_override, ["rope", "model.theta=500", "~model.theta"]))
    ['model=rope', 'model.theta=500', '~model.theta']
    """
    return word if "=" in word or word.startswith("~") else f"model={word}"


def _passes(name: str, model: Any) -> bool:
    """Say whether an encoding does in a situation what it must; print a line of it, and where it
    does not, why and what is asked.
    """
    from tape_exp.models.conformance import SITUATIONS, NotAskedError, outcome_of

    title = name.replace("_", " ")
    try:
        outcome = outcome_of(name, model)
    except NotAskedError as reason:
        print(f"  {title:24} {'':10}  {'':7}  not asked: {reason}")
        return True
    except ConfigError:
        raise
    except Exception as error:
        _print_failure(title, error, SITUATIONS[name].__doc__ or "")
        return False
    difference = _scientific(outcome.difference)
    allowed = _scientific(outcome.allowed)
    print(f"  {title:24} {difference:>10}  {allowed:>7}  {outcome.remark or 'passed'}")
    return True


def _scientific(number: float | None) -> str:
    """Write a number with one decimal, as 1.2e-06, and None as nothing."""
    return "" if number is None else f"{number:.1e}"


def _print_failure(title: str, error: Exception, requirement: str) -> None:
    """Print what failed, where, and what was required."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    print(f"  {title:24} {'':10}  {'':7}  FAILED: {type(error).__name__}: {error}")
    print(f"{'':28}{where.filename}, line {where.lineno}")
    print(f"{'':28}What is asked: {' '.join(requirement.split())}")


if __name__ == "__main__":
    sys.exit(main())
