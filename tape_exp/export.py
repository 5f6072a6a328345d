"""``tape-exp export <run> <folder> [--push <user/model>]``: export for transformers.

Adapters are merged into the weights. A model with RoPE becomes a plain Llama; any other is loaded
by ``AutoModelForCausalLM.from_pretrained`` after ``import tape_exp.models.hf``.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from tape_exp.models import export, peft
from tape_exp.models.export import card
from tape_exp.models.llama import fingerprint, is_llama
from tape_exp.models.peft_format import save_for_peft
from tape_exp.paper import rerun
from tape_exp.paper.records import checked, warn
from tape_exp.runs import weights
from tape_exp.runs.card import model_card
from tape_exp.settings.arguments import PLUGINS, Parser, command, without_plugins
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.files import read_json
from tape_exp.settings.folders import path_of
from tape_exp.settings.redaction import redact
from tape_exp.training.finished import Finished, read_run

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Export, and push."""
    parser = Parser(
        prog="python -m tape_exp.export",
        description="A run as a model that transformers loads.",
        epilog=PLUGINS,
    )
    parser.add_argument(
        "run", type=_place, help="the run's folder, runs/<task>/<scale>/<model>/seed…"
    )
    parser.add_argument("folder", type=_place, help="a new folder")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of the stored weights (default: %(default)s)",
    )
    parser.add_argument(
        "--push", metavar="USER/MODEL", help="upload the folder to the Hugging Face hub too"
    )
    parser.add_argument("--public", action="store_true", help="of --push: not a private repository")
    parser.add_argument(
        "--auto-map",
        action="store_true",
        help="let trust_remote_code=True find our classes without an import; tape_exp is needed "
        "anyway",
    )
    parser.add_argument(
        "--adapter",
        metavar="BASE",
        help="write LoRA's adapter only, as peft loads it onto BASE, the Llama that the run began "
        "from (a folder, or a name on the hub)",
    )
    given = parser.parse_args(without_plugins(arguments))
    for option in ("adapter", "push"):
        if getattr(given, option) == "":
            parser.error(f"--{option} needs a name, not an empty word")
    if given.adapter and (given.auto_map or given.dtype != "float32"):
        parser.error("--adapter goes without --auto-map and --dtype")
    if given.public and not given.push:
        parser.error("--public goes with --push")
    if given.push and not re.fullmatch(r"[\w.-]+/[\w.-]{1,96}", given.push):
        raise ConfigError(f"--push {given.push} must be <user or organisation>/<model>.")
    name = given.push or given.folder.name
    if given.adapter:
        export_adapter(given.run, given.folder, given.adapter, name)
    else:
        export_run(given.run, given.folder, DTYPES[given.dtype], name, given.auto_map)
    print(given.folder)
    if given.push:
        print(push(given.folder, given.push, given.public))
    return 0


def _place(text: str) -> Path:
    """A folder; an empty word would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("needs a folder, not an empty word")
    return Path(text)


def export_run(
    run: Path,
    folder: Path,
    dtype: torch.dtype = torch.float32,
    name: str = "",
    auto_map: bool = False,
) -> None:
    """Write the model of a run to ``folder``, with a card of its record if that is of these
    weights.

    Args:
        name: by which the card loads it; none: the folder's.
    """
    try:
        found = read_run(run)
        peft.merge(found.decoder)
        about = _about(found)

        def describe(plain: bool) -> str:
            return about(card(name or folder.name, plain, found.model, auto_map))

        export.save(
            found.decoder,
            folder,
            found.tokenizer,
            model=found.model,
            dtype=dtype,
            describe=describe,
            auto_map=auto_map,
        )
    except (OSError, SafetensorError) as error:
        raise _not_written(folder, error) from error


def _about(found: Finished) -> Callable[[str], str]:
    """What makes a README from the lines that load a model: it adds its record, if it has one."""
    path, done = found.folder / "record.json", (found.folder / "DONE").is_file()
    record = checked(read_json(path), path) if done and path.is_file() else {}
    if wrong := found.unfit(record):
        warn(f"{wrong}: the card says how to load the model, and no results.")
        return str
    told = rerun.command(record)
    adapters = sum(p.numel() for name, p in found.decoder.named_parameters() if "lora_" in name)
    count = sum(parameter.numel() for parameter in found.decoder.parameters()) - adapters
    return lambda head: model_card(head, record, count, told)


def export_adapter(run: Path, folder: Path, base: str, name: str = "") -> None:
    """Write the adapter of a run for a base to ``folder``, with a card as of a whole model.

    Args:
        base: the Llama that the run began from, a folder or a name on the hub.
        name: by which the card loads it; none: the folder's.
    """
    try:
        found = read_run(run)
        _check_base(base, weights.llama_below(weights.find(found.cfg.checkpoint, found.cfg)))
        save_for_peft(found.decoder, folder, base, name, _about(found))
    except (OSError, SafetensorError) as error:
        raise _not_written(folder, error) from error


def _check_base(base: str, begun_from: Path | None) -> None:
    """Refuse an ``--adapter <base>`` that is no Llama, or another than the run began from."""
    place = path_of("--adapter", base)
    if not is_llama(place):
        if place.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", base):
            raise ConfigError(
                f"--adapter {base} is neither the folder of a Llama nor <user>/<model> on the hub."
            )
    elif begun_from is not None and fingerprint(place) != fingerprint(begun_from):
        raise ConfigError(
            f"--adapter {base} has other weights than {begun_from}, which the run began from; name "
            "that one."
        )


def _not_written(folder: Path, error: Exception) -> ConfigError:
    place = getattr(error, "filename", None) or folder
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{place}: {reason}; export to a folder that can be written.")


def push(folder: Path, repository: str, public: bool = False) -> str:
    """Upload a folder to the hub (``HF_ENDPOINT``), as the user of ``HF_TOKEN`` or of a login; the
    address of the model.

    Raises:
        ConfigError: there is no token, the hub refuses it, or it cannot be reached; the folder
            stays, and the sentence says how to upload it.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    later = f"{folder} is whole: hf upload {repository} {folder} uploads it later"
    if get_token() is None:
        raise ConfigError(f"--push needs a login: hf auth login, or HF_TOKEN. {later}.")
    api = HfApi()
    try:
        address = api.create_repo(repository, private=not public, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export a run")
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = redact(" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        raise ConfigError(f"the hub does not take {repository} ({reason}). {later}.") from error
    except Exception as error:  # of the HTTP client below that of the hub
        if not type(error).__module__.startswith("http"):
            raise
        raise ConfigError(
            f"the hub cannot be reached ({type(error).__name__}). {later}."
        ) from error
    return str(address)


if __name__ == "__main__":
    sys.exit(main())
