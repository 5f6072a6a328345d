"""The config of a command line: Hydra's composition, with errors of one sentence.

Layers may differ: ``model=[rope,nope]``, or ``layers`` in a YAML of conf/model, is a pattern that
is repeated over the layers.
"""

import copy
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from tape_exp.settings import folders
from tape_exp.settings.construct import validate
from tape_exp.settings.errors import CHOICES, ConfigError, choose, did_you_mean, one_of
from tape_exp.settings.plugins import folder_of, names_in, packages
from tape_exp.settings.schema import (
    CONFIG_GROUPS,
    Arch,
    AttentionConfig,
    Config,
    LoggerConfig,
    Optim,
)

UNNAMED = "layers"  # conf/model/layers.yaml, whose runs are named after their entries
# Ends of our keys, and what transformers' Trainer, lm-eval and others call them.
FOREIGN = {
    "optim.batch": "batch_size per_device_train_batch_size train_batch_size",
    "optim.lr": "lr learning_rate",
    "optim.max_steps": "max_steps steps num_steps max_iters epochs num_epochs num_train_epochs",
    "optim.warmup": "warmup_steps warmup_ratio num_warmup_steps",
    "optim.clip": "max_grad_norm grad_clip",
    "optim.betas": "adam_beta1 adam_beta2",
    "optim.decay_shape": "lr_scheduler_type",
    "train_length": "max_length max_seq_len max_seq_length seq_len context_length block_size",
    "arch.layers": "n_layer n_layers num_layers num_hidden_layers",
    "arch.width": "d_model n_embd hidden_size",
    "arch.heads": "n_head n_heads num_heads num_attention_heads",
    "arch.ffn": "intermediate_size ffn_dim d_ff",
    "checkpoint_every": "save_steps save_every",
    "validate_every": "eval_steps eval_every",
    "log_every": "logging_steps",
    "checkpoint_activations": "gradient_checkpointing",
    "micro_batch": "gradient_accumulation_steps micro_batch_size",
    "devices": "gpus num_gpus",
    "accelerator": "device",
    "precision": "bf16 fp16 dtype",
    "workers": "num_workers dataloader_num_workers",
    "runs": "output_dir",
    "logger": "report_to",
    "checkpoint": "pretrained model_args model_name_or_path",
    "shots": "num_fewshot",
}
BY_TASK = [f"task.arch.{key}" for key in ("vocab", "max_length", "train_length", "digits")]
SECTIONS = {"model": AttentionConfig, "task.optim": Optim, "task.arch": Arch}


def _optional() -> list[str]:
    """List the keys that YAMLs may leave out: those with a default that no task decides."""
    keys = []
    for section, schema in SECTIONS.items():
        for field in fields(schema):
            key = f"{section}.{field.name}"
            if field.default is not MISSING and key not in BY_TASK:
                keys.append(key)
    return keys


OPTIONAL = _optional()
LAUNCHERS = ("joblib", "submitit_local", "submitit_slurm")  # of Hydra's plugins
USER_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


class PackageConfigs(SearchPathPlugin):
    """Lets Hydra search the ``conf/`` of installed packages, behind ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append their folders."""
        for name, folder in packages().items():
            search_path.append(name, f"file://{folder / 'conf'}")


