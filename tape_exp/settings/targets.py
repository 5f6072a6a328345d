"""What a config may construct: classes that are defined in this package, and the named plugins of
Hydra's.

Nothing else that a config says is ever imported or called. Hydra instantiates some nodes itself
(launcher, sweeper, ``hydra.callbacks``) before a run begins, so every composed config is searched
as soon as Hydra has composed it.
"""

import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tape_exp.settings.errors import ConfigError
from tape_exp.settings.redaction import is_secret, redact

HOMES = {
    "model": "tape_exp.models.positions",
    "task": "tape_exp.tasks",
    "peft": "tape_exp.models.peft",
}
PLUGINS = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
)
LOGGING = (
    "logging.StreamHandler",
    "logging.FileHandler",
    "logging.NullHandler",
    "logging.Formatter",
    "colorlog.ColoredFormatter",
)


def locate(target: Any, section: str) -> type:
    """The class that ``<section>._target_=<target>`` names.

    Raises:
        ConfigError: it lies outside the section's part of tape_exp, is not there, or is imported
            there from elsewhere.
    """
    home = HOMES.get(section, "tape_exp.paper" if section.startswith("conf/paper/") else "tape_exp")
    if not isinstance(target, str) or not target.startswith(f"{home}."):
        example = f", as conf/{section}/*.yaml do" if section in HOMES else ""
        raise ConfigError(f"{section}._target_={target} must name a class inside {home}{example}.")
    module, _, name = target.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{section}._target_={target} cannot be loaded: {error}") from error
    if not isinstance(found, type) or found.__module__ != module:
        raise ConfigError(
            f"{section}._target_={target} must name a class that is defined in {module}."
        )
    return found


def check_targets(cfg: Any, key: str = "") -> None:
    """Refuse a config that names, anywhere, something to call that is neither ours nor among
    :data:`PLUGINS`.

    Below ``hydra`` no interpolation may stand for a whole node either: what Hydra instantiates, and
    the handlers of Python's logging, is then written out where this looks. The commands of a
    cluster's launcher (``setup``) are not searched.

    Raises:
        ConfigError: which key names it.
    """
    from omegaconf import DictConfig, ListConfig

    if cfg._is_none() or cfg._is_missing():
        return
    if cfg._is_interpolation():
        _check_interpolation(str(cfg._value()), cfg, key)
        return
    names: Any = list(cfg.keys()) if isinstance(cfg, DictConfig) else range(len(cfg))
    for name in names:
        path, node = f"{key}.{name}" if key else str(name), cfg._get_node(name)
        if isinstance(node, DictConfig | ListConfig):
            check_targets(node, path)
            continue
        value = node._value()
        if isinstance(value, str) and "${" in value:
            _check_interpolation(value, node, path)
        _check_call(str(name), value, path)


def _check_call(name: str, value: Any, path: str) -> None:
    """A key that names what is called."""
    if name == "_target_" and path.startswith("hydra."):
        if value not in PLUGINS:
            raise ConfigError(
                f"{path}={value} is not permitted; Hydra may instantiate {', '.join(PLUGINS)}."
            )
    elif name == "_target_":
        if not isinstance(value, str) or not value.startswith("tape_exp."):
            raise ConfigError(f"{path}={value} must name a class inside tape_exp.")
    elif name in ("class", "()") and path.startswith("hydra.") and value not in LOGGING:
        raise ConfigError(f"{path}={value} is not permitted; logging may use {', '.join(LOGGING)}.")


def _check_interpolation(text: str, node: Any, path: str) -> None:
    """One that stands for a node which was never looked at."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "_target_" in text:
        raise ConfigError(
            f"{path} makes a _target_ by an interpolation; write the node out in a YAML."
        )
    if not path.startswith("hydra."):
        return
    if path.endswith(("._target_", ".class", ".()")):
        raise ConfigError(
            f"{path}={text} names what is called by an interpolation; write the name out."
        )
    try:
        found = node._dereference_node()
    except (
        OmegaConfBaseException
    ):  # known in a job alone, and then part of the section that is searched here
        return
    if OmegaConf.is_config(found):
        raise ConfigError(f"{path}={text} stands for a whole node; below hydra write it out.")


def guard() -> None:
    """Have Hydra hand every config over as it has composed it, and take away resolvers that would
    get around that.

    ``oc.create`` and ``oc.decode`` make nodes from text; ``oc.env`` stays, for folders, but reads
    no secrets.
    """
    from hydra._internal import hydra
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import OmegaConf

    for name in ("oc.create", "oc.decode"):
        OmegaConf.clear_resolver(name)
    OmegaConf.register_new_resolver("oc.env", _environment, replace=True)

    class Loader(ConfigLoaderImpl):
        """Hydra's, with the search."""

        def load_configuration(
            self, config_name: Any, overrides: list[str], run_mode: Any, *rest: Any, **options: Any
        ) -> Any:
            """Compose, then search; the overrides of a sweep, which Hydra and its launchers write
            to files, hold no secret.
            """
            cfg = super().load_configuration(config_name, overrides, run_mode, *rest, **options)
            check_targets(cfg)
            if run_mode.name == "MULTIRUN":
                refuse_secrets(overrides)
            return cfg

    hydra.ConfigLoaderImpl = Loader  # type: ignore[misc]


def refuse_secrets(overrides: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where an override holds what looks like a secret."""
    for override in overrides:
        if redact(override) != override:
            key = override.partition("=")[0]
            raise ConfigError(
                f"{key} holds a secret, and a sweep writes its overrides to files: give it in an "
                "environment variable or "
                "~/.netrc, where the clients of the hub and of W&B look for it."
            )


_UNSET = object()


def _environment(name: str, default: Any = _UNSET) -> Any:
    """``${oc.env:NAME}`` and ``${oc.env:NAME,default}``, but of variables that hold secrets."""
    if is_secret(name):
        raise ConfigError(
            f"the config reads ${{oc.env:{name}}}, and a config is written down: leave it out, the "
            f"clients of the hub and of "
            "W&B read it themselves."
        )
    if name in os.environ:
        return os.environ[name]
    if default is _UNSET:
        raise ConfigError(
            f"the config reads ${{oc.env:{name}}}, which is not set; set it or write "
            f"${{oc.env:{name},<default>}}."
        )
    return None if default is None else str(default)


def check_names(cfg: Any) -> None:
    """Refuse names that would lead a run's folder elsewhere, and a secret where W&B expects a name
    of its own.
    """
    for group in ("task", "scale", "model", "peft"):
        plain(f"{group}.name", cfg[group].name)
    for key in ("project", "entity"):
        if redact(str(cfg.logger[key])) != str(cfg.logger[key]):
            raise ConfigError(
                f"logger.{key} holds a secret; W&B reads its key from WANDB_API_KEY or ~/.netrc: "
                f"name a {key}."
            )


def plain(key: str, value: Any) -> None:
    """Raise :class:`ConfigError` unless ``value`` can be one part of a path: nothing that leads
    elsewhere.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", str(value)):
        raise ConfigError(
            f"{key}={value} becomes a folder's name: letters, digits and _ . + - may be in it, as "
            f"in {key}=mine-1."
        )
