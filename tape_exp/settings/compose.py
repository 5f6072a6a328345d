"""The config of a command line: Hydra's composition, with errors of one sentence.

Layers may differ: ``model=[rope,nope]``, or ``layers`` in a YAML of conf/model, is a pattern that
is repeated over the layers.
"""

import copy
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
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
    GROUPS,
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
# Keys that YAMLs may leave out.
OPTIONAL = [
    f"{section}.{field.name}"
    for section, cls in (("model", AttentionConfig), ("task.optim", Optim), ("task.arch", Arch))
    for field in fields(cls)
    if field.default is not MISSING and f"{section}.{field.name}" not in BY_TASK
]
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
    """The config that ``tape-exp train <overrides>`` runs.

    Raises:
        ConfigError: an override is wrong; the sentence says which, and what would be right.
    """
    if not all(isinstance(word, str) for word in overrides):
        raise ConfigError("give each key=value as an argument of its own, and no list of them.")
    words = spell_out(overrides)
    try:
        parsed = OverridesParser.create().parse_overrides(words)
        choices = tuple(str(one.input_line) for one in parsed if not _sets_value(one))
        cfg = copy.deepcopy(_choose(choices))
        for one in filter(_sets_value, parsed):
            adds = one.is_add() or one.is_force_add()
            OmegaConf.update(cfg, one.key_or_group, one.value(), force_add=adds)
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
    if removed := [key for key in _keys(asdict(Config())) if not _has(cfg, key)]:
        raise ConfigError(f"every run needs {removed[0]}: leave ~{removed[0]} out, or set it.")
    given = dict(word.lstrip("+").partition("=")[::2] for word in words)
    for key in (key for key in given if key.endswith(".path")):
        if OmegaConf.select(cfg, f"{key[:-5]}.source", default="local") != "local":
            raise ConfigError(f"{key} is not read: add scale.text=local for local files.")
    if (own := given.get("model", cfg.model.name)) != cfg.model.name and "model.name" not in given:
        raise ConfigError(f"{own}.yaml holds name: {cfg.model.name}; write name: {own}.")
    if isinstance(model := cfg.get("model"), DictConfig) and "layers" in model:
        entries = [_entry(one, f"model.layers.{i}") for i, one in enumerate(model.layers or ())]
        if not entries:
            raise ConfigError("model.layers must be a list of encodings, as in model=[rope,nope].")
        with open_dict(model):
            model.layers = entries
            if model.name == UNNAMED:  # rope×3+nope: equal neighbours once, with their number
                equal = [(one.get("name"), len([*run])) for one, run in itertools.groupby(entries)]
                model.name = "+".join(f"{name}×{n}" if n > 1 else f"{name}" for name, n in equal)
    for group in GROUPS:
        name = (cfg.get(group) or {}).get("name")
        if not re.fullmatch(r"[A-Za-z0-9_][\w.+×-]{0,99}", str(name)) or name is None:
            raise ConfigError(
                f"{group}.name={name} must be of letters, digits and _ . + -, as in "
                f"{group}.name=mine_2."
            )
    # The others' keys are checked where their objects are built.
    others: dict[str, Any] = {"model": None, "task": None, "scale": None, "peft": None}
    if "_target_" in cfg.logger:
        others["logger"] = asdict(LoggerConfig())
    values = {key: others[key] if key in others else cfg[key] for key in cfg}
    validate(Config, OmegaConf.to_container(OmegaConf.create(values), resolve=True), "")
    with open_dict(cfg):
        # What the user typed goes into the record; a dollar in it is no interpolation of ours.
        cfg.overrides = [word.replace("${", r"\${") for word in words]
        if cfg.checkpoint is not None and (asked := _asked(cfg, given)):
            cfg.asked = asked  # for what follows from the checkpoint, which may decide otherwise


def _asked(cfg: DictConfig, given: Iterable[str]) -> list[str]:
    """The keys of model and task.arch that words give, themselves or by a key of the scale from
    which they are read, and those of the tokenizer.
    """
    arch: Any = OmegaConf.to_container(cfg.task, resolve=False)
    read = {f"task.arch.{key}": str(value) for key, value in arch.get("arch", {}).items()}
    by_scale = [key for key, value in read.items() if value.strip("${}") in given]
    own = ("model.", "task.arch.", "task.tokenizer.")
    return sorted({*by_scale, *(key for key in given if key.startswith(own))})


def _has(cfg: DictConfig, key: str) -> bool:
    """Whether a config has a key, and a section that it chooses a YAML for is one."""
    parent, _, last = key.rpartition(".")
    section = OmegaConf.select(cfg, parent) if parent else cfg
    return last in section and (key not in GROUPS or section[last] is not None)


def spell_out(words: Sequence[str]) -> list[str]:
    """``model=[rope,nope]`` as Hydra reads it: ``model=layers`` and ``model.layers=[rope,nope]``,
    where it would merge the two YAMLs into one; ``++task.optim.eps=1e-6`` for a key that the task's
    YAML may leave out. Packages that ``hydra.searchpath=`` names are known from now on.
    """
    spelled: list[str] = []
    for word in words:
        word = re.sub(r"^--(?!(?:cfg|package|info)=)(?=[\w.]+=)", "", word)  # those are Hydra's
        if word.partition("=")[0] in OPTIONAL:
            word = f"++{word}"
        if word.startswith("hydra.searchpath="):
            names = re.findall(r"pkg://(\w+)\.conf\b", word)
            packages().update({name: path for name in names if (path := folder_of(name))})
        layers = re.fullmatch(r"model=(\[.*\])", word)
        spelled += [f"model={UNNAMED}", f"model.layers={layers[1]}"] if layers else [word]
    return spelled


