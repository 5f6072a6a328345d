"""Objects from sections of a config: pydantic checks keys, types and ranges against the class.

The schema of an open section (``model``, ``task``, ``peft``) is the constructor of the
class that ``_target_`` names.
"""

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from tape_exp.settings.errors import ConfigError, choose, did_you_mean, missing_package

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
BASES = {
    "model": "tape_exp.models.positions.base.PositionEncoding",
    "task": "tape_exp.tasks.base.Task",
    "peft": "tape_exp.models.peft.Adaptation",
}


def build(node: Any, section: str, *, also: Sequence[str] = (), **passed: Any) -> Any:
    """Instantiate ``node._target_`` with the node's keys and the arguments ``passed``.

    ``name`` belongs to the YAML and is passed on only where the constructor asks for it. ``also``
    are keys that the caller reads itself; they are named where a key is not known.

    Raises:
        ConfigError: an unknown or missing key, a wrong type or range, or a wrong ``_target_``.
    """
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    arguments = dict(typing.cast(Mapping[str, Any], values))
    cls = locate(arguments.pop("_target_", None), section)
    schema = arguments_model(cls, frozenset(passed))
    if "name" not in schema.model_fields:
        arguments.pop("name", None)
    checked = validate(schema, arguments, section, also)
    return cls(**passed, **{key: getattr(checked, key) for key in checked.model_fields_set})


def function_at(path: str, key: str) -> Any:
    """Import the function that a key of a YAML names by its path, ``my_package.module.function``.

    Raises:
        ConfigError: there is none.
    """
    try:
        function = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key}: there is no function {path} ({error}); give its whole path, as in "
            "my_package.module.function."
        ) from error
    if not callable(function):
        raise ConfigError(f"{key}: there is no function {path}, but a module; give its whole path.")
    return function


def locate(target: Any, section: str) -> type:
    """Import the class that ``<section>._target_`` names, which must be a subclass of its kind.

    Raises:
        ConfigError: it cannot be imported, or is no such class.
    """
    base = resolve_name(BASES.get(section.partition(".")[0], "builtins.object"))
    if target is None:
        raise ConfigError(f"{section} has no _target_; its YAML must name a class: _target_: …")
    try:
        module, _, name = target.rpartition(".")
        cls = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        why = missing_package(error) or error
        raise ConfigError(f"{section}._target_={target} cannot be loaded: {why}") from error
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise ConfigError(
            f"{section}._target_={target} must be a subclass of {base.__module__}.{base.__name__}."
        )
    return cls


@cache
def arguments_model(cls: Any, passed: frozenset[str] = frozenset()) -> Any:
    """Make a pydantic model of the arguments that a config may set: those of the constructor, but
    for the ``passed`` ones, and, where it ends in ``**settings``, those of the next class's
    constructor, to which it passes them.
    """
    fields: dict[str, Any] = {}
    for owner in cls.__mro__:
        if "__init__" not in vars(owner):
            continue
        _, *parameters = inspect.signature(owner.__init__).parameters.values()
        hints = typing.get_type_hints(owner.__init__, include_extras=True)
        passes_on = False
        for parameter in parameters:
            name = parameter.name
            if parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.kind is not parameter.VAR_POSITIONAL and name not in passed:
                default = ... if parameter.default is parameter.empty else parameter.default
                fields.setdefault(name, (hints.get(name, Any), default))
        if not passes_on:
            break
    return create_model(cls.__name__, __config__=STRICT, **fields)


def validate(schema: Any, values: Any, section: str, also: Sequence[str] = ()) -> Any:
    """Make an object of a dataclass, or of a model of pydantic, from a section's keys; raises as
    :func:`build` does. They are JSON, so that a list may stand for a tuple and nothing else is
    converted.
    """
    try:
        # A dataclass has the strictness of the model whose field it is.
        model: Any = create_model("Section", __config__=STRICT, root=(schema, ...))
        return model.model_validate_json(json.dumps({"root": values})).root
    except ValidationError as error:
        raise ConfigError(_sentence(error, schema, section, also)) from error


def _sentence(error: ValidationError, schema: Any, section: str, also: Sequence[str]) -> str:
    """Explain the first of pydantic's errors, by the key and, where it is unknown, the nearest
    one.
    """
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    path = first["loc"][1:]
    key = ".".join(filter(None, [section, *map(str, path)]))
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [*_keys_at(schema, path[:-1]), *also]
        return f"{key}{did_you_mean(path[-1], known)} Known keys: {', '.join(known)}."
    if first["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", first["ctx"]["expected"])
        return choose(f"{key}={first['input']}", first["input"], choices)
    if first["type"].startswith("missing"):
        return f"{key} is missing."
    if first["type"] == "string_too_short":
        return f"{key}= has no value: write one, or leave it out."
    demand = re.sub(r"^(Input|Tuple) should", "should", first["msg"])
    text = first["input"]
    number = r"[-+]?[\d.]+(e[-+]?\d+)?"
    if isinstance(text, str) and re.fullmatch(number, text, re.IGNORECASE):
        return (
            f"{key}='{text}' {demand}, and is a text: write {key}={text} without quotes, or the "
            "shell's $NAME instead of ${oc.env:NAME}."
        )
    return f"{key}={text} {demand}."


def _keys_at(schema: Any, path: Sequence[Any]) -> list[str]:
    """List the keys of the schema's section that lies at ``path``."""
    for part in path:
        hint = typing.get_type_hints(schema).get(part)
        options = (hint, *typing.get_args(hint))
        schema = next(filter(dataclasses.is_dataclass, options), schema)
    return list(typing.get_type_hints(schema))
