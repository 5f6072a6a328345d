"""``debug=plan``: a run's memory and hours, estimated from its config without loading anything."""

from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from tape_exp.machine.hardware import PEAK_FLOPS, device_memory, machine_name, peak_flops
from tape_exp.machine.processes import first_process
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.kernels.causal import WIDEST
from tape_exp.models.positions.base import PositionEncoding, overrides
from tape_exp.settings.construct import build
from tape_exp.tasks.base import Task
from tape_exp.tasks.text import TextTask
from tape_exp.training.assembly import blank_task, make_decoder, micro_batches, precision

UTILISATION = 0.4  # of the peak
ASSUMED = "H100"  # where this machine has no GPU whose peak is known

# Bytes that autograd keeps for a token in one block, per unit of the width C and of SwiGLU's inner
# size F: of each norm its input and its normalised input in fp32; what q, k and v read, and what
# gate and up read, under autocast a 16-bit copy each; q, k, v and what they attend to; SwiGLU's
# four products.
KEPT = {"32-true": (40, 16), "bf16-true": (28, 8), "mixed": (28, 8)}
# Bytes for a number of a position state that every block updates by a fused kernel: the state in
# fp32, the copy of it that attention averages, the average, what ψ reads, and q and k before they
# are rotated; and for an entry of an H × H map and what ψ keeps. Where blocks are recomputed, of
# the update that the next block makes: the state, the average, and the map.
STATE = {"32-true": 24, "bf16-true": 14, "mixed": 14}
MAPS = 8
HANDED_ON = {"32-true": 8, "bf16-true": 6, "mixed": 6}
LOGITS = 12  # bytes a word of the vocabulary: the log-softmax and two gradients in fp32


@dataclass(frozen=True)
class Setting:
    """How a run is spread over devices, and of which kind they are."""

    devices: int
    strategy: str  # one device | ddp | fsdp
    precision: str
    rows: int  # of a device's forward pass
    accumulate: int  # forward passes a step
    gpu: str
    peak: float  # FLOP/s of one device, dense bf16
    memory: int  # bytes of one device; 0: none is present

    @property
    def mixed(self) -> bool:
        """Whether autocast makes 16-bit copies of fp32 weights."""
        return self.precision.endswith("mixed")

    @property
    def width(self) -> int:
        """Bytes of a weight, and of each number that belongs to it."""
        return 2 if self.precision == "bf16-true" else 4

    @property
    def shards(self) -> int:
        """Parts that weights, gradients and AdamW's numbers are cut into."""
        return self.devices if self.strategy == "fsdp" else 1


@dataclass(frozen=True)
class Plan:
    """What a run would need.

    Args:
        parameters, positional, trainable: of the model.
        memory: bytes of one device, part by part.
        tokens: of the whole training, padding included; 0 where nothing is trained.
        flops_per_token: of a training step.
        hours: of the training, every device at :data:`UTILISATION` of its peak.
    """

    parameters: int
    positional: int
    trainable: int
    memory: dict[str, float]
    tokens: int
    flops_per_token: float
    hours: float


def print_plan(cfg: DictConfig) -> None:
    """Print the plan of the run that ``cfg`` describes."""
    decoder, task, setting, origin = described(cfg)
    if not first_process():
        return
    plans = [estimate(decoder, task, setting, recompute) for recompute in (False, True)]
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{cfg.model.name} on {cfg.task.name}, scale {cfg.scale.name}: an estimate, nothing was "
        "loaded or measured."
    )
    if setting.gpu == ASSUMED:
        console.print(f"No GPU of a known peak is here: an {ASSUMED} is assumed.")
    console.print(_model_table(plans[0], task, origin))
    console.print(_need_table(plans, task, setting))
    if task.trains:
        chosen = plans[cfg.trainer.checkpoint_activations]
        console.print(
            f"trainer.checkpoint_activations={str(cfg.trainer.checkpoint_activations).lower()}: "
            f"{_fit(chosen, setting)}\n"
        )
    console.print("\n".join(f"- {line}" for line in assumptions(decoder, task, setting)))


def described(cfg: DictConfig) -> tuple[Decoder, Task, Setting, str]:
    """A model without storage, the task, the devices, and the source of the vocabulary's size."""
    task = blank_task(cfg)
    setting = setting_of(cfg, task)
    vocabulary, origin = vocabulary_of(task)
    task.size_vocabulary(vocabulary)
    return decoder_of(cfg, task), task, setting, origin


