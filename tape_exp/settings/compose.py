"""The config that a command line stands for: Hydra's composition, with errors of one sentence."""

import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from yaml import YAMLError

from tape_exp.settings import plugins
from tape_exp.settings.construct import takes
from tape_exp.settings.errors import ConfigError, did_you_mean, no_override, refused
from tape_exp.settings.folders import CONF, told
from tape_exp.settings.help import GROUPS, PLAN, program, register_help
from tape_exp.settings.patterns import write_out
from tape_exp.settings.plugins import names_in
from tape_exp.settings.schema import AttentionConfig, Config, check_sections, fields_of
from tape_exp.settings.targets import HOMES, check_choices, check_targets, guard, locate

MISTAKES = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)  # of the user
APART = ("model", "task", "peft")  # a YAML sets its own section only; a task's, by the scale
SCALE = "smoke"  # the default
KINDS = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}
ALIKE = 0.7  # the likeness from which a key is taken for a slip of another

# What conf/config.yaml chooses of Hydra's own section.
OURS = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null")


def register() -> None:
    """Give Hydra our schema, the resolvers of its help, and the check of what it may construct."""
    guard()
    Plugins.instance().register(PluginConfigs)
    ConfigStore.instance().store(name="schema", node=Config)
    register_help()


class PluginConfigs(SearchPathPlugin):
    """Lets Hydra look for a YAML behind ours in the packages that are known."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add their folders."""
        for plugin in plugins.known():
            search_path.append(plugin.package, f"file://{plugin.conf}")


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config that ``python train.py <overrides>`` would run.

    Raises:
        ConfigError: an override is wrong; the sentence says which and what would be right.
    """
    try:
        plugins.use(overrides)
        check_choices(overrides)
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [str(override.input_line) for override in parsed if not _sets_value(override)]
        # Composing reads and merges a dozen YAML files, and a table asks for hundreds of configs
        # that differ only in values. Hydra sets values last, on the merged files, so the merged
        # files can be kept, and the same function of Hydra's sets the values on a copy.
        cfg = copy.deepcopy(_composed(tuple(choices)))
        values = [override for override in parsed if _sets_value(override)]
        ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        write_out(cfg.get("model"))
        check_targets(cfg)
        check_sections(cfg)
        if "${" in "".join(overrides) or not _resolves(tuple(choices)):
            _check_scale(cfg)
    except (HydraException, OmegaConfBaseException, YAMLError, TypeError) as error:
        raise ConfigError(explain(error, overrides)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(_not_utf8()) from error
    return cfg


def _not_utf8() -> str:
    """Which YAML cannot be read as text."""
    for path in (path for conf in plugins.conf_folders() for path in conf.rglob("[!.]*.yaml")):
        try:
            path.read_text()
        except UnicodeDecodeError as error:
            return f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8."
        except OSError:
            continue
    return "a YAML of the config is not UTF-8; save it as UTF-8."


def _sets_value(override: Override) -> bool:
    """Whether the override sets, adds or deletes a value of ours, and does not choose a YAML.

    Values of Hydra's own section and sweeps, which it refuses here, are left to Hydra.
    """
    key = override.key_or_group
    if key == "hydra" or override.is_hydra_override() or override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not (CONF / key).is_dir()


@functools.lru_cache(maxsize=1024)
def _resolves(choices: tuple[str, ...]) -> bool:
    """Whether nothing is missing in what the chosen YAMLs compose; no value can take it away."""
    try:
        _check_scale(_composed(choices))
    except OmegaConfBaseException:
        return False
    return True


def _check_scale(cfg: DictConfig) -> None:
    """Raise where the task reads a key that its scale does not set.

    Whatever else cannot be resolved is refused where it is read.
    """
    try:
        _resolve(cfg.task)
    except InterpolationKeyError:
        raise
    except OmegaConfBaseException:
        pass


def _resolve(node: Any) -> None:
    """Read every value that is an interpolation."""
    for key in node if isinstance(node, DictConfig) else range(len(node)):
        child = node._get_node(key)
        if child._is_interpolation():
            child = node[key]
        if OmegaConf.is_config(child) and not child._is_none():
            _resolve(child)


@functools.lru_cache(maxsize=1024)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """What Hydra composes from all of the overrides; it is shared, so copy it before a change.

    The sections of :data:`APART` are put into the composition of the other overrides.
    """
    chosen = dict(word.split("=", 1) for word in overrides if "=" in word)
    if not set(chosen) <= set(GROUPS) or len(chosen) < len(overrides):
        return _by_hydra("config", overrides)
    scales = {"task": chosen.get("scale", SCALE)}
    sections = {group: _sections(group, scales.get(group, SCALE)) for group in APART}
    own = {g: sections[g][chosen[g]] for g in APART if chosen.get(g) in sections[g]}
    if not own:
        return _by_hydra("config", overrides)
    others = tuple(word for word in overrides if word.partition("=")[0] not in own)
    cfg = copy.deepcopy(_composed(others))
    for group, section in own.items():
        cfg[group] = section  # which copies it
    return cfg


def _by_hydra(name: str, overrides: tuple[str, ...]) -> DictConfig:
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, list(overrides))


@functools.cache
def _sections(group: str, scale: str) -> dict[str, DictConfig]:
    """The section that each YAML of a group makes at a scale, all composed at once.

    None where one of them is wrong, does not exist at the scale or sets anything else.
    """
    names = names_in(group)
    defaults = [*({f"{group}@{group}.{name}": name} for name in names), {"scale": scale}]
    ConfigStore.instance().store(name="sections", node={"defaults": defaults})
    try:
        cfg = _by_hydra("sections", OURS)
    except (HydraException, OmegaConfBaseException, ConfigError, YAMLError, UnicodeDecodeError):
        return {}
    sections = {name: cfg[group]._get_node(name) for name in names}
    for node in sections.values():
        if group == "model":
            write_out(node)
        node._set_parent(None)  # or a copy would be one of all the sections
    fit = set(cfg) == {group, "scale"} and all("name" in node for node in sections.values())
    return sections if fit else {}


def explain(error: BaseException, arguments: Sequence[str]) -> str:
    """One sentence for an error of the config, Hydra's or ours, with the nearest right word."""
    if isinstance(error, ConfigError):
        return str(error)
    text = str(error).removeprefix("ConfigError raised while resolving interpolation: ")
    chosen = dict(word.split("=", 1) for word in arguments if "=" in word)
    # Hydra wraps what OmegaConf refuses, and says only that there was an error.
    if text.startswith("Error merging override") and error.__cause__ is not None:
        error = error.__cause__
        text = str(error)
    if match := re.search(r"Error parsing override '(.*)'\s+missing EQUAL", text):
        return no_override(match.group(1))
    if match := re.search(r"Ambiguous value for argument '(.*)'", text):
        key, _, value = match.group(1).partition("=")
        if re.fullmatch(r"[\w.]+", key) and key not in known_keys(arguments):
            return _not_set(key, arguments, chosen)
        does = "plans" if program() == PLAN else "runs"
        return (
            f"{key}={value} gives several values to one run; `{program()} -m` {does} one after "
            f"the other{f', and {key}=[{value}] is a list' if '.' in key else ''}."
        )
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read; close its brackets and quotes, and put a value with "
            "other characters than letters, digits and . / - _ into quotes of its own, as in "
            "\"runs='my runs'\"."
        )
    if "Cannot merge DictConfig with ListConfig" in text:
        key = getattr(error, "full_key", None) or text.partition(":")[0]
        if "object_type=list" in text:
            return f"{key} is a list; set it as a whole, as in {key}=[<value>,<value>]."
        return f"{key} is a section of keys; set one of them, as in {key}.<key>=<value>."
    if re.search(r"list index out of range|Index '.*' \(str\) is not an int", text):
        wrong = next((word for word in arguments if ".layers." in word), "")
        return (
            f"{wrong.partition('=')[0] or 'an entry of model.layers'} is no entry of the list; its "
            "entries are counted from 0, as in model.layers.0.window=16."
        )
    if match := re.search(r"Could not find '((?:hydra/)?\w+)/([^']+)'", text):
        group, choice = match.groups()
        if group == "scale" and "/" in choice:  # the folder of a task's sizes, one file a scale
            part, scale = choice.split("/", 1)
            return _not_a_scale(scale, chosen.get("task", part), names_in(f"scale/{part}"))
        choices = getattr(error, "options", None) or []  # also those of Hydra's plugins
        return (
            f"{group}={choice}{did_you_mean(choice, choices)} Choose one of: {', '.join(choices)}."
            + (plugins.HINT if group in plugins.GROUPS.values() else "")
        )
    match = re.search(r"Interpolation key 'scale\.([^']+)' not found", text)
    if match and (scales := scales_with(match.group(1))):
        return _not_a_scale(chosen.get("scale", "smoke"), chosen.get("task", "the task"), scales)
    if match := re.search(r"Could not override '([^']+)'", text) or re.search(
        r"Key '([^']+)' (?:is )?not in", text
    ):
        return _not_set(match.group(1), arguments, chosen)
    match = re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", text)
    if match and (kind := KINDS.get(match.group(2))):
        key = getattr(error, "full_key", None) or "a key"
        several = ", and `-m` takes several, as in seed=0,1,2" if key == "seed" else ""
        return f"{key}={match.group(1)} must be {kind}{several}."
    if isinstance(error, HydraException | OmegaConfBaseException):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        where = next(
            (line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), ""
        )
        return (f"{where}: " if where else "") + (lines[0] if lines else type(error).__name__)
    if isinstance(error, OSError):
        return refused(error)
    if isinstance(error, YAMLError):
        return f"a YAML cannot be read: {' '.join(text.split())}; mend it."
    return f"{type(error).__name__}: {text}"


