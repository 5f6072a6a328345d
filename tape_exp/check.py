"""Test an encoding of one's own (``tape-exp check model=mine``): shapes, causality, gradients, …

Each check is a function of :mod:`tape_exp.models.conformance`, whose docstring says what it asks.
"""

import sys
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from tape_exp.settings import plugins
from tape_exp.settings.arguments import Parser, command
from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redaction import raised, shown

DESCRIPTION = (
    "Test a positional encoding, as in tape-exp check model=mine: causality, shapes, gradients, "
    "cached decoding, positions in fp32 and whatever else every encoding must do."
)


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check, print a line for each; status 1 if one fails."""
    parser = Parser("python -m tape_exp.check", description=DESCRIPTION)
    parser.add_argument(
        "words", nargs="+", metavar="key=value", help="model=<name>, keys of it, plugins=[…]"
    )
    words = parser.parse_args(arguments).words
    for word in words:
        if word.lstrip("+~").partition("=")[0].partition(".")[0] not in ("model", "plugins"):
            raise ConfigError(f"{word} has no effect here; give model=<name>, and keys of model.")
    if not any(word.startswith("model=") for word in words):
        raise ConfigError("name the encoding, as in model=tape.")
    cfg = compose_config(words)
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    print(_title(model))
    failed = _run(model)
    several = f"{failed} checks" if failed > 1 else "1 check"
    print(f"{several} failed." if failed else "All checks passed.")
    return 1 if failed else 0


def _title(model: dict[str, Any]) -> str:
    """Name, class, and where it is from."""
    targets = [layer["_target_"] for layer in model.get("layers", [model])]
    others = [
        f"{package} {found['version'] or 'that is not installed'}"
        for package, found in plugins.versions_of(model).items()
    ]
    brought = f", of the package {' and '.join(others)}" if others else ""
    return f"{model['name']}: {', '.join(dict.fromkeys(targets))}{brought}"


def _run(model: dict[str, Any]) -> int:
    """How many checks fail; each has a line."""
    from tape_exp.models.conformance import CHECKS, NonconformingError, random_decoder

    try:
        random_decoder(model)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        print(f"  FAILED  construction: {raised(error)}\n          The checks need a decoder.")
        return 1
    failed = 0
    for name, check in CHECKS.items():
        title = name.replace("_", " ")
        try:
            check(model)
            print(f"  passed  {title}")
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            asked = " ".join((check.__doc__ or "").split())
            nonconforming = isinstance(error, NonconformingError)
            why = shown(str(error)) if nonconforming else raised(error)
            print(f"  FAILED  {title}: {why}\n          What is asked: {asked}")
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
