"""The schema of a run's configuration and the checks that cross its keys.

Fixed sections (``trainer``, ``logger``, ``debug``) are dataclasses, against which pydantic checks
keys and types. ``model``, ``task`` and ``peft`` are open: their schema is the
constructor of the class that ``_target_`` names (:func:`~tape_exp.settings.construct.build`).
Nothing here imports torch or Hydra.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, MinLen

from tape_exp.settings.errors import ConfigError

CONFIG_GROUPS = ("model", "task", "scale", "trainer", "logger", "peft", "debug")
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
BelowOne = Annotated[float, Interval(ge=0, lt=1)]
Text = Annotated[str, MinLen(1)]
Lengths = Annotated[tuple[Count, ...], MinLen(1)]


@dataclass
class TrainerConfig:
    """Where and how a run executes; of all this only ``precision``, as written, enters its hash.

    What else is computed alike rounds differently: ``compile``, ``attention``, the number of
    devices and ``micro_batch``; ``frozen_bf16`` also rounds the frozen weights.
    """

    name: str = "auto"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"  # auto: a GPU where there is one
    devices: Count = 1  # of each node
    nodes: Count = 1  # machines
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    # auto: bf16-mixed on a GPU that has it, 32-true elsewhere. Not 16-mixed: a fused AdamW removes
    # the scale of fp16 gradients after they are clipped.
    precision: Literal["auto", "32-true", "bf16-mixed", "bf16-true"] = "auto"
    # rows per device and forward pass; null: the whole share of the device
    micro_batch: Count | None = None
    workers: Natural = 0  # processes that prepare data
    # each block and the loss by torch.compile; null: on a GPU, without fsdp
    compile: bool | None = None
    checkpoint_activations: bool = False  # recompute each block in the backward pass
    # peft: frozen matrices in bf16, half their memory; with precision bf16-mixed
    frozen_bf16: bool = False
    attention: Literal["auto", "explicit", "sdpa", "flex", "flash"] = "auto"
    # Lightning's, into profile/ of the run's folder
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    timeout: Count = 600  # seconds that processes wait for one another before the run ends
    log_every: Count = 10  # optimizer steps
    validate_every: Count = 250  # optimizer steps
    checkpoint_every: Count = 250  # optimizer steps


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``; conf/logger/wandb.yaml says what null stands for.

    ``auto`` is W&B where a machine has a login, or another of these keys is set, else nothing. A
    YAML with a ``_target_`` has the keys of that logger's constructor instead.
    """

    name: Literal["auto", "wandb", "none"] = "auto"
    project: str | None = None
    entity: str | None = None
    mode: Literal["auto", "online", "offline"] = "auto"
    timeout: Count | None = None  # seconds to wait for the server before going on offline
    tags: list[str] = field(default_factory=list)  # besides model, task and scale
    notes: str | None = None


@dataclass
class DebugConfig:
    """A shortened run, or only its plan; ``debug=`` also shows tracebacks and starts afresh."""

    name: str = "none"
    max_steps: Count | None = None  # optimizer steps instead of the task's
    evaluation_batches: Count | None = None  # stop the evaluation after as many
    overfit: bool = False  # every step sees the samples of step 0
    plan: bool = False  # print an estimate of memory and hours instead of running


@dataclass
class Config:
    """The whole configuration: ``conf/config.yaml`` and its groups."""

    model: Any = None
    task: Any = None
    scale: Any = None
    peft: Any = None
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    seed: Natural = 0
    # a run's folder, a .ckpt, or a task: its run of this model, scale and seed
    checkpoint: Text | None = None
    runs: Text = "runs"
    rerun: bool = False  # begin a run anew that is there already
    cache: Text = "cache"  # tokens and trained tokenizers, shared by all runs


