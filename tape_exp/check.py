"""``tape-exp check model=mine``: test an encoding of one's own on what every encoding must do.

Each check is a function of :mod:`tape_exp.models.conformance`, whose docstring says what it asks.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import OmegaConf

from tape_exp.settings import plugins
from tape_exp.settings.commands import command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check and print a line for each; status 1 if one fails."""
    parser = argparse.ArgumentParser(
        prog="tape-exp check",
        description="Test a positional encoding, as in tape-exp check model=mine: causality, "
        "shapes, gradients, cached decoding, positions in fp32.",
    )
    parser.add_argument("words", nargs="+", metavar="key=value", help="model=<name>, keys of it")
    cfg = compose_config(parser.parse_args(arguments).words)
    from tape_exp.models.conformance import CHECKS, random_decoder  # imports torch

    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    classes = dict.fromkeys(layer["_target_"] for layer in model.get("layers", [model]))
    used = plugins.versions_of(model)
    packages = [" ".join(filter(None, (name, of["version"]))) for name, of in used.items()]
    origin = f", of the package {' and '.join(packages)}" if packages else ""
    print(f"{model['name']}: {', '.join(classes)}{origin}")
    if not _passes("construction", random_decoder, model, quiet=True):
        return 1
    failed = sum(not _passes(name, check, model) for name, check in CHECKS.items())
    print(f"{failed} of {len(CHECKS)} checks failed." if failed else "All checks passed.")
    return int(failed > 0)


def _passes(name: str, check: Callable[[Any], Any], model: Any, quiet: bool = False) -> bool:
    """Whether a check passes; a line says so, and where it does not, why and what it asks."""
    title = name.replace("_", " ")
    try:
        remark = check(model)
    except ConfigError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"  FAILED  {title}: {type(error).__name__}: {error}")
        print(f"          {where.filename}, line {where.lineno}")
        print(f"          What is asked: {' '.join((check.__doc__ or '').split())}")
        return False
    if not quiet:
        print(f"  passed  {title}" + (f": {remark}" if isinstance(remark, str) else ""))
    return True


if __name__ == "__main__":
    sys.exit(main())
