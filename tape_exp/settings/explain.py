"""What Hydra and OmegaConf say of a wrong override, as one sentence with the nearest right key."""

import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from tape_exp.settings.choices import OPTIONAL_KEYS, SET_BY_TASK, compose_choices, keys_of
from tape_exp.settings.errors import CHOICES, ConfigError, choose, did_you_mean
from tape_exp.settings.plugins import names_in
from tape_exp.settings.schema import CONFIG_GROUPS

USER_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)
LAUNCHERS = ("joblib", "submitit_local", "submitit_slurm")  # of Hydra's plugins
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

# Messages of Hydra and OmegaConf; tests/settings/test_config.py has our sentence for each.
UNKNOWN_CHOICE = re.compile(r"Could not (?:find|load) '([^']+)/([^'/]+)'")
SEVERAL_VALUES = re.compile(r"Ambiguous value for argument '([^=]+)=(.*?)'")
UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'|Key '([^']+)' (?:is )?not in")


def explain(error: BaseException, overrides: Sequence[str]) -> str:
    """Write an error that overrides have caused as one sentence."""
    if str(error).startswith("Error merging override") and error.__cause__ is not None:
        error = error.__cause__  # Hydra hides OmegaConf's reason
    text = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return text
    choice = UNKNOWN_CHOICE.search(text)
    if choice:
        return explain_choice(choice[1], choice[2], getattr(error, "options", None))
    several = SEVERAL_VALUES.search(text)
    if several:
        return explain_several_values(several[1], several[2])
    if isinstance(error, OverrideParseException):
        return explain_syntax(str(error.override), text)
    key = str(getattr(error, "full_key", None) or "")
    unknown = UNKNOWN_KEY.search(text)
    if unknown:
        return explain_key(key or unknown[1] or unknown[2], overrides)
    reason = re.sub(r" (full_key|reference_type|object_type|See https).*", "", text)
    return f"{key}: {reason}." if key else reason


def explain_choice(group: str, choice: str, options: Iterable[str] | None) -> str:
    """Explain a choice that a group does not have: ``model=tpae``."""
    if group == "hydra/launcher" and choice in LAUNCHERS:
        return f"hydra/launcher={choice} is a plugin: pip install 'tape_exp[launchers]'."
    override = f"{group}={choice}"
    if group.startswith("scale/"):
        task = group.removeprefix("scale/")
        override = f"scale={choice} for task={task}"
    return choose(override, choice, list(options or names_in(group)), CHOICES)


def explain_several_values(key: str, values: str) -> str:
    """Explain that one run has one value of a key: ``seed=0,1``."""
    name = "seed" if key == "seeds" else key
    return (
        f"{key}={values} has several values: `tape-exp train -m {name}={values}` runs "
        f"one after another, and {name}=[{values}] is a list."
    )


def explain_syntax(override: str, text: str) -> str:
    """Explain an override that is no ``key=value``, or lacks quotes around its value."""
    quoted = quote_value(override)
    if quoted:
        return f"{override} needs quotes around its value: {quoted}"
    reason = text.removeprefix(f"Error parsing override '{override}' ").split(" See ")[0]
    return f"{override} is not a key and a value, as in model=tape ({reason})."


def quote_value(override: str) -> str:
    """Quote an override whose value Hydra's grammar takes only in quotes, for a shell.

    >>> print(quote_value("model.name=<|a|>"))
    'model.name="<|a|>"'

    Another mistake than that gives an empty text.
    """
    key, _, value = override.partition("=")
    quoted = f'{key}="{value}"'
    try:
        OverridesParser.create().parse_override(quoted)
    except HydraException:
        return ""
    return shlex.quote(quoted) if value else ""


def explain_key(key: str, overrides: Sequence[str]) -> str:
    """Explain a key that the config does not have: ``task.lr=1``, ``batch_size=8``."""
    if key in SET_BY_TASK:
        return f"{key} follows from the task and its data: leave it out."
    known = known_keys(overrides)
    candidates = [name for name in similar_keys(key, known) if name != key]
    if len(candidates) == 1:
        advice = f" is not known. Did you mean '{candidates[0]}'?"
    else:
        advice = did_you_mean(key, candidates)
    return f"{key}{advice} `tape-exp train --cfg job` shows the keys."


def known_keys(overrides: Sequence[str]) -> list[str]:
    """List the keys of the config that the choices among overrides compose, but those of the scale;
    where they compose none, the names of the groups.
    """
    choosing = (*CONFIG_GROUPS, "hydra.searchpath")
    choices = [override for override in overrides if override.partition("=")[0] in choosing]
    try:
        composed = OmegaConf.to_container(compose_choices(tuple(choices)))
    except USER_ERRORS:
        return list(CONFIG_GROUPS)
    keys = dict.fromkeys([*CONFIG_GROUPS, *keys_of(composed), *OPTIONAL_KEYS])
    return [key for key in keys if not key.startswith("scale.")]


def similar_keys(key: str, known: Sequence[str]) -> list[str]:
    """List the known keys that a wrong one may mean: the one that other frameworks call so, those
    with the same last part in another section, or with nearly the same in its own.

    >>> similar_keys("batch_size", ["task.lengths", "task.optim.batch", "task.optim.lr"])
    ['task.optim.batch']
    >>> similar_keys("task.optim.lrr", ["task.lengths", "task.optim.batch", "task.optim.lr"])
    ['task.optim.lr']
    """
    last = last_part(key)
    end = key_for_foreign(last)
    same_end = [name for name in known if f".{name}".endswith(f".{end or last}")]
    if end or same_end:
        return same_end
    section = key.partition(".")[0]
    if section in CONFIG_GROUPS:  # `task.windows` is no misspelt `model.window`
        known = [name for name in known if name.startswith(f"{section}.")]
    near = get_close_matches(last, list(dict.fromkeys(map(last_part, known))))
    return [name for name in known if last_part(name) in near]


def key_for_foreign(name: str) -> str | None:
    """Return the end of our key for what other frameworks call ``batch_size``: ``optim.batch``."""
    for end, foreign in FOREIGN.items():
        if name in foreign.split():
            return end
    return None


def last_part(key: str) -> str:
    """Return the last part of a key: ``lr`` of ``task.optim.lr``."""
    return key.rpartition(".")[2]
