"""All that a config may import or call: classes of this package, and Hydra's :data:`PLUGINS`."""

import os
import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tape_exp.settings.errors import ConfigError, did_you_mean, no_override
from tape_exp.settings.folders import CONF, INSTALLED
from tape_exp.settings.plugins import GROUPS as BROUGHT
from tape_exp.settings.plugins import HINT, names_in, package_of, use, yaml_of
from tape_exp.settings.redaction import is_secret, redact, redact_tree

HOMES = {
    "model": "tape_exp.models.positions",
    "task": "tape_exp.tasks",
    "peft": "tape_exp.models.peft",
}
BASES = {  # of the classes that packages of other authors may bring
    "model": "tape_exp.models.positions.base.PositionEncoding",
    "task": "tape_exp.tasks.base.Task",
}
PLUGINS = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
)
LOGGING = (
    "logging.StreamHandler",
    "logging.NullHandler",
    "logging.Formatter",
    "colorlog.ColoredFormatter",
)
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
ENVIRONMENT = ("hydra.job.env_set", "hydra.job.env_copy")
LONGEST_NAME = 100  # characters of a folder, whose longer names file systems refuse


def locate(target: Any, section: str) -> type:
    """The class that ``<section>._target_=<target>`` names, ours or one of a known package's.

    Raises:
        ConfigError: it is outside the section's part of tape_exp and outside such packages, does
            not exist, is only imported there, or is none of the section's.
    """
    home = HOMES.get(
        section.partition(".")[0],
        "tape_exp.paper" if section.startswith("conf/paper/") else "tape_exp",
    )
    base = BASES.get(section.partition(".")[0])
    plugin = package_of(target) if base and isinstance(target, str) else None
    if not isinstance(target, str) or not (plugin or target.startswith(f"{home}.")):
        example = f", as conf/{section}/*.yaml do" if section in HOMES else ""
        raise ConfigError(
            f"{section}._target_={target} must name a class inside {home}{example}"
            f"{_elsewhere(target) if base else ''}."
        )
    module, _, name = target.rpartition(".")
    try:
        cls = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{section}._target_={target} cannot be loaded: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the module of another author does
        raise ConfigError(
            f"{section}._target_={target} cannot be loaded: {module} ends in "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(cls, type) or cls.__module__ != module:
        raise ConfigError(
            f"{section}._target_={target} must name a class that is defined in {module}."
        )
    if plugin and base and not issubclass(cls, resolve_name(base)):
        raise ConfigError(f"{section}._target_={target} must be a subclass of {base}.")
    return cls


def _elsewhere(target: Any) -> str:
    """What to do where a package of another author may have the class."""
    package = target.partition(".")[0] if isinstance(target, str) else ""
    if not package.isidentifier() or package == "tape_exp":
        return ""
    return (
        f", or one that a YAML of an installed package names; install {package}, or name it as "
        f"plugins=[{package}]"
    )


def check_targets(cfg: Any, key: str = "") -> None:
    """Refuse a config that names, anywhere, something to call that is neither ours nor among
    :data:`PLUGINS`.

    Below ``hydra`` an interpolation may not stand for a whole node either, so that what Hydra
    instantiates, and the handlers of Python's logging, are written out where this looks. Hydra may
    set no environment variables. The commands of a cluster's launcher (``setup``) are not searched.

    Raises:
        ConfigError: which key names it.
    """
    from omegaconf import DictConfig, ListConfig

    if cfg._is_none() or cfg._is_missing():
        return
    if cfg._is_interpolation():
        _check_interpolation(str(cfg._value()), cfg, key)
        return
    if key in ENVIRONMENT and len(cfg):
        raise ConfigError(
            f"{key} sets variables that other programs obey; set them in the shell, or in setup of "
            "conf/local/cluster.yaml."
        )
    names: Any = list(cfg.keys()) if isinstance(cfg, DictConfig) else range(len(cfg))
    for name in names:
        path, node = f"{key}.{name}" if key else str(name), cfg._get_node(name)
        if isinstance(node, DictConfig | ListConfig):
            check_targets(node, path)
            continue
        value = node._value()
        if re.match(r"hydra\.(job|hydra)_logging\.", path):
            _check_logging(value, path)
        if isinstance(value, str) and "${" in value:
            _check_interpolation(value, node, path)
        _check_call(str(name), value, path)
        if path == "hydra.output_subdir" and value is not None:
            raise ConfigError(
                f"{path}={value} would write the config with its secrets; leave it out: a run "
                "writes its own config.yaml."
            )


def _check_call(name: str, value: Any, path: str) -> None:
    """Refuse a key that names something to call which may not be called."""
    if name == "_target_" and path.startswith("hydra."):
        if value not in PLUGINS:
            raise ConfigError(
                f"{path}={value} is not permitted; Hydra may instantiate {', '.join(PLUGINS)}."
            )
    elif name == "_target_":
        ours = isinstance(value, str) and value.startswith("tape_exp.")
        if not isinstance(value, str) or not (ours or package_of(value)):
            raise ConfigError(
                f"{path}={value} must name a class inside tape_exp{_elsewhere(value)}."
            )
    elif name in ("class", "()") and path.startswith("hydra.") and value not in LOGGING:
        raise ConfigError(f"{path}={value} is not permitted; logging may use {', '.join(LOGGING)}.")


def _check_logging(value: Any, path: str) -> None:
    """Refuse what Python's logging would import, and an interpolation that could stand for it."""
    if isinstance(value, str) and (
        "${" in value or (re.search("(ext|cfg)://", value) and value not in STREAMS)
    ):
        raise ConfigError(f"{path}={value} is not permitted; write {' or '.join(STREAMS)}.")


def _check_interpolation(text: str, node: Any, path: str) -> None:
    """Refuse an interpolation that could stand for a node which was not searched."""
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
        value = node._dereference_node()
    except OmegaConfBaseException:  # known only in a job, whose own config is searched then
        return
    if OmegaConf.is_config(value):
        raise ConfigError(f"{path}={text} stands for a whole node; below hydra write it out.")


def guard() -> None:
    """Search every config as soon as Hydra has composed it, by replacing the loader in Hydra's
    internals, and take away the resolvers that would get around the search.

    Nothing simpler is safe. Between composing and calling our code, Hydra instantiates the
    launcher, the sweeper and ``hydra.callbacks``, and gives ``hydra.job_logging`` to
    ``logging.config``, for a sweep anew for every job: a check in ``train.py`` or in the task
    function comes too late. Composing the command line ahead of ``hydra.main`` would have to repeat
    how Hydra reads its flags and how a sweeper, ``hydra.sweeper.params`` included, makes the
    overrides of its jobs; what it repeats wrongly is not searched. A ``Callback`` is itself one of
    many and can be overridden; a ``SearchPathPlugin`` sees no config, and a ``ConfigSource`` sees
    single files, without the command line. Hydra's own list of forbidden targets names what is
    known to be harmful, while only what is listed here is permitted. ``load_configuration`` is the
    one function that all compositions pass through.

    ``oc.create`` and ``oc.decode`` make nodes from text and go. ``oc.env`` stays, for folders, but
    reads no secrets.
    """
    from hydra._internal import hydra
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf, open_dict

    from tape_exp.settings import patterns

    for name in ("oc.create", "oc.decode"):
        OmegaConf.clear_resolver(name)
    OmegaConf.register_new_resolver("oc.env", _environment, replace=True)

    class Loader(ConfigLoaderImpl):
        """Hydra's loader, with the search, and with patterns of layers."""

        entries: Any = None  # of model=[…]

        def load_configuration(
            self, config_name: Any, overrides: list[str], run_mode: Any, *rest: Any, **options: Any
        ) -> Any:
            """Compose, then search; a sweep's overrides, written to files, may hold no secret."""
            use(overrides)
            check_choices(overrides)
            if any(word.startswith("hydra/launcher=") for word in overrides):
                check_cluster()
            parsed = OverridesParser.create().parse_overrides(list(overrides))
            given = [one for one in parsed if patterns.is_pattern(one)]
            self.entries = given[-1].value() if given else None
            words = [str(one.input_line) for one in parsed if one not in given]
            cfg = super().load_configuration(config_name, words, run_mode, *rest, **options)
            if given:  # a process of another device repeats the command
                cfg.hydra.overrides.task = [
                    *(str(one.input_line) for one in given),
                    *cfg.hydra.overrides.task,
                ]
            patterns.write_out(cfg.get("model"))
            check_targets(cfg)
            if run_mode.name == "MULTIRUN":
                refuse_secrets(overrides)
                require_launcher(cfg.hydra.launcher._target_)
            return cfg

        def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> Any:
            """The merged files, with a pattern's entries in full: values are set on these."""
            cfg = super()._compose_config_from_defaults_list(defaults, repo)
            if self.entries is not None:
                with open_dict(cfg):
                    cfg["model"] = patterns.pattern(self.entries)
            patterns.write_out(cfg.get("model"))
            return cfg

    hydra.ConfigLoaderImpl = Loader  # type: ignore[misc]


def check_cluster() -> None:
    """Refuse a conf/local/cluster.yaml that holds no keys, where Hydra would not name the file, and
    one outside a clone, which nobody would read.
    """
    from omegaconf import DictConfig

    from tape_exp.settings.files import read_yaml

    own = Path("conf", "local", "cluster.yaml")
    if INSTALLED and own.exists():
        raise ConfigError(
            f"{own} is read in a clone of the repository only; set its keys on the command line, "
            "as in hydra.launcher.partition=gpu."
        )
    path = CONF / "local" / "cluster.yaml"
    example = "conf/local/example.yaml is an example"
    if path.exists() and not isinstance(read_yaml(path, f"mend it ({example})"), DictConfig):
        raise ConfigError(f"{path} must hold keys with values; {example}.")


def require_launcher(target: str) -> None:
    """Raise :class:`ConfigError` where the package of Hydra's launcher is not installed."""
    if "submitit" in target and find_spec("submitit") is None:
        raise ConfigError(
            "hydra/launcher=slurm needs the package hydra-submitit-launcher, which the extra slurm "
            "installs; `tape-exp sweep` submits to SLURM without it."
        )


def hide_secrets() -> None:
    """Let Hydra see the configs that it shows (``--cfg``, ``--info``, …) without their secrets."""
    from hydra._internal import hydra

    class Shown(hydra.ConfigLoaderImpl):
        """The loader of :func:`guard`, whose configs hold no secrets."""

        def load_configuration(self, *given: Any, **options: Any) -> Any:
            """Compose and search, then take the secrets out."""
            cfg = super().load_configuration(*given, **options)
            _hide_secrets(cfg)
            return cfg

    hydra.ConfigLoaderImpl = Shown  # type: ignore[misc]


def _hide_secrets(node: Any, key: str = "") -> None:
    """Replace every secret below a section or list, which lies at ``key``."""
    from omegaconf import DictConfig, OmegaConf, flag_override

    if node._is_none() or node._is_missing() or node._is_interpolation():
        return
    sections = isinstance(node, DictConfig)
    for name in list(node.keys()) if sections else range(len(node)):
        child, inner = node._get_node(name), str(name) if sections else key
        if OmegaConf.is_config(child):
            _hide_secrets(child, inner)
        elif (value := redact_tree(child._value(), inner)) != child._value():
            with flag_override(node, "readonly", False):
                node[name] = value


ONCE = ("model", "task", "scale", "peft", "seed")  # what a run has one of


def check_choices(overrides: Sequence[str]) -> None:
    """Refuse anything but the name of one of its YAMLs where a group of ours is chosen, or a
    pattern of layers, and two choices of one; Hydra would merge a list or a mapping, finds a YAML
    of another folder by its path, runs on the schema's defaults without a group, and takes the last
    of two.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from tape_exp.settings.patterns import is_pattern

    chosen: dict[str, str] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group, line = override.key_or_group, str(override.input_line)
        if not group:
            raise ConfigError(no_override(line))
        if group in ONCE and chosen.setdefault(group, line) != line:
            raise ConfigError(f"{chosen[group]} and {line} exclude each other; give one.")
        choices = names_in(group)
        removed = override.is_delete()
        if is_pattern(override):
            continue
        if not choices or override.is_sweep_override() or (removed and override.package):
            continue
        if removed or not isinstance(override.value(), str) or not override.value():
            raise ConfigError(
                f"{override.input_line} must choose one YAML of conf/{group}, as "
                f"{group}={choices[0]} does."
            )
        if not group.startswith(("hydra/", "paper")):  # whose choices are elsewhere, or none
            _check_choice(group, str(override.value()), choices)


def _check_choice(group: str, name: str, choices: Sequence[str]) -> None:
    """Refuse a path that is not among a group's choices; a plain name that is not may be in a
    folder that the command gives to Hydra (``--config-dir``).
    """
    hint = HINT if group in BROUGHT.values() else ""
    if "/" in name and name not in choices:
        raise ConfigError(
            f"{group}={name}{did_you_mean(name, choices)} Choose one of: {', '.join(choices)}."
            f"{hint}"
        )


def refuse_secrets(overrides: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where an override holds what looks like a secret."""
    for override in overrides:
        if redact(override) != override:
            key = override.partition("=")[0]
            raise ConfigError(
                f"{key} holds a secret, and a sweep writes its overrides to files: give it in an "
                "environment variable or ~/.netrc, where the clients of the hub and of W&B look "
                "for it."
            )


_UNSET = object()


def _environment(name: str, default: Any = _UNSET) -> Any:
    """The value of ``${oc.env:NAME}`` or ``${oc.env:NAME,default}``; secrets are refused."""
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
    """Refuse names that would lead a run's folder elsewhere, places that no terminal and no list of
    files can hold, and a secret as a name for W&B.
    """
    for key in ("runs", "cache", "checkpoint"):
        if cfg[key] is not None and not cfg[key].isprintable():
            raise ConfigError(
                f"{key}={cfg[key]!r} holds a line break or another control character; name a place "
                "without it."
            )
    for group in ("task", "scale", "model", "peft"):
        plain(f"{group}.name", cfg[group].name)
    for group in ("task", "model"):
        _refuse_borrowed(group, cfg[group])
    for key in ("project", "entity"):
        if redact(str(cfg.logger[key])) != str(cfg.logger[key]):
            raise ConfigError(
                f"logger.{key} holds a secret; W&B reads its key from WANDB_API_KEY or ~/.netrc: "
                f"name a {key}."
            )


def _refuse_borrowed(group: str, section: Any) -> None:
    """Refuse the name of another class's choice, in whose folder and rows the run would stand."""
    from omegaconf import OmegaConf

    path = yaml_of(group, section.name)
    theirs = OmegaConf.select(OmegaConf.load(path), "_target_") if path else None
    if theirs not in (None, section.get("_target_")):
        raise ConfigError(
            f"{group}.name={section.name} is the name of another {group}, {group}={section.name}; "
            "give a name of its own."
        )


def plain(key: str, value: Any) -> None:
    """Raise a :class:`ConfigError` unless ``value`` can be the name of a single folder."""
    if isinstance(value, str) and len(value) > LONGEST_NAME:
        raise ConfigError(
            f"{key} has {len(value)} characters and becomes a folder's name, which may have "
            f"{LONGEST_NAME}."
        )
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.+×-]*", value):
        raise ConfigError(
            f"{key}={value} becomes a folder's name: letters, digits and _ . + - may be in it, as "
            f"in {key}=mine-1."
        )
