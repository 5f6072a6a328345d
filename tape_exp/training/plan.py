"""``debug=plan``: parameters, memory, FLOPs and hours of a run, from its config; nothing is loaded.

Bytes of one device, for a forward pass of B rows of T tokens, layers of width C with H query and K
key heads of d channels, inner width F, and vocabulary V. An activation has w bytes (4 in 32-true,
else 2), a parameter p (2 in bf16-true, else 4):

- weights: p a parameter, 2 of a frozen one in bf16; under bf16-mixed 2 more an entry of a matrix,
  for its 16-bit copy, unless it is frozen and layers are recomputed;
- gradients: p a trainable parameter, AdamW 2 p;
- activations: of a layer B T (16 C + 2 w (C + H d + K d) + 4 w F) for norms, attention and SwiGLU;
  with a state of H d numbers, as TAPE's, B T ((8 + 3 w) H d + 8 H²) more; with explicit attention
  5 B H T² more, for its probabilities and a mask or bias (fused attention keeps nothing of T × T);
- recomputed (trainer.checkpoint_activations=true): of a layer its input B T p C and its state
  B T ((4 + w) H d + 4 H²), and one layer with all of its activations;
- logits: 12 a token and entry of the vocabulary, log-softmax and two gradients in fp32, of as many
  as are held at once (:func:`tape_exp.models.head.most_logits`).

FSDP divides weights, gradients and AdamW by the devices; embedding, head and two layers are whole.
"""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from tape_exp.machine.hardware import PEAKS, machine_name, peak_flops
from tape_exp.models.attention import CPU_SDPA_FROM
from tape_exp.models.biases import Dense
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.head import most_logits
from tape_exp.models.places import Places
from tape_exp.tasks.base import Task
from tape_exp.training.from_config import blank_parts, micro_batches
from tape_exp.training.trainer import precision

UTILISATION = 0.4  # of the peak
ON_A_CPU = 0.5  # of the rate of its own matrix products
ASSUMED = "H100"  # where this machine has no GPU whose peak is known
CARD = 80 * 2**30  # bytes of its memory
TOTAL = "GiB per device"  # of all parts


@dataclass(frozen=True)
class Devices:
    """How many devices a run has, of which kind, and what each of them does."""

    count: int
    sharded: bool  # whether FSDP divides the weights
    precision: str
    rows: int  # of a device's forward pass
    accumulate: int  # forward passes a step
    name: str
    peak: float  # FLOP/s of one device, of dense bf16 or of fp32
    memory: int  # bytes of one GPU
    cpu: bool

    @property
    def parameter_bytes(self) -> int:
        """Return p of the formula."""
        return 2 if self.precision == "bf16-true" else 4

    @property
    def activation_bytes(self) -> int:
        """Return w of the formula."""
        return 4 if self.precision == "32-true" else 2

    @property
    def shards(self) -> int:
        """Count the devices among which weights, gradients and AdamW are divided."""
        return self.count if self.sharded else 1


