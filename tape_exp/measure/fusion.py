"""What ``trainer.compile=true`` leaves of a layer's other operations: ``python -m
tape_exp.measure.fusion``.

torch.compile fuses what follows element by element, and sums over rows. Inductor, its compiler,
plans this for a GPU without one: it is given the graph of a training step, with tensors of an H100
that have no storage. Of each group that it fuses, its own count of bytes is taken: what the group
reads from outside and what others read of it, each once. Products, attention and our operators stay
as they are. Leaves ``results/speed/fusion.json``, which
:mod:`tape_exp.measure.goals` reads; nothing is computed, and no kernel reaches these counts.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from tape_exp.drawing.markdown import aligned
from tape_exp.measure import count, goals
from tape_exp.measure.results import add_folder, write_record
from tape_exp.models.block import Where
from tape_exp.models.decoder import Decoder
from tape_exp.settings.commands import command
from tape_exp.training.module import loss_sum

Graphs = dict[str, torch.fx.GraphModule]  # of each phase
Phases = dict[str, dict[str, float]]


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print the table, and write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m tape_exp.measure.fusion",
        description="Count what torch.compile leaves of a layer's operations that are no products, "
        f"on an {count.GPU}. No GPU is needed, and nothing is computed.",
    )
    add_folder(parser, "fusion", goals.FUSED.name)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record = measure()
    print("\n".join(table(record)))
    print(write_record("fusion", record, given.out))
    return 0


def measure() -> dict[str, Any]:
    """The record: launches and bytes of each encoding and phase of a middle layer and of a model of
    two layers, and of TAPE's forward pass in the model of addition; the bytes of the loss for each
    logit. Those of layers are for each token and unit of width.
    """
    layers, ends = {}, {}
    for name in goals.UNFUSED:
        layers[name], ends[name] = layer(name)
    with goals.in_model_of_addition():
        grid = layer("tape")[0]["forward"]
    logits = count.BATCH * count.LENGTH * count.VOCABULARY
    loss = sum(counts.others.bytes for counts in planned(loss_graphs()).values()) / logits
    return {
        "torch": torch.__version__.partition("+")[0],
        "layers": layers,
        "two layers": ends,
        "grid": grid,
        "loss": round(loss, 2),
    }


def layer(name: str) -> tuple[Phases, Phases]:
    """The launches of a middle layer and those of a model of two layers, and the bytes of what is
    neither product nor attention.
    """
    more, fewer = (planned(layer_graphs(name, layers)) for layers in (3, 2))
    middle = {phase: more[phase] - fewer[phase] for phase in count.PHASES}
    unit = count.BATCH * count.LENGTH * count.WIDTH
    first, second = (
        {
            phase: {
                "launches": counts[phase].launches,
                "bytes": round(counts[phase].others.bytes / unit, 2),
            }
            for phase in count.PHASES
        }
        for counts in (middle, fewer)
    )
    return first, second


class Layers(nn.Module):
    """The layers of a decoder, whose position state comes from outside, as where it is compiled."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.layers = decoder.layers

    def forward(self, x_BTC: Tensor, positions_BT: Tensor, state: Tensor | None) -> Tensor:
        """The mean of what the last layer gives."""
        where = Where(positions_BT, consecutive=True)
        for layer in self.layers:
            x_BTC, state = layer(x_BTC, state, where)
        return x_BTC.mean()


def layer_graphs(name: str, layers: int) -> Graphs:
    """The training step of so many layers, in bf16 under autocast."""
    decoder = count.small_model(name, layers)
    position = decoder.blocks()[0].position
    with count.stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
        x_BTC = torch.zeros(count.BATCH, count.LENGTH, count.WIDTH, requires_grad=True)
        positions_BT = position.positions(count.BATCH, count.LENGTH, x_BTC.device)
        state = position.initial_state(positions_BT)
        return traced(Layers(decoder), x_BTC, positions_BT, state)


def loss_graphs() -> Graphs:
    """The loss of bf16 logits."""
    with FakeTensorMode():
        shape = (count.BATCH, count.LENGTH, count.VOCABULARY)
        logits = torch.empty(shape, dtype=torch.bfloat16).requires_grad_()
        return traced(loss_sum, logits, torch.empty(shape[:2], dtype=torch.long))