ConfigStore.instance().store(name="schema", node=asdict(Config()))  # the keys and their defaults
Plugins.instance().register(PackageConfigs)
# A script of launch/, as conf/hydra/launcher/slurm.yaml names it.
OmegaConf.register_new_resolver("launch_file", lambda name: str(folders.ROOT / "launch" / name))


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose the config that ``tape-exp train <overrides>`` runs.

    Raises:
        ConfigError: an override is wrong; the sentence says which, and what would be right.
    """
    if not all(isinstance(word, str) for word in overrides):
        raise ConfigError("give each key=value as an argument of its own, and no list of them.")
    words = spell_out(overrides)
    try:
        overrides_of_values = []
        choices = []
        for override in OverridesParser.create().parse_overrides(words):
            if _sets_value(override):
                overrides_of_values.append(override)
            else:
                choices.append(str(override.input_line))
        cfg = copy.deepcopy(_choose(tuple(choices)))
        for override in overrides_of_values:
            adds = override.is_add() or override.is_force_add()
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=adds)
        complete(cfg, words)
    except USER_ERRORS as error:
        raise ConfigError(explain(error, words)) from error
    return cfg


def complete(cfg: DictConfig, words: Sequence[str]) -> None:
    """Write out the pattern of layers in a config that Hydra has composed of these words; check the
    sections that every run has, and the names that become folders.

    Raises:
        ConfigError: which key is wrong, and what would be right.
    """
    given = {}
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        given[key] = value
    check_presence(cfg)
    check_paths(cfg, given)
    check_own_name(cfg, given)
    expand_layers(cfg)
    check_names(cfg)
    check_sections(cfg)
    with open_dict(cfg):
        # What the user typed goes into the record; a dollar in it is no interpolation of ours.
        cfg.overrides = [word.replace("${", r"\${") for word in words]
        asked = _asked(cfg, given)
        if cfg.checkpoint is not None and asked:
            cfg.asked = asked  # for what follows from the checkpoint, which may decide otherwise


def check_presence(cfg: DictConfig) -> None:
    """Refuse a config from which ``~key`` has removed what every run needs."""
    for key in _keys(asdict(Config())):
        if not _has(cfg, key):
            raise ConfigError(f"every run needs {key}: leave ~{key} out, or set it.")


def check_paths(cfg: DictConfig, given: Mapping[str, str]) -> None:
    """Refuse a ``.path`` of local files for a text that comes from elsewhere."""
    for key in given:
        if not key.endswith(".path"):
            continue
        source = key.removesuffix("path") + "source"
        if OmegaConf.select(cfg, source, default="local") != "local":
            raise ConfigError(f"{key} is not read: add scale.text=local for local files.")


def check_own_name(cfg: DictConfig, given: Mapping[str, str]) -> None:
    """Refuse a copied YAML of a model that still has the name of the one that it was."""
    file = given.get("model", cfg.model.name)
    if file != cfg.model.name and "model.name" not in given:
        raise ConfigError(f"{file}.yaml holds name: {cfg.model.name}; write name: {file}.")


def expand_layers(cfg: DictConfig) -> None:
    """Replace each entry of ``model.layers`` by all its keys, and name the model after them."""
    model = cfg.get("model")
    if not isinstance(model, DictConfig) or "layers" not in model:
        return
    entries = []
    for number, entry in enumerate(model.layers or ()):
        entries.append(_entry(entry, f"model.layers.{number}"))
    if not entries:
        raise ConfigError("model.layers must be a list of encodings, as in model=[rope,nope].")
    with open_dict(model):
        model.layers = entries
        if model.name == UNNAMED:
            model.name = pattern_name(entries)


def pattern_name(entries: Sequence[Mapping[str, Any]]) -> str:
    """Name a pattern of layers by its entries, equal neighbours once, with their number.

    >>> pattern_name([{"name": "rope"}, {"name": "rope"}, {"name": "nope"}])
    'rope×2+nope'
    """
    names = []
    for entry, equal in itertools.groupby(entries):
        count = len([*equal])
        name = str(entry.get("name"))
        names.append(f"{name}×{count}" if count > 1 else name)
    return "+".join(names)


def check_names(cfg: DictConfig) -> None:
    """Refuse a name of a choice that could not be a folder's."""
    for group in CONFIG_GROUPS:
        name = (cfg.get(group) or {}).get("name")
        if name is None or not re.fullmatch(r"[A-Za-z0-9_][\w.+×-]{0,99}", str(name)):
            raise ConfigError(
                f"{group}.name={name} must be of letters, digits and _ . + -, as in "
                f"{group}.name=mine_2."
            )


def check_sections(cfg: DictConfig) -> None:
    """Check keys and types of the fixed sections; those of the open ones are checked where their
    objects are built.
    """
    opened: dict[str, Any] = {"model": None, "task": None, "scale": None, "peft": None}
    if "_target_" in cfg.logger:
        opened["logger"] = asdict(LoggerConfig())
    values = {key: opened[key] if key in opened else cfg[key] for key in cfg}
    validate(Config, OmegaConf.to_container(OmegaConf.create(values), resolve=True), "")


