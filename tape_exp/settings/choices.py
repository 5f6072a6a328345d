"""Let Hydra compose the YAMLs that a command line chooses, ours and those of other packages.

Importing this module tells Hydra the types of our keys, where installed packages have their YAMLs,
and the resolver ``launch_file``.
"""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import MISSING, asdict, fields
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from tape_exp.settings import folders
from tape_exp.settings.plugins import folder_of, packages
from tape_exp.settings.schema import Arch, AttentionConfig, Config, Optim

SECTIONS = {"model": AttentionConfig, "task.optim": Optim, "task.arch": Arch}
SET_BY_TASK = [f"task.arch.{key}" for key in ("vocab", "max_length", "train_length", "digits")]


def _optional() -> list[str]:
    """List the keys that YAMLs may leave out: those with a default that no task decides."""
    keys = []
    for section, schema in SECTIONS.items():
        for field in fields(schema):
            key = f"{section}.{field.name}"
            if field.default is not MISSING and key not in SET_BY_TASK:
                keys.append(key)
    return keys


OPTIONAL_KEYS = _optional()


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


@lru_cache(maxsize=1024)
def compose_choices(overrides: tuple[str, ...]) -> DictConfig:
    """Let Hydra compose a config. Callers must not change it: it is kept, since Hydra takes 0.1 s
    and tables ask for hundreds of configs that choose the same YAMLs.
    """
    initialized = GlobalHydra.instance().is_initialized()  # by hydra.main: the command is train
    folder = str(folders.CONF)
    with nullcontext() if initialized else initialize_config_dir(folder, version_base="1.3"):
        return compose("config", list(overrides))


def add_packages(search_path: str) -> None:
    """Know the packages of ``[pkg://my_pe.conf]`` from now on, if they are there."""
    for name in re.findall(r"pkg://(\w+)\.conf\b", search_path):
        folder = folder_of(name)
        if folder:
            packages()[name] = folder


def keys_of(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield every key of nested sections, dotted.

    >>> list(keys_of({"seed": 0, "task": {"optim": {"lr": 0.1}}}))
    ['seed', 'task', 'task.optim', 'task.optim.lr']
    """
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{prefix}{key}"
            yield from keys_of(value, f"{prefix}{key}.")