def _entry(one: Any, key: str) -> dict[str, Any]:
    """An entry with all its keys: a name, or a name and keys on top of those of its YAML."""
    keys: Any = OmegaConf.create({"name": one} if isinstance(one, str) else one)
    if "_target_" not in keys:
        one_of(key, name := keys.get("name"), names_in("model"), CHOICES)
        defaults: Any = OmegaConf.to_container(_choose((f"model={name}",)).model)
        keys = OmegaConf.merge(defaults, keys)
        if "layers" in keys:
            raise ConfigError(f"{key}={name} is itself a pattern; write out its entries.")
    entry: Any = OmegaConf.to_container(keys)
    return entry


@lru_cache(maxsize=1024)
def _choose(choices: tuple[str, ...]) -> DictConfig:
    """What Hydra composes from choices of YAMLs. Tables ask for hundreds of configs that differ in
    values only, so these are set on a copy: reading and merging the YAMLs takes 0.1 s.
    """
    begun = GlobalHydra.instance().is_initialized()  # by hydra.main: the command is train
    with nullcontext() if begun else initialize_config_dir(str(folders.CONF), version_base="1.3"):
        return compose("config", list(choices))


def _sets_value(override: Override) -> bool:
    """Whether an override sets or adds a value of ours, and chooses no YAML."""
    key = override.key_or_group
    plain = not (override.is_sweep_override() or override.is_delete() or key.startswith("hydra"))
    return plain and not names_in(key.partition("@")[0])


def explain(error: BaseException, words: Sequence[str]) -> str:
    """An error as one sentence; a key or choice that is not known comes with the nearest one."""
    if str(error).startswith("Error merging override") and error.__cause__ is not None:
        error = error.__cause__  # Hydra hides OmegaConf's reason
    text = " ".join(str(error).split())
    key = str(getattr(error, "full_key", None) or "")
    if isinstance(error, ConfigError):
        return text
    if match := re.search(r"Could not (?:find|load) '([^']+)/([^'/]+)'", text):
        group, choice = match.groups()
        if group == "hydra/launcher" and choice in LAUNCHERS:
            return f"hydra/launcher={choice} is a plugin: pip install 'tape_exp[launchers]'."
        options = list(getattr(error, "options", None) or names_in(group))
        place = f"scale={choice} for task={group[6:]}" if group.startswith("scale/") else ""
        return choose(place or f"{group}={choice}", choice, options, CHOICES)
    if match := re.search(r"Ambiguous value for argument '([^=]+)=(.*?)'", text):
        name = "seed" if match[1] == "seeds" else match[1]
        return (
            f"{match[1]}={match[2]} has several values: `tape-exp train -m {name}={match[2]}` runs "
            f"one after another, and {name}=[{match[2]}] is a list."
        )
    if isinstance(error, OverrideParseException):
        if quoted := _quoted(str(error.override)):
            return f"{error.override} needs quotes around its value: {quoted}"
        reason = text.removeprefix(f"Error parsing override '{error.override}' ").split(" See ")[0]
        return f"{error.override} is not a key and a value, as in model=tape ({reason})."
    unknown = re.search(r"Could not override '([^']+)'|Key '([^']+)' (?:is )?not in", text)
    if unknown:
        name = key or next(filter(None, unknown.groups()))
        if name in BY_TASK:
            return f"{name} follows from the task and its data: leave it out."
        return f"{name}{_nearest(name, words)} `tape-exp train --cfg job` shows the keys."
    text = re.sub(r" (full_key|reference_type|object_type|See https).*", "", text)
    return f"{key}: {text}." if key else text


def _quoted(word: str) -> str:
    """A word whose value Hydra's grammar takes only in quotes, as a shell takes it; or nothing."""
    key, _, value = word.partition("=")
    quoted = f'{key}="{value}"'
    try:
        OverridesParser.create().parse_override(quoted)
    except HydraException:
        return ""
    return shlex.quote(quoted) if value else ""


def _nearest(key: str, words: Sequence[str]) -> str:
    """`` is not known. Did you mean …?`` of the keys that the chosen YAMLs set."""
    choices = tuple(w for w in words if w.partition("=")[0] in (*GROUPS, "hydra.searchpath"))
    try:
        composed = OmegaConf.to_container(_choose(choices))
        known = [*dict.fromkeys([*GROUPS, *_keys(composed), *OPTIONAL])]
    except USER_ERRORS:
        known = list(GROUPS)
    last_of = {k: k.rpartition(".")[2] for k in known if not k.startswith("scale.")}
    last = key.rpartition(".")[2]
    ours = next((end for end, names in FOREIGN.items() if last in names.split()), None)
    same = [k for k in last_of if f".{k}".endswith(f".{ours or last}")]
    if not (ours or same):
        near = get_close_matches(last, {*last_of.values()})
        same = [k for k in last_of if last_of[k] in near]
    return (
        f" is not known. Did you mean '{same[0]}'?" if len(same) == 1 else did_you_mean(key, same)
    )


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from _keys(value, f"{prefix}{key}.")