def _asked(cfg: DictConfig, given: Mapping[str, str]) -> list[str]:
    """List the keys of model, task.arch and the tokenizer that words give, themselves or, of
    task.arch, by a key of the scale from which they are read.
    """
    own = ("model.", "task.arch.", "task.tokenizer.")
    asked = {key for key in given if key.startswith(own)}
    task: Any = OmegaConf.to_container(cfg.task, resolve=False)
    for key, value in task.get("arch", {}).items():
        source = str(value).strip("${}")  # scale.layers of ${scale.layers}
        if source in given:
            asked.add(f"task.arch.{key}")
    return sorted(asked)


def _has(cfg: DictConfig, key: str) -> bool:
    """Say whether a config has a key, and a section that it chooses a YAML for is one."""
    parent, _, last = key.rpartition(".")
    section = OmegaConf.select(cfg, parent) if parent else cfg
    return last in section and (key not in CONFIG_GROUPS or section[last] is not None)


def spell_out(words: Sequence[str]) -> list[str]:
    """Write words as Hydra reads them. It would merge the two YAMLs of ``model=[rope,nope]`` into
    one, and takes a key that the task's YAML may leave out only with ``++``.

    >>> spell_out(["model=[rope,nope]", "--task.optim.eps=1e-6", "seed=1"])
    ['model=layers', 'model.layers=[rope,nope]', '++task.optim.eps=1e-6', 'seed=1']

    Packages that ``hydra.searchpath=`` names are known from now on.
    """
    spelled: list[str] = []
    for word in words:
        word = re.sub(r"^--(?!(?:cfg|package|info)=)(?=[\w.]+=)", "", word)  # those are Hydra's
        key, _, value = word.partition("=")
        if key in OPTIONAL:
            word = f"++{word}"
        if key == "hydra.searchpath":
            add_packages(value)
        if key == "model" and re.fullmatch(r"\[.*\]", value):
            spelled += [f"model={UNNAMED}", f"model.layers={value}"]
        else:
            spelled.append(word)
    return spelled


def add_packages(search_path: str) -> None:
    """Know the packages of ``[pkg://my_pe.conf]`` from now on, if they are there."""
    for name in re.findall(r"pkg://(\w+)\.conf\b", search_path):
        folder = folder_of(name)
        if folder:
            packages()[name] = folder


def _entry(entry: Any, key: str) -> dict[str, Any]:
    """Return an entry with all its keys: it is a name, or a name and keys on top of those of its
    YAML.
    """
    keys: Any = OmegaConf.create({"name": entry} if isinstance(entry, str) else entry)
    if "_target_" not in keys:
        name = keys.get("name")
        one_of(key, name, names_in("model"), CHOICES)
        defaults: Any = OmegaConf.to_container(_choose((f"model={name}",)).model)
        keys = OmegaConf.merge(defaults, keys)
        if "layers" in keys:
            raise ConfigError(f"{key}={name} is itself a pattern; write out its entries.")
    whole: Any = OmegaConf.to_container(keys)
    return whole


@lru_cache(maxsize=1024)
def _choose(choices: tuple[str, ...]) -> DictConfig:
    """Let Hydra compose a config from choices of YAMLs. Tables ask for hundreds of configs that
    differ in values only, so these are set on a copy: reading and merging the YAMLs takes 0.1 s.
    """
    begun = GlobalHydra.instance().is_initialized()  # by hydra.main: the command is train
    with nullcontext() if begun else initialize_config_dir(str(folders.CONF), version_base="1.3"):
        return compose("config", list(choices))


def _sets_value(override: Override) -> bool:
    """Say whether an override sets or adds a value of ours, and chooses no YAML."""
    key = override.key_or_group
    if override.is_sweep_override() or override.is_delete() or key.startswith("hydra"):
        return False
    return not names_in(key.partition("@")[0])