def _not_set(key: str, arguments: Sequence[str], chosen: Mapping[str, str]) -> str:
    """What to do about a key that the chosen YAMLs do not set."""
    if key == "paper":
        return f"paper holds tables and figures: `{told('paper run <artifact>')}` runs one."
    if taken_by_a_constructor(key, arguments):
        word = next((a for a in arguments if a.startswith(f"{key}=")), f"{key}=<value>")
        setter = "scale" if key.startswith("task.") else key.partition(".")[0]
        return f"{key} is not set by this {setter}; add it with +{word}."
    known = known_keys(arguments)
    if key in known:
        section = key.partition(".")[0]
        return f"{key} is not a key of every {section} of the sweep; sweep apart over those."
    advice = advice_on(key, known, chosen.get("scale", SCALE))
    return f"{key} is not known. {advice}`{program()} --cfg job` shows every key."


def _not_a_scale(scale: str, task: str, scales: list[str]) -> str:
    return f"scale={scale} is not one of {task}'s. Choose one of: {', '.join(scales)}."


def scales_with(key: str) -> list[str]:
    """The scales whose YAML sets a key, as ``language.arch.width``."""
    scales = sorted((CONF / "scale").glob("[!.]*.yaml"))
    return [path.stem for path in scales if OmegaConf.select(OmegaConf.load(path), key) is not None]


