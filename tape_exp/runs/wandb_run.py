"""The run of W&B that mirrors a run: whether there is one, and how it begins."""

import configparser
import logging
import netrc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from tape_exp.runs.directory import RunDirectory
from tape_exp.settings.redact import redact_tree
from tape_exp.settings.schema import LoggerConfig

log = logging.getLogger("tape_exp")
LONGEST_TAG = 64  # characters, of W&B
INIT_SECONDS = 20  # for the server's first answer
FINISH_SECONDS = 60  # for the last upload; SLURM leaves 120 after its signal
DATA_DIR = os.environ.get("WANDB_DATA_DIR")


def asks_for_wandb(logger: DictConfig) -> bool:
    """Say whether a run reports to W&B: where ``logger=`` says so; with ``logger=auto`` where one
    of its other keys is set, or this machine has a login and WANDB_MODE does not turn W&B off.
    """
    if logger.name != "auto":
        return logger.name == "wandb"
    section: Any = OmegaConf.to_container(logger)
    if LoggerConfig(**section) != LoggerConfig():
        return True
    return os.environ.get("WANDB_MODE") != "disabled" and logged_in()


def logged_in() -> bool:
    """Say whether W&B finds a key where it looks for one, in the environment, its settings and
    netrc; wandb is not imported, since most runs do without. A user may have no home, as in a
    container.
    """
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = configparser.ConfigParser(interpolation=None)
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    with suppress(configparser.Error, OSError, UnicodeError):
        settings.read(Path(os.path.expanduser(folder), "settings"), "utf-8")
    if settings.has_option("default", "api_key"):
        return True
    server = settings.get("default", "base_url", fallback="https://api.wandb.ai")
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or server).netloc
    with suppress(netrc.NetrcParseError, OSError, UnicodeError):
        path = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
        login = netrc.netrc(path).authenticators(host)
        if login is not None:
            _, _, password = login
            return bool(password)
    return False


def begin_wandb_run(cfg: DictConfig, run: RunDirectory) -> Any:
    """Begin a run of W&B with the hash as its id, so that a resumed run continues it; None where
    W&B is disabled or fails. Where the server does not answer, the run is offline.
    """
    os.environ["WANDB_DATA_DIR"] = DATA_DIR or str(run.path / "wandb")  # of tables
    os.environ.setdefault("WANDB_SILENT", "true")  # read when wandb is imported
    import wandb

    try:
        settings = wandb.setup().settings  # of WANDB_*, `wandb login` and `wandb init`
    except Exception as error:  # such as a mode that does not exist
        log.warning("W&B could not begin: %r.", error)
        return None
    for mode in _modes(cfg.logger.mode, settings.mode):
        try:
            wandb_run = wandb.init(mode=mode, **_arguments(cfg, run, settings))
        except Exception as error:
            log.warning("W&B could not begin a run %s: %r.", mode, error)
            wandb.teardown()  # else the id would still be in use
            continue
        if wandb_run.offline:
            folder = wandb_run.settings.sync_dir
            log.info("W&B is offline; to upload the run: wandb sync %s", folder)
        wandb_run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return wandb_run
    return None


def _modes(chosen: str, of_wandb: str) -> list[Any]:
    """List the modes of W&B to try, one after the other: what ``logger.mode`` asks for, else
    WANDB_MODE or ``wandb offline``; online only with a key.
    """
    mode = of_wandb if chosen == "auto" else chosen
    if mode == "disabled":
        return []
    if mode in ("offline", "dryrun") or (chosen == "auto" and not logged_in()):
        return ["offline"]
    return [mode, "offline"]


def _arguments(cfg: DictConfig, run: RunDirectory, settings: Any) -> dict[str, Any]:
    """Return the arguments of ``wandb.init``: a key of ``logger`` comes first, then W&B's own
    variables and ``settings``, and then what we choose.

    W&B is sent what is logged, but neither the command line and SLURM's variables, which may hold
    secrets, nor the code or a copy of the terminal.
    """
    import wandb

    section = cfg.logger
    title = f"{cfg.model.name} on {cfg.task.name}, scale {cfg.scale.name}, seed {cfg.seed}"
    seconds = section.timeout or float(os.environ.get("WANDB_INIT_TIMEOUT") or INIT_SECONDS)
    tags = [cfg.model.name, cfg.task.name, cfg.scale.name]
    tags += section.tags or settings.run_tags or ()
    return {
        "id": run.hash,
        "resume": "allow",
        "dir": os.environ.get("WANDB_DIR") or str(run.path),
        "project": section.project or (None if settings.project else "tape_exp"),
        "entity": section.entity,
        "name": settings.run_name or run.name,
        "group": settings.run_group or f"{cfg.task.name}-{cfg.scale.name}",
        "tags": list(dict.fromkeys(tag[:LONGEST_TAG] for tag in tags)),
        "notes": section.notes or settings.run_notes or title,
        "config": redact_tree(run.identity),
        "settings": wandb.Settings(
            init_timeout=seconds,
            finish_timeout=FINISH_SECONDS,
            x_disable_meta=True,
            disable_git=True,
            disable_code=True,
            console="off",
        ),
    }