# What Hydra and OmegaConf say; tests/settings/test_config.py has our sentence for each.
UNKNOWN_CHOICE = re.compile(r"Could not (?:find|load) '([^']+)/([^'/]+)'")
SEVERAL_VALUES = re.compile(r"Ambiguous value for argument '([^=]+)=(.*?)'")
UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'|Key '([^']+)' (?:is )?not in")


def explain(error: BaseException, words: Sequence[str]) -> str:
    """Write an error as one sentence; an unknown key or choice comes with the nearest one."""
    if str(error).startswith("Error merging override") and error.__cause__ is not None:
        error = error.__cause__  # Hydra hides OmegaConf's reason
    text = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return text
    choice = UNKNOWN_CHOICE.search(text)
    if choice:
        return _unknown_choice(choice[1], choice[2], getattr(error, "options", None))
    several = SEVERAL_VALUES.search(text)
    if several:
        return _several_values(several[1], several[2])
    if isinstance(error, OverrideParseException):
        return _wrong_syntax(str(error.override), text)
    key = str(getattr(error, "full_key", None) or "")
    unknown = UNKNOWN_KEY.search(text)
    if unknown:
        return _unknown_key(key or unknown[1] or unknown[2], words)
    reason = re.sub(r" (full_key|reference_type|object_type|See https).*", "", text)
    return f"{key}: {reason}." if key else reason


def _unknown_choice(group: str, choice: str, options: Iterable[str] | None) -> str:
    if group == "hydra/launcher" and choice in LAUNCHERS:
        return f"hydra/launcher={choice} is a plugin: pip install 'tape_exp[launchers]'."
    word = f"{group}={choice}"
    if group.startswith("scale/"):
        task = group.removeprefix("scale/")
        word = f"scale={choice} for task={task}"
    return choose(word, choice, list(options or names_in(group)), CHOICES)


def _several_values(key: str, values: str) -> str:
    name = "seed" if key == "seeds" else key
    return (
        f"{key}={values} has several values: `tape-exp train -m {name}={values}` runs "
        f"one after another, and {name}=[{values}] is a list."
    )


def _wrong_syntax(word: str, text: str) -> str:
    quoted = _quoted(word)
    if quoted:
        return f"{word} needs quotes around its value: {quoted}"
    reason = text.removeprefix(f"Error parsing override '{word}' ").split(" See ")[0]
    return f"{word} is not a key and a value, as in model=tape ({reason})."


def _unknown_key(key: str, words: Sequence[str]) -> str:
    if key in BY_TASK:
        return f"{key} follows from the task and its data: leave it out."
    return f"{key}{_nearest(key, words)} `tape-exp train --cfg job` shows the keys."


def _quoted(word: str) -> str:
    """Quote a word whose value Hydra's grammar takes only in quotes, for a shell; else nothing."""
    key, _, value = word.partition("=")
    quoted = f'{key}="{value}"'
    try:
        OverridesParser.create().parse_override(quoted)
    except HydraException:
        return ""
    return shlex.quote(quoted) if value else ""


def _nearest(key: str, words: Sequence[str]) -> str:
    """Say `` is not known. Did you mean …?``, of the keys that the chosen YAMLs set."""
    known = [name for name in _known_keys(words) if not name.startswith("scale.")]
    last = last_part(key)
    ours = _our_name(last)
    candidates = [name for name in known if f".{name}".endswith(f".{ours or last}")]
    if not ours and not candidates:
        near = get_close_matches(last, list(dict.fromkeys(map(last_part, known))))
        candidates = [name for name in known if last_part(name) in near]
    if len(candidates) == 1:
        return f" is not known. Did you mean '{candidates[0]}'?"
    return did_you_mean(key, candidates)


def _known_keys(words: Sequence[str]) -> list[str]:
    """List the keys of the config that the words compose; at least those of the groups."""
    chosen = (*CONFIG_GROUPS, "hydra.searchpath")
    choices = [word for word in words if word.partition("=")[0] in chosen]
    try:
        composed = OmegaConf.to_container(_choose(tuple(choices)))
    except USER_ERRORS:
        return list(CONFIG_GROUPS)
    return list(dict.fromkeys([*CONFIG_GROUPS, *_keys(composed), *OPTIONAL]))


def _our_name(name: str) -> str | None:
    """Return the end of our key for what others call ``batch_size``: ``optim.batch``."""
    for ours, foreign in FOREIGN.items():
        if name in foreign.split():
            return ours
    return None


def last_part(key: str) -> str:
    """Return the last part of a key: ``lr`` of ``task.optim.lr``."""
    return key.rpartition(".")[2]


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield every key of nested sections, dotted."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