def taken_by_a_constructor(key: str, arguments: Sequence[str]) -> bool:
    """Whether the class that the section's ``_target_`` names takes a key that no YAML sets."""
    section, _, rest = key.partition(".")
    if (cfg := _chosen(arguments)) is None:
        return False
    node = cfg.get(section)
    if section not in HOMES or not isinstance(node, DictConfig) or "_target_" not in node:
        return False
    beside = section == "model" and rest in fields_of(AttentionConfig)
    return beside or takes(locate(node._target_, section), rest)


def _chosen(arguments: Sequence[str]) -> DictConfig | None:
    """What the YAMLs that the overrides choose compose; None where there is no such config."""
    choices = tuple(word for word in arguments if word.partition("=")[0] in GROUPS)
    try:
        return _composed(choices)
    except MISTAKES:
        return None


def known_keys(arguments: Sequence[str]) -> list[str]:
    """Every dotted key that the chosen YAMLs set, or else the defaults, and the groups."""
    cfg = _chosen([word.split(",")[0] for word in arguments])  # of a sweep, its first run
    return [*GROUPS, *_keys_below(_composed(()) if cfg is None else cfg, "")]


def _keys_below(node: DictConfig, prefix: str) -> Iterator[str]:
    for key in node:
        if key != "_target_":  # a choice of another class is a choice of another YAML
            yield f"{prefix}{key!s}"
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not (child._is_none() or child._is_interpolation()):
            yield from _keys_below(child, f"{prefix}{key!s}.")


def advice_on(key: str, known: Sequence[str], scale: str) -> str:
    """A sentence, and a space, for a key that is not ``known``: which choice of its group has it,
    which key has its last name, or which is spelt nearly so; empty where there is none.
    """
    group, _, rest = key.partition(".")
    last = key.rpartition(".")[2]
    sections = sorted(_sections(group, scale).items() if group in APART else (), key=_shortest)
    elsewhere = {name: [*_keys_below(node, f"{group}.")] for name, node in sections}
    if fitting := [name for name, keys in elsewhere.items() if key in keys]:
        return f"{group}={fitting[0]} has it. "
    same = [k for k in known if k.rpartition(".")[2] == last and k not in GROUPS]
    first = [k for k in same if not k.startswith(("scale.", "debug."))] or same
    if first and last != "name":
        return f"{first[0]} has this name. "
    for name, keys in elsewhere.items():
        if rest and (fitting := [k for k in keys if k.rpartition(".")[2] == last]):
            return f"{group}={name} has {fitting[0]}. "
    own = [k for k in known if k.partition(".")[0] == group] or known
    nearest = max(own, key=lambda k: likeness(key, k))
    return f"Did you mean '{nearest}'? " if likeness(key, nearest) >= ALIKE else ""


def _shortest(item: tuple[str, Any]) -> tuple[int, str]:
    return len(item[0]), item[0]


def likeness(key: str, other: str) -> float:
    """From 0 to 1, of the parts of two dotted keys that differ most; of keys of other depths, a
    little less than that of their last parts.
    """
    parts, others = key.split("."), other.split(".")
    if len(parts) != len(others):
        return 0.85 * SequenceMatcher(None, parts[-1], others[-1]).ratio()
    return min(SequenceMatcher(None, *pair).ratio() for pair in zip(parts, others, strict=True))