@dataclass(frozen=True)
class Arch:
    """Sizes of a decoder. The task and the scale choose them, never the positional encoding."""

    layers: Count
    width: Count  # hidden size C
    heads: Count  # H; the head dimension is C / H
    ffn: Count  # inner size of SwiGLU
    vocab: Natural = 0  # set by the task
    # longest sequence the task shows the model, training or evaluation; set by the task
    max_length: int = 0
    train_length: int = 0  # longest sequence seen in training; set by the task
    # ids of the digits, in a task that writes numbers with their least-significant digit first; set
    # by the task
    digits: tuple[int, ...] = ()
    # K, heads of keys and values, each for H / K of the queries'; null: H
    kv_heads: Count | None = None
    head_size: Count | None = None  # d where it is not C / H
    tied: bool = False  # the head's matrix is the embedding's
    qkv_bias: bool = False  # queries, keys and values are affine, as Qwen2's are
    norm_eps: Annotated[float, Interval(gt=0, le=1)] = 1e-5

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise ConfigError(
                f"task.arch.kv_heads={self.kv_heads} does not divide task.arch.heads={self.heads}; "
                f"task.arch.kv_heads={divisor(self.heads, self.key_heads)} would do."
            )
        width = multiple(2 * self.heads, self.width)  # of which each head has an even part
        if self.head_size is None and self.width % self.heads:
            raise ConfigError(
                f"task.arch.heads={self.heads} does not divide task.arch.width={self.width}; "
                f"task.arch.width={width} would do."
            )
        if self.head_dim % 2:
            key = f"width={width}" if self.head_size is None else f"head_size={self.head_dim + 1}"
            raise ConfigError(
                f"task.arch.head_size, or width / heads, is {self.head_dim} and must be even; "
                f"task.arch.{key} would do."
            )

    @property
    def head_dim(self) -> int:
        """d, as a rule C / H."""
        return self.head_size or self.width // self.heads

    @property
    def key_heads(self) -> int:
        """K, as a rule H."""
        return self.kv_heads or self.heads


@dataclass(frozen=True)
class AttentionConfig:
    """How a layer attends: keys of ``model`` beside those of the encoding's own constructor.

    With n the number of keys that a query sees, itself included:

    - ``ssmax`` multiplies its logits by s · ln n, s learned per layer and head (Nakanishi,
      "Scalable-Softmax Is Superior for Attention", 2025),
    - ``temperature`` multiplies its logits by a number that is learned per layer and head, and
      begins at 1: an inverse temperature,
    - ``random_range`` draws the positions of each row, of all layers alike, from this multiple of
      the task's longest sequence (:class:`~tape_exp.models.random_positions.RandomPositions`); with
      ``random_floats`` as :class:`~tape_exp.models.random_positions.RandomFloats`,
    - ``qk_norm`` divides queries and keys, before they are rotated, by their root mean square over
      the channels of a head, and multiplies them by a gain per channel that all heads share, as
      Qwen3 does; OLMo 2 normalises over all heads at once.
    """

    window: Count | None = None  # tokens that a query sees, itself included; null: all
    sinks: Natural = 0  # the first tokens, which every query sees besides
    ssmax: bool = False
    temperature: bool = False
    qk_norm: bool = False
    random_range: Annotated[float, Gt(1)] | None = None  # null: positions are 0 … T - 1
    random_floats: bool = False


@dataclass(frozen=True)
class Optim:
    """AdamW and its schedule: linear warm-up, plateau, decay. Fractions are of ``max_steps``."""

    batch: Count  # rows of the global batch, whatever the number of devices
    max_steps: Count
    lr: Positive
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.01  # matrices only: norms, biases and scalars are exempt
    clip: Positive = 1.0  # gradient norm
    warmup: NotNegative = 0.02
    # the last part of training, over which the rate falls; 1 - warmup: no plateau
    decay: NotNegative = 0.0
    decay_shape: Literal["linear", "cosine"] = "linear"
    final_lr: Fraction = 0.0  # fraction of lr where the decay ends
    # the learning rate of the positional encoding's parameters, as a multiple of lr
    position_lr: Positive = 1.0

    def __post_init__(self) -> None:
        if self.warmup > 1:
            raise ConfigError(
                f"task.optim.warmup={self.warmup} is a fraction of the run, at most 1; "
                "task.optim.warmup=0.02 would do."
            )
        if self.warmup + self.decay > 1 + 1e-9:
            decay = 1 - self.warmup
            raise ConfigError(
                f"task.optim.warmup={self.warmup} and task.optim.decay={self.decay} are fractions "
                f"of the run, and sum to more than 1; task.optim.decay={decay:g} would do."
            )
        if self.final_lr and not self.decay:
            raise ConfigError(
                f"task.optim.final_lr={self.final_lr} is where the decay ends, and with "
                "task.optim.decay=0 there is none; task.optim.final_lr=0 would do."
            )


def divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most ``most``: 4 of 12 and 5."""
    return max(d for d in range(1, most + 1) if number % d == 0)


def multiple(of: int, least: int) -> int:
    """Return the smallest multiple of a number that is at least ``least``: 12 of 3 and 10."""
    return -(-least // of) * of
