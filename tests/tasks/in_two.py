"""An evaluation by two processes, each with its share."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tape_exp.settings.compose import compose_config
from tape_exp.training.from_config import make_decoder, make_task
from tape_exp.training.on_device import OnDevice
from tests.conftest import silent
from tests.processes import SERVER


def evaluate(words: list[str], sharded: bool = False) -> dict[str, float]:
    """The metrics of an untrained model."""
    cfg = compose_config(words)
    task = make_task(cfg)
    task.prepare_data()
    decoder = make_decoder(cfg, task).eval()
    for part in (*decoder.layers, decoder) if sharded else ():
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    with torch.no_grad():
        return task.evaluate(OnDevice(decoder, torch.device("cpu")), silent).metrics


def one_of_two(rank: int, words: list[str], sharded: bool, folder: Path) -> None:
    """Write what it finds; waits no longer than a minute for the other."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps(evaluate(words, sharded)))
    dist.destroy_process_group()


def evaluate_in_two(words: list[str], folder: Path, sharded: bool = False) -> list[dict]:
    """The metrics that each of two processes finds."""
    both = [
        SERVER.Process(target=one_of_two, args=(rank, words, sharded, folder)) for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