def traced(function: Callable[..., Tensor], *inputs: Tensor | None) -> Graphs:
    """Phase -> the graph that torch.compile would hand to Inductor, of a function's scalar."""
    import torch._functorch.config as functorch_config
    from functorch.compile import aot_function, aot_module, make_boxed_func
    from torch._inductor.compile_fx import partition_fn
    from torch._inductor.decomposition import select_decomp_table

    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.append(graph)
        return make_boxed_func(graph.forward)

    trace = aot_module if isinstance(function, nn.Module) else aot_function
    whole = trace(
        function, keep, keep, partition_fn=partition_fn, decompositions=select_decomp_table()
    )
    as_compiled = functorch_config.patch(backward_pass_autocast="off")
    with torch.autocast("cpu", torch.bfloat16), as_compiled:
        scalar = whole(*inputs)
    scalar.backward()
    return dict(zip(count.PHASES, found, strict=True))


def planned(graphs: Graphs) -> dict[str, count.Counts]:
    """Phase -> the counts of what Inductor would launch on the GPU."""
    from torch._inductor.scheduler import ExternKernelSchedulerNode

    found = {}
    for phase, graph in graphs.items():
        found[phase] = counts = count.Counts()
        for node in groups(graph, backward=phase == "backward"):
            kind = counts.others
            if isinstance(node, ExternKernelSchedulerNode):
                operator = getattr(node.node, "op_overload", None)
                kind = counts.of(getattr(operator, "overloadpacket", None))
            kind.launches += 1
            kind.bytes += node.get_read_write_buffers_sizes()
    return found


def groups(graph: torch.fx.GraphModule, backward: bool) -> Iterator[Any]:
    """Inductor's groups of operations, each of which is a launch."""
    from torch._inductor.compile_fx import _recursive_post_grad_passes
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode
    from torch._inductor.virtualized import V

    mode, inputs = on_gpu(graph)
    with as_if_there(), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        _recursive_post_grad_passes(graph, is_inference=False)
        lowered = GraphLowering(graph, example_inputs=inputs, is_backward=backward)
        with V.set_graph_handler(lowered):
            lowered.run(*inputs)
            lowered._update_scheduler()
            for node in lowered.scheduler.nodes:
                names_a_part = isinstance(node.node, MultiOutput)
                if not isinstance(node, NopKernelSchedulerNode) and not names_a_part:
                    yield node


def on_gpu(graph: torch.fx.GraphModule) -> tuple[FakeTensorMode, list[Any]]:
    """The graph's tensors are now those of a GPU: its inputs, none of which has storage."""
    mode, device = FakeTensorMode(), torch.device("cuda", 0)
    inputs = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            with mode:
                inputs.append(
                    torch.empty_strided(
                        value.shape, value.stride(), dtype=value.dtype, device=device
                    )
                    if isinstance(value, Tensor)
                    else value
                )
        elif "device" in node.kwargs:
            node.update_kwarg("device", device)
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return mode, inputs


@contextmanager
def as_if_there() -> Iterator[None]:
    """Inductor takes an H100 to be in this machine."""
    from torch._inductor import scheduler
    from torch._inductor.runtime.hints import DeviceProperties

    gpu = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
    with ExitStack() as stack:
        stack.enter_context(patch.object(DeviceProperties, "create", lambda _: gpu))
        stack.enter_context(patch.object(scheduler, "has_triton", lambda *_: True))
        for name, fact in {
            "is_available": True,
            "device_count": 1,
            "current_device": 0,
            "get_device_capability": (9, 0),
            "get_device_properties": SimpleNamespace(**gpu._asdict(), gcnArchName=count.GPU),
        }.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, fact=fact: fact))
        yield


def table(record: dict[str, Any]) -> list[str]:
    """The lines of a Markdown table of a middle layer."""
    rows = [["", "launches", "others: bytes"]]
    for name, phases in record["layers"].items():
        for phase, found in phases.items():
            rows.append([f"{name}, {phase}", str(found["launches"]), f"{found['bytes']:.0f}"])
    return aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