def devices_of(cfg: DictConfig, task: Task) -> Devices:
    """Return the devices of the trainer section, or without a GPU of a known peak the
    :data:`ASSUMED` ones.
    """
    trainer = cfg.trainer
    count = trainer.devices * trainer.nodes
    on_cpu = trainer.accelerator == "cpu"
    has_gpu = torch.cuda.is_available()
    on_gpu = has_gpu and not on_cpu
    device = torch.device("cuda" if on_gpu else "cpu")
    numbers = precision(trainer.precision, trainer.accelerator)
    if trainer.precision == "auto" and not (on_cpu or has_gpu):
        numbers = "bf16-mixed"  # as on the GPU that is assumed
    fp32 = numbers == "32-true"
    accumulate = micro_batches(cfg, task)
    name = machine_name(device)
    peak = peak_flops(device, fp32)
    if not peak:
        name = f"{ASSUMED} (assumed)"
        peak = PEAKS[ASSUMED][fp32]
    return Devices(
        count=count,
        sharded=trainer.strategy == "fsdp",
        precision=numbers,
        rows=max(task.optim.batch // count // accumulate, 1),
        accumulate=accumulate,
        name=name,
        peak=peak,
        memory=torch.cuda.get_device_properties(device).total_memory if on_gpu else CARD,
        cpu=on_cpu,
    )


def tokens(task: Task) -> int:
    """Count the tokens that a task trains on, padding included; 0 where nothing is trained."""
    if not task.trains:
        return 0
    return task.optim.max_steps * task.optim.batch * task.arch.train_length


def flops_per_token(decoder: Decoder, task: Task, recompute: bool) -> float:
    """Count the FLOPs of training for each token: 6 a trainable parameter of the matrices, 4 a
    frozen one, and 6 · layers · C · T of causal attention; with ``recompute`` the blocks' forward
    pass once more.
    """
    length = task.arch.train_length
    flops = decoder.flops_per_token(length)
    if recompute:
        head = 2 * decoder.head.weight.numel()
        flops += decoder.forward_flops_per_token(length) - head
    return flops


def hours(flops: float, peak: float) -> float:
    """Return the hours of so many FLOPs at :data:`UTILISATION` of a peak in FLOP/s."""
    return flops / (UTILISATION * peak) / 3600


def matmul_rate() -> float:
    """Measure the FLOP/s of this CPU's fp32 matrix products, with the threads of this process: the
    median of a few.
    """
    size = 1024
    a = torch.randn(size, size)
    b = torch.randn(size, size)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(times[1:])


def memory(decoder: Decoder, task: Task, devices: Devices, recompute: bool) -> dict[str, float]:
    """Count the bytes of one device, part by part, by the formula above; without training only
    weights.
    """
    parts = weight_bytes(decoder, devices, recompute)
    if not task.trains:
        return parts
    trainable = sum(x.numel() for x in decoder.parameters() if x.requires_grad)
    parts["gradients"] = devices.parameter_bytes * trainable / devices.shards
    parts["AdamW"] = 2 * parts["gradients"]
    tokens_of_a_pass = devices.rows * task.arch.train_length
    parts["activations"] = tokens_of_a_pass * activation_bytes(decoder, devices, recompute)
    most = most_logits(torch.device("cpu" if devices.cpu else "cuda"))
    parts["logits"] = 12.0 * min(tokens_of_a_pass * task.arch.vocab, most)
    return parts


def weight_bytes(decoder: Decoder, devices: Devices, recompute: bool) -> dict[str, float]:
    """Count the bytes of weights, of their 16-bit copies, and of what FSDP has gathered."""
    p = devices.parameter_bytes
    stored = sum(x.numel() * min(p, x.element_size()) for x in decoder.parameters())
    parts = {"weights": stored / devices.shards}
    if devices.precision == "bf16-mixed":
        wide = [x for x in decoder.matrices() if x.ndim > 1 and x.dtype == torch.float32]
        copied = [x.numel() for x in wide if x.requires_grad or not recompute]
        parts["16-bit copies of the weights"] = 2.0 * sum(copied)
    if devices.sharded:
        layers = []
        for block in decoder.blocks():
            layers.append(sum(x.numel() for x in block.parameters()))
        whole = decoder.parameter_count() - sum(layers)  # embedding, head and last norm
        parts["gathered weights"] = p * (whole + 2 * max(layers))
    return parts


def activation_bytes(decoder: Decoder, devices: Devices, recompute: bool) -> int:
    """Count the bytes that a token's activations take in all layers."""
    blocks = decoder.blocks()
    layers = [layer_bytes(block, devices) for block in blocks]
    if not recompute:
        return sum(layers)
    inputs = [input_bytes(block, devices) for block in blocks]
    return sum(inputs) + max(layers)


def layer_bytes(block: Block, devices: Devices) -> int:
    """Count the bytes of a token's activations in a layer: norms, attention and SwiGLU, the update
    of a state, and explicit attention's probabilities with a mask or bias.
    """
    arch = block.position.arch
    w = devices.activation_bytes
    queries = arch.heads * arch.head_dim
    keys = arch.key_heads * arch.head_dim
    kept = 16 * arch.width + 2 * w * (arch.width + queries + keys) + 4 * w * arch.ffn
    if updates_a_state(block):
        kept += (8 + 3 * w) * queries + 8 * arch.heads**2
    if is_explicit(block, w, devices):
        kept += 5 * arch.heads * arch.train_length
    return kept


def input_bytes(block: Block, devices: Devices) -> int:
    """Count the bytes of a token's input to a layer, and of its state, which recomputing keeps."""
    arch = block.position.arch
    kept = devices.parameter_bytes * arch.width
    if updates_a_state(block):
        kept += (4 + devices.activation_bytes) * arch.heads * arch.head_dim + 4 * arch.heads**2
    return kept


def updates_a_state(block: Block) -> bool:
    """Say whether a layer makes another state, as TAPE's do but for the first."""
    return block.updates_state and hasattr(block.position, "update_net")


def is_explicit(block: Block, width: int, devices: Devices) -> bool:
    """Say whether attention keeps something for each pair of tokens: probabilities or a bias. The
    encoding is called on tensors without storage to see what it returns.
    """
    position = block.position
    arch = block.position.arch
    T = arch.train_length
    heads = arch.key_heads if position.grouped_keys else arch.heads
    with torch.device("meta"):
        x = torch.empty(1, T, arch.width)
        places = Places.at(torch.empty(1, T))
        q = torch.empty(1, T, arch.heads, arch.head_dim)
        k = torch.empty(1, T, heads, arch.head_dim)
        state = position.start(places)
        q, k = position.rotate(q, k, x, state, places)
        bias = position.bias(q, k, x, state, places)
        carries = position.carry(state, places) is not None
    parts = bias if isinstance(bias, list) else [bias]
    dense = any(isinstance(part, Dense) for part in parts)
    biased = bool(bias) and (devices.cpu or width == 4)  # else in the kernel
    on_cpu = devices.cpu and (carries or arch.train_length < CPU_SDPA_FROM)
    return block.backend == "explicit" or dense or biased or on_cpu


def print_plan(cfg: DictConfig) -> None:
    """Print the plan of the run that ``cfg`` describes."""
    decoder, task = blank_parts(cfg)
    devices = devices_of(cfg, task)
    columns = {"evaluation": False}
    if task.trains:
        columns = {"activations kept": False, "recomputed": True}
    rows = memory_rows(decoder, task, devices, columns.values())
    if task.trains:
        rows |= time_rows(cfg, decoder, task, devices, columns.values())
    trainable = sum(x.numel() for x in decoder.parameters() if x.requires_grad)
    print(
        f"{cfg.model.name} on {cfg.task.name}, scale {cfg.scale.name}: an estimate (docs/runs.md "
        f"says how close); nothing is loaded\nparameters {decoder.parameter_count():,}, positional "
        f"{decoder.positional_count():,}, trainable {trainable:,}; vocabulary {task.arch.vocab:,}; "
        f"tokens {tokens(task):,}\n{devices.count} x {devices.name}, {devices.precision}: "
        f"{devices.rows} rows x {task.arch.train_length} tokens a forward pass, "
        f"{devices.accumulate} a step, {UTILISATION:.0%} of {devices.peak / 1e12:.0f} TFLOP/s\n"
    )
    print(f"{'':34}", *(f"{column:>17}" for column in columns))
    for name, values in rows.items():
        print(f"{name:34}", *(f"{value:17,.3g}" for value in values))
    if not devices.cpu:
        chosen = int(task.trains and cfg.trainer.checkpoint_activations)
        fits = rows[TOTAL][chosen] * 2**30 <= devices.memory
        verb = "fits" if fits else "does not fit"
        print(f"\nIt {verb} into the {devices.memory / 2**30:.0f} GiB of a device, {devices.name}.")


def memory_rows(
    decoder: Decoder, task: Task, devices: Devices, recomputes: Iterable[bool]
) -> dict[str, list[float]]:
    """List the GiB of each part and of all, with activations recomputed or not."""
    needs = [memory(decoder, task, devices, recompute) for recompute in recomputes]
    rows = {}
    for part in needs[0]:
        rows[f"GiB of {part}"] = [need[part] / 2**30 for need in needs]
    rows[TOTAL] = [sum(parts) for parts in zip(*rows.values(), strict=True)]
    return rows


def time_rows(
    cfg: DictConfig, decoder: Decoder, task: Task, devices: Devices, recomputes: Iterable[bool]
) -> dict[str, list[float]]:
    """List FLOPs and hours of training, with activations recomputed or not."""
    per_token = [flops_per_token(decoder, task, recompute) for recompute in recomputes]
    total = [tokens(task) * flops for flops in per_token]
    rows = {
        "FLOPs per token": per_token,
        "FLOPs": total,
        "hours": [hours(flops, devices.count * devices.peak) for flops in total],
    }
    if cfg.trainer.accelerator in ("auto", "cpu") and not torch.cuda.is_available():
        rate = ON_A_CPU * matmul_rate()
        rows["hours on this CPU"] = [flops / rate / 3600 for flops in total]
    return rows