def decoder_of(cfg: DictConfig, task: Task) -> Decoder:
    """The model of a run, adapted as ``peft`` says, without storage and weights."""
    adaptation = None if cfg.peft.name == "none" else build(cfg.peft, "peft", name=cfg.peft.name)
    with torch.device("meta"):
        return make_decoder(cfg, task, adaptation)


def setting_of(cfg: DictConfig, task: Task) -> Setting:
    """The devices of the trainer section, or :data:`ASSUMED` ones without a GPU of a known peak."""
    device = torch.device(
        "cuda" if torch.cuda.is_available() and cfg.trainer.accelerator != "cpu" else "cpu"
    )
    peak = peak_flops(device)
    numbers = precision(cfg.trainer.precision, cfg.trainer.accelerator)
    if (
        cfg.trainer.precision == "auto"
        and cfg.trainer.accelerator != "cpu"
        and device.type == "cpu"
    ):
        numbers = "bf16-mixed"  # as on the GPU that is assumed
    devices = cfg.trainer.devices * cfg.trainer.nodes
    accumulate = micro_batches(cfg, task)
    strategy = cfg.trainer.strategy  # ddp where auto finds several devices
    strategy = "ddp" if strategy == "auto" and devices > 1 else strategy
    return Setting(
        devices=devices,
        strategy=strategy,
        precision=numbers,
        rows=max(task.optim.batch // devices // accumulate, 1),
        accumulate=accumulate,
        gpu=machine_name(device) if peak else ASSUMED,
        peak=peak or PEAK_FLOPS[ASSUMED],
        memory=device_memory(device),
    )


def vocabulary_of(task: Task) -> tuple[int, str]:
    """The size of the vocabulary and its source, from the config: no tokenizer is loaded."""
    if not isinstance(task, TextTask):
        return task.arch.vocab, "the task's own"
    if task.arch.vocab:
        return task.arch.vocab, "task.arch.vocab"
    given = task.tokenization
    if given.kind == "byte":
        return 258, "bytes and two special tokens"
    known = f"a guess: the tokenizer {given.path} is not loaded"
    if given.kind == "bpe":
        known = "the size that it is trained to"
    return given.vocab, f"task.tokenizer.vocab, {known}"


def estimate(decoder: Decoder, task: Task, setting: Setting, recompute: bool) -> Plan:
    """The plan of a model, which may be on the meta device.

    A training step costs 6 FLOPs a trainable parameter of the matrices and token, 4 a frozen one
    (no gradient of its own), 6 · layers · C · T of causal attention; with ``recompute`` the blocks'
    forward pass once more.
    """
    flops = decoder.flops_per_token(task.arch.train_length)
    if recompute:
        forward = decoder.forward_flops_per_token(task.arch.train_length)
        flops += forward - 2 * decoder.head.weight.numel()
    tokens = task.optim.max_steps * task.optim.batch * task.arch.train_length if task.trains else 0
    return Plan(
        decoder.parameter_count(),
        decoder.positional_count(),
        sum(p.numel() for p in decoder.parameters() if p.requires_grad),
        memory(decoder, task, setting, recompute),
        tokens,
        flops,
        tokens * flops / (UTILISATION * setting.peak * setting.devices) / 3600,
    )


def memory(decoder: Decoder, task: Task, setting: Setting, recompute: bool) -> dict[str, float]:
    """Bytes of one device, part by part; only the weights where nothing is trained."""
    weights = decoder.parameter_count()
    trainable = sum(p.numel() for p in decoder.parameters() if p.requires_grad)
    blocks = [sum(p.numel() for p in block.parameters()) for block in decoder.blocks()]
    held = sum(p.numel() * min(setting.width, p.element_size()) for p in decoder.parameters())
    parts: dict[str, float] = {"weights": held / setting.shards}
    if setting.mixed:
        wide = [p for p in decoder.matrices() if p.ndim > 1 and p.dtype == torch.float32]
        copied = [p.numel() for p in wide if p.requires_grad or not recompute]
        parts["16-bit copies of the weights"] = 2 * sum(copied)
    if setting.strategy == "fsdp":
        parts["weights gathered at a time"] = setting.width * (
            weights - sum(blocks) + 2 * max(blocks)
        )
    if not task.trains:
        return parts
    parts["gradients"] = setting.width * trainable / setting.shards
    if setting.strategy == "ddp":
        parts["DDP's buckets"] = setting.width * trainable
    parts["AdamW"] = 2 * setting.width * trainable / setting.shards
    tokens = setting.rows * task.arch.train_length
    parts["activations"] = tokens * activations(decoder, setting, recompute)
    if pairs := pairs_held(decoder, task, setting, recompute):
        parts["pairs of tokens"] = pairs
    parts["logits"] = tokens * LOGITS * task.arch.vocab
    return parts


def activations(decoder: Decoder, setting: Setting, recompute: bool) -> float:
    """Bytes a token keeps until the backward pass: all blocks, or their inputs and one block."""
    arch, states = decoder.arch, _state_sizes(decoder)
    kind = "mixed" if setting.mixed else setting.precision
    per_width, per_ffn = KEPT[kind]
    blocks = [
        per_width * arch.width
        + per_ffn * arch.ffn
        + (STATE[kind] * state + MAPS * arch.heads**2 if state else 0)
        for state in states
    ]
    if recompute:
        handed_on = sum(HANDED_ON[kind] * state + 4 * arch.heads**2 for state in states if state)
        return len(states) * setting.width * arch.width + handed_on + max(blocks)
    return sum(blocks)


def pair_memory(block: Block, rows: int, length: int) -> int:
    """Bytes that a layer holds of pairs of tokens, 0 for encodings that compute none: of all pairs,
    or of those of the queries that are taken at a time, with the gradients.
    """
    queries = queries_at_once(block, length)
    copies = 1 if queries == length else 2
    return copies * rows * queries * length * block.position.pair_bytes()


def queries_at_once(block: Block, length: int) -> int:
    """For how many of a row's queries at a time a layer computes its bias; all of them where it
    keeps what it computed until the backward pass.
    """
    in_blocks = block.backend in ("auto", "sdpa") and block.ssmax is None
    return block.position.rows_at_once(length) if in_blocks else length


def pairs_kept(decoder: Decoder, task: Task, setting: Setting) -> list[int]:
    """:func:`pair_memory` of each layer, or 0 where our kernel reads the bias in pieces: on a GPU,
    in 16 bits.
    """
    return [
        0
        if _read_in_pieces(block, setting)
        else pair_memory(block, setting.rows, task.arch.train_length)
        for block in decoder.blocks()
    ]


def pairs_held(decoder: Decoder, task: Task, setting: Setting, recompute: bool) -> int:
    """The sum of :func:`pairs_kept`, but of layers that compute them again only the largest."""
    pairs, length = pairs_kept(decoder, task, setting), task.arch.train_length
    if recompute:
        return max(pairs)
    again = [queries_at_once(block, length) < length for block in decoder.blocks()]
    passing = [size for size, dropped in zip(pairs, again, strict=True) if dropped]
    return sum(pairs) - sum(passing) + max(passing, default=0)


def _read_in_pieces(block: Block, setting: Setting) -> bool:
    served = overrides(block.position, "piecewise") and block.head_dim <= WIDEST
    served = served and block.window is None and block.ssmax is None
    return served and block.backend in ("auto", "triton") and setting.precision != "32-true"


def assumptions(decoder: Decoder, task: Task, setting: Setting) -> list[str]:
    """What the numbers rest on, a sentence or two each."""
    frozen = any(p.dtype == torch.bfloat16 for p in decoder.parameters())
    halved = ", frozen matrices 2" if setting.width == 4 and frozen else ""
    sentences = [
        f"Weights: {setting.width} bytes each{halved} ({setting.precision}). Sizes are the "
        "config's; a Llama brings its own."
    ]
    if setting.mixed:
        sentences.append(
            "Autocast keeps a 16-bit copy of every matrix until the backward pass; of frozen ones "
            "not if recomputed."
        )
    if setting.strategy == "fsdp":
        sentences.append(
            f"fsdp: weights, gradients and AdamW are cut into {setting.shards}, 16-bit copies are "
            "not; embedding, head and two blocks are gathered at a time."
        )
    if task.trains:
        return [*sentences, *_assumptions_of_training(decoder, task, setting)]
    return [
        *sentences,
        "Nothing is trained; what an evaluation needs beyond the weights is not estimated.",
    ]


def _assumptions_of_training(decoder: Decoder, task: Task, setting: Setting) -> list[str]:
    kind = "mixed" if setting.mixed else setting.precision
    per_width, per_ffn = KEPT[kind]
    formula = f"{per_width} C + {per_ffn} F"
    if any(_state_sizes(decoder)):
        formula += f" + {STATE[kind]} per number of the position state + {MAPS} H²"
    ddp = "ddp: every device holds all of these, and the gradients once more in DDP's buckets."
    scores = "by a fused attention that keeps no T × T scores"
    if decoder.blocks()[0].backend == "reference":
        scores = "without the T × T scores that trainer.attention=reference keeps"
    pairs = pairs_kept(decoder, task, setting)
    block = decoder.blocks()[pairs.index(max(pairs))]
    length, name = task.arch.train_length, type(block.position).__name__
    taken = f"{name} computes something for each"
    growth = "four times"
    if (queries := queries_at_once(block, length)) < length:
        taken = f"{name} takes {queries} queries at a time, again in the backward pass"
        growth = "twice"
    computed = (
        f"Pairs of tokens: {taken}, {_short(max(pairs) / 2**30)} GiB in a layer, {growth} as much "
        "at twice the length; FLOPs and hours leave it out."
    )
    return [
        f"Gradients: {setting.width} bytes a trainable parameter; AdamW: two numbers of "
        f"{setting.width} bytes each.",
        *([ddp] if setting.strategy == "ddp" else []),
        f"Activations: {formula} bytes a token and layer (C width, F inner size, H heads), "
        f"{scores}; recomputed: each block's input, and one block whole. Frozen weights are not "
        "taken to save any.",
        *([computed] if any(pairs) else []),
        f"Logits: {LOGITS} bytes a token and word of the vocabulary (log-softmax and two gradients "
        "in fp32).",
        "Not counted: CUDA's context (about 1 GiB), kernels' workspace, fragmentation.",
        "FLOPs a token: 6 a trainable parameter but the embedding's, 4 a frozen one, 6 · layers · "
        "C · T of causal attention, also where it is sparse; recomputed: the blocks' forward pass "
        "once more.",
        f"Hours: {UTILISATION:.0%} of {setting.peak / 1e12:.0f} TFLOP/s, the dense bf16 peak of an "
        f"{setting.gpu}, on {setting.devices} of them; without validation, evaluation, "
        "checkpoints and waiting for data.",
    ]


def _state_sizes(decoder: Decoder) -> list[int]:
    """Numbers a token of each layer's position state, over all heads; 0 where none updates it."""
    return [_state_size(block.position, decoder.arch.heads) for block in decoder.blocks()]


def _state_size(position: PositionEncoding, heads: int) -> int:
    if not position.update_parameters:
        return 0
    state = position.initial_state(torch.zeros(1, 1, device="meta"))
    return 0 if state is None else state.numel() // state.shape[2] * heads


def _model_table(plan: Plan, task: Task, origin: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("parameters", f"{plan.parameters:,}")
    table.add_row("of them positional", f"{plan.positional:,}")
    table.add_row("trainable", f"{plan.trainable if task.trains else 0:,}")
    table.add_row("vocabulary", f"{task.arch.vocab:,} ({origin})")
    return table


def _need_table(plans: list[Plan], task: Task, setting: Setting) -> Table:
    """Memory, FLOPs and hours, with every activation kept and with each block recomputed."""
    spread = f"{setting.devices} x {setting.gpu}, {setting.strategy}, {setting.precision}"
    if task.trains:
        spread += (
            f"; {setting.rows} rows x {task.arch.train_length} tokens a forward pass, "
            f"{setting.accumulate} a step"
        )
    table = Table(title=spread, title_justify="left", box=None, padding=(0, 2))
    columns = plans if task.trains else plans[:1]
    table.add_column("GiB a device")
    for name in ("activations kept", "recomputed")[: len(columns)]:
        table.add_column(name if task.trains else "evaluation", justify="right")
    for part in plans[0].memory:
        table.add_row(part, *(_short(plan.memory[part] / 2**30) for plan in columns))
    table.add_row("sum", *(_short(sum(plan.memory.values()) / 2**30) for plan in columns))
    if setting.memory:
        table.add_row("of the device", *(_short(setting.memory / 2**30) for _ in columns))
    if task.trains:
        table.add_row()
        table.add_row("tokens", *(f"{plan.tokens:,}" for plan in plans))
        table.add_row("FLOPs a token", *(f"{plan.flops_per_token:.3g}" for plan in plans))
        table.add_row("FLOPs", *(f"{plan.tokens * plan.flops_per_token:.3g}" for plan in plans))
        table.add_row("hours", *(_short(plan.hours) for plan in plans))
    return table


def _fit(plan: Plan, setting: Setting) -> str:
    """Whether it fits, and what makes it smaller."""
    needed = sum(plan.memory.values())
    size = f"{_short(needed / 2**30)} GiB a device, {_short(plan.hours)} hours"
    if not setting.memory:
        return f"{size} on an {setting.gpu}; no GPU here to compare with."
    if needed <= setting.memory:
        return f"{size}; it fits."
    return (
        f"{size}; it does not fit. trainer.micro_batch below {setting.rows}, "
        "trainer.checkpoint_activations=true, or trainer=fsdp with more trainer.devices need less."
    )


def _short(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.01 or value == 0 else f"{value:.1e}"
