"""Objects from a config's open sections, whose schema is the constructor of ``_target_``."""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from tape_exp.settings.errors import ConfigError, did_you_mean
from tape_exp.settings.redaction import raised

FLOAT = 3.4e38  # the end of fp32, in which models compute
LARGEST = 10**15  # whole number that a key may have: even the tokens of a corpus are fewer


def build(node: Any, section: str, *, also: Sequence[str] = (), **given: Any) -> Any:
    """Instantiate ``node._target_`` with the node's keys and ``given``, checking every key against
    its constructor.

    Keys whose annotation is a dataclass are converted to it. ``name`` is the YAML's own and is not
    passed on, unless the constructor asks for it. ``also`` are keys that were taken out of the node
    before, for the sentence on an unknown one. Returns a :func:`functools.partial` if required
    arguments are still missing from ``given``.

    Raises:
        ConfigError: unknown key (with did-you-mean), missing key, value of a wrong type,
            ``_target_`` outside tape_exp.
    """
    from omegaconf import OmegaConf

    from tape_exp.settings.targets import locate

    container: Any = (
        OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    )
    arguments = dict(container)
    target = arguments.pop("_target_", None)
    cls = locate(target, section)
    known, hints = constructor(cls)
    parameters = {k: p for k, p in known.items() if k not in given}
    if "name" not in parameters:
        arguments.pop("name", None)
    for key, value in arguments.items():
        if key not in parameters:
            raise ConfigError(
                f"{section}.{key}{did_you_mean(key, [*parameters, *also])} Known keys: "
                f"{', '.join([*parameters, *also])}."
            )
        arguments[key] = _convert(value, hints.get(key, Any), f"{section}.{key}")
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in arguments]
    if missing:
        raise ConfigError(f"{section}.{missing[0]} is missing: {target} needs it.")
    if not cls.__module__.startswith("tape_exp."):
        return _made(cls, section, given | arguments)
    return cls(**given, **arguments)


def _made(cls: Any, section: str, arguments: dict[str, Any]) -> Any:
    """An object of a class of another author; what goes wrong is told with its place."""
    try:
        return cls(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{section}: {cls.__module__}.{cls.__qualname__} failed while it was made: "
            f"{raised(error)}"
        ) from error


def constructor(cls: Any) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a class's constructor and their types; where it ends in ``**settings``,
    also those of the next class's constructor, to which it hands them.
    """
    parameters: dict[str, inspect.Parameter] = {}
    hints: dict[str, Any] = {}
    for owner in cls.__mro__:
        if "__init__" not in vars(owner):
            continue
        _, *own = inspect.signature(owner.__init__).parameters.values()
        named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        parameters = {p.name: p for p in named} | parameters
        hints = typing.get_type_hints(owner.__init__) | hints
        if all(p.kind is not p.VAR_KEYWORD for p in own):
            break
    return parameters, hints


def takes(cls: Any, key: str) -> bool:
    """Whether a constructor has the dotted ``key``, as ``optim.position_lr``, among its own."""
    name, _, rest = key.partition(".")
    parameters, hints = constructor(cls)
    if name not in parameters:
        return False
    options = typing.get_args(hints.get(name)) or (hints.get(name),)
    return not rest or any(takes(o, rest) for o in options if dataclasses.is_dataclass(o))


def _convert(value: Any, hint: Any, key: str) -> Any:
    """``value`` as ``hint`` asks: dataclasses are built, simple types and lists of them checked."""
    if dataclasses.is_dataclass(hint):
        return as_dataclass(value, hint, key)
    if typing.get_origin(hint) is dict and dataclasses.is_dataclass(typing.get_args(hint)[1]):
        _check_mapping(value, key)
        return {
            name: as_dataclass(one, typing.get_args(hint)[1], f"{key}.{name}")
            for name, one in value.items()
        }
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and value is not None:
            return as_dataclass(value, option, key)
    for option in options:
        may_be_null = value is None and type(None) in options
        if typing.get_origin(option) in (list, tuple, Sequence) and not may_be_null:
            return _as_list(value, typing.get_args(option)[0], key)
    simple = [o for o in options if o in (int, float, str, bool, type(None))]
    if len(simple) < len(options):
        return value
    if float in simple and type(value) is int:
        return float(value)
    _check_size(value, key)
    if type(value) is float and abs(value) > FLOAT:
        raise ConfigError(f"{key}={value} must be from {-FLOAT:g} to {FLOAT:g}, as fp32 holds it.")
    if type(value) not in simple:
        names = " or ".join("null" if o is type(None) else o.__name__ for o in simple)
        raise ConfigError(f"{key}={value} is of a wrong type: {names} is expected.")
    return value


def _check_size(value: Any, key: str) -> None:
    """Raise where a number is none, or where a whole one is beyond any size."""
    if type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{key}={value} must be a finite number.")
    if type(value) is int and abs(value) > LARGEST:
        raise ConfigError(f"{key}={value} must be from {-LARGEST:g} to {LARGEST:g}.")


def _as_list(value: Any, hint: Any, key: str) -> list[Any]:
    """A list whose elements are as ``hint`` asks."""
    if not isinstance(value, list | tuple):
        raise _no_list(value, key)
    return [_convert(one, hint, f"{key}[{i}]") for i, one in enumerate(value)]


def _no_list(value: Any, key: str) -> ConfigError:
    shown = "null" if value is None else value
    return ConfigError(f"{key}={shown} must be a list, as in {key}=[{shown}].")


def _check_mapping(value: Any, key: str) -> None:
    """Raise where ``value`` is not a section of keys."""
    if not isinstance(value, Mapping):
        shown = "null" if value is None else value
        raise ConfigError(f"{key}={shown} must be a section of keys, as in {key}={{a: 1}}.")


def as_dataclass(value: Any, cls: Any, key: str) -> Any:
    """An object of the dataclass ``cls`` from the keys and values that a config has at ``key``."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    fields, hints = [f.name for f in dataclasses.fields(cls)], typing.get_type_hints(cls)
    _check_mapping(value, key)
    for name, one in value.items():
        if name not in fields:
            raise ConfigError(
                f"{key}.{name}{did_you_mean(name, fields)} Known keys: {', '.join(fields)}."
            )
        if bool in (hints[name], *typing.get_args(hints[name])):
            _convert(one, hints[name], f"{key}.{name}")  # merging takes any number for true
        elif isinstance(one, str) and str not in (hints[name], *typing.get_args(hints[name])):
            _convert(one, hints[name], f"{key}.{name}")  # and a text for its number
    try:
        merged = OmegaConf.merge(OmegaConf.structured(cls), value)
        for name, number in merged.items():
            _check_size(number, f"{key}.{name!s}")
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        where = f"{key}.{error.key}" if getattr(error, "key", None) else key
        reason = str(error).splitlines()[0].rstrip(".")
        if "is not a ListConfig" in reason:
            raise _no_list(value[error.key], where) from error
        raise ConfigError(f"{where}: {reason}.") from error
