"""``debug=plan``: a run's memory and hours, estimated from its config without loading anything."""

from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from tape_exp.machine.hardware import PEAK_FLOPS, PEAK_FP32, device_memory, machine_name, peak_flops
from tape_exp.machine.processes import first_process
from tape_exp.models.decoder import Decoder
from tape_exp.settings.construct import build
from tape_exp.tasks.base import Task
from tape_exp.tasks.text import TextTask
from tape_exp.training.assembly import blank_task, make_decoder, micro_batches, precision
from tape_exp.training.kept import Kept, kept, queries_at_once

UTILISATION = 0.4  # of the peak
ASSUMED = "H100"  # where this machine has no GPU whose peak is known

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
    peak: float  # FLOP/s of one device, of dense bf16 or of fp32
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
    found = kept_by(decoder, task, setting)
    plans = [estimate(decoder, task, setting, recompute, found) for recompute in (False, True)]
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
    console.print("\n".join(f"- {line}" for line in assumptions(decoder, task, setting, found)))


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
    numbers = precision(cfg.trainer.precision, cfg.trainer.accelerator)
    if (
        cfg.trainer.precision == "auto"
        and cfg.trainer.accelerator != "cpu"
        and device.type == "cpu"
    ):
        numbers = "bf16-mixed"  # as on the GPU that is assumed
    peaks = PEAK_FP32 if numbers == "32-true" else PEAK_FLOPS
    peak = peak_flops(device, peaks)
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
        peak=peak or peaks[ASSUMED],
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


def kept_by(decoder: Decoder, task: Task, setting: Setting) -> Kept | None:
    """What a training pass of the model keeps; None where nothing is trained."""
    if not task.trains:
        return None
    return kept(decoder, setting.precision, setting.rows, task.arch.train_length)


def estimate(
    decoder: Decoder, task: Task, setting: Setting, recompute: bool, found: Kept | None
) -> Plan:
    """The plan of a model, which may be on the meta device."""
    flops, trained = flops_per_token(decoder, task, recompute), tokens(task)
    return Plan(
        decoder.parameter_count(),
        decoder.positional_count(),
        sum(p.numel() for p in decoder.parameters() if p.requires_grad),
        memory(decoder, task, setting, recompute, found),
        trained,
        flops,
        trained * flops / (UTILISATION * setting.peak * setting.devices) / 3600,
    )


def tokens(task: Task) -> int:
    """That a task trains on, padding included."""
    if not task.trains:
        return 0
    return task.optim.max_steps * task.optim.batch * task.arch.train_length


def flops_per_token(decoder: Decoder, task: Task, recompute: bool) -> float:
    """Of a training step: 6 a trainable parameter of the matrices, 4 a frozen one (no gradient of
    its own), 6 · layers · C · T of causal attention; with ``recompute`` the blocks' forward pass
    once more.
    """
    flops = decoder.flops_per_token(task.arch.train_length)
    if recompute:
        forward = decoder.forward_flops_per_token(task.arch.train_length)
        flops += forward - 2 * decoder.head.weight.numel()
    return flops


def memory(
    decoder: Decoder, task: Task, setting: Setting, recompute: bool, found: Kept | None
) -> dict[str, float]:
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
    if found is None:
        return parts
    parts["gradients"] = setting.width * trainable / setting.shards
    parts["AdamW"] = 2 * setting.width * trainable / setting.shards
    parts["activations"], of_pairs = activations(found, recompute)
    if any([*found.pairs, *found.passing]):
        parts["pairs of tokens"] = of_pairs
    parts["logits"] = setting.rows * task.arch.train_length * LOGITS * task.arch.vocab
    return parts


def activations(found: Kept, recompute: bool) -> tuple[float, float]:
    """Bytes that are kept until the backward pass: of tokens, and of pairs of tokens. With
    ``recompute`` of all blocks the inputs, and one block whole.

    Of pairs that a block makes for some queries at a time, anew in the backward pass, only one
    block's are there at a time.
    """
    *of_tokens, last = (
        size - pairs for size, pairs in zip(found.blocks, [*found.pairs, 0], strict=True)
    )
    if recompute:
        return sum(found.inputs) + max(of_tokens) + last, max([*found.pairs, *found.passing])
    return sum(of_tokens) + last, sum(found.pairs) + max(found.passing)


def assumptions(decoder: Decoder, task: Task, setting: Setting, found: Kept | None) -> list[str]:
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
    if found is not None:
        return [*sentences, *_assumptions_of_training(decoder, task, setting, found)]
    return [
        *sentences,
        "Nothing is trained; what an evaluation needs beyond the weights is not estimated.",
    ]


def _assumptions_of_training(
    decoder: Decoder, task: Task, setting: Setting, found: Kept
) -> list[str]:
    ddp = "ddp: every device holds all of these."
    scores = "by a fused attention that keeps no T × T scores"
    if decoder.blocks()[0].backend == "reference":
        scores = "without the T × T scores that trainer.attention=reference keeps"
    pairs = [max(both) for both in zip(found.pairs, found.passing, strict=True)]
    block = decoder.blocks()[pairs.index(max(pairs))]
    length, name = task.arch.train_length, type(block.position).__name__
    numbers = "fp32" if setting.precision == "32-true" else "dense bf16"
    kept_tokens = setting.rows * length * len(decoder.blocks())
    per_token = activations(found, recompute=False)[0] / kept_tokens
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
        f"Activations: {per_token:,.0f} bytes a token and layer, what autograd keeps of a pass "
        f"that was traced without storage, {scores}; recomputed: each block's input, and one "
        "block whole.",
        *([computed] if any(pairs) else []),
        f"Logits: {LOGITS} bytes a token and word of the vocabulary (log-softmax and two gradients "
        "in fp32).",
        "Not counted: CUDA's context (about 1 GiB), kernels' workspace, fragmentation.",
        "FLOPs a token: 6 a trainable parameter but the embedding's, 4 a frozen one, 6 · layers · "
        "C · T of causal attention, also where it is sparse; recomputed: the blocks' forward pass "
        "once more.",
        f"Hours: {UTILISATION:.0%} of {setting.peak / 1e12:.0f} TFLOP/s, the {numbers} peak of an "
        f"{setting.gpu}, on {setting.devices} of them, which in bf16 takes trainer.compile=true; "
        "without validation, evaluation, checkpoints and waiting for data.",
    ]


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
        return f"{size} on an {setting.gpu}; no GPU is here whose memory could be compared."
    if needed <= setting.memory:
        return f"{size}; it fits."
    return (
        f"{size}; it does not fit. trainer.micro_batch below {setting.rows}, "
        "trainer.checkpoint_activations=true, or trainer=fsdp with more trainer.devices need less."
    )


def _short(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.01 or value == 0 else f"{value:.1e}"
