"""The schema of a run's configuration and the checks that cross its keys.

Fixed sections (``trainer``, ``logger``, ``debug``) are dataclasses, so that Hydra itself refuses a
wrong type. ``model``, ``task`` and ``peft`` are open: their schema is the constructor of the class
that ``_target_`` names, checked by :func:`~tape_exp.settings.construct.build`. Nothing here imports
torch, so that ``--help`` and ``--cfg`` stay quick, and Hydra is imported where it is used, so that
the models work without it.
"""

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tape_exp.settings.errors import (
    ConfigError,
    at_least_one,
    between,
    did_you_mean,
    one_of,
    positive,
)
from tape_exp.settings.folders import CONF
from tape_exp.settings.plugins import names_in
from tape_exp.settings.targets import check_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omegaconf import DictConfig


LONGEST_TAG = 64  # characters, of W&B
MOST_WORKERS = 256  # processes that prepare data; more only exhaust the machine
MOST_PARTS = 10_000  # layers, or heads of one
LARGEST_SIZE = 1_000_000  # of a vector
HIGHEST_RATE = 1000.0  # of learning; also of its multiple for positions
MOST_STEPS = 1_000_000_000  # of the optimizer; also rows of a batch
# The keys of a text and other sets of data, and the sources that read them.
READ_BY = {
    "path": ("local",),
    "repository": ("hub",),
    "revision": ("hub",),
    "files": ("hub", "local"),
    "column": ("local", "hub"),
    "where": ("local", "hub"),
}
# Those of a tokenizer, and its kinds that read them.
TOKENIZERS_READ = {"path": ("file", "hub"), "vocab": ("bpe",), "sample_mb": ("bpe",)}
SECTIONS = ("model", "task", "scale", "peft", "trainer", "logger", "debug")


@dataclass
class TrainerConfig:
    """Where and how a run executes; of all this only ``precision``, as written, enters its hash.

    What else is computed alike rounds differently: ``compile``, ``attention``, the number of
    devices and ``micro_batch``; ``frozen_bf16`` also rounds the frozen weights.
    """

    name: str = "auto"
    accelerator: str = "auto"  # auto: a GPU where there is one | cpu | gpu
    devices: int = 1  # of each node
    nodes: int = 1  # machines
    strategy: str = "auto"  # auto | ddp | fsdp
    precision: str = "auto"  # auto: bf16-mixed on a GPU that has it, 32-true elsewhere
    # rows per device and forward pass; null: the whole share of the device
    micro_batch: int | None = None
    workers: int = 0  # processes that prepare data
    compile: bool = False  # one graph of the model and one of the loss, by torch.compile
    checkpoint_activations: bool = False  # recompute each block in the backward pass
    # peft: frozen matrices in bf16, half their memory; with precision bf16-mixed
    frozen_bf16: bool = False
    attention: str = "auto"  # auto | reference | sdpa | flex | flash | triton | fla
    heartbeat: int = 30  # seconds of silence after which another process counts as lost
    rendezvous: int = 600  # seconds in which all processes of a run must have begun
    log_every: int = 10  # optimizer steps
    validate_every: int = 250  # optimizer steps
    checkpoint_every: int = 250  # optimizer steps
    progress: str = "auto"  # auto: rich on a terminal, lines elsewhere | rich | lines | none


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``."""

    name: str = "wandb"  # wandb | csv | tensorboard | none
    project: str = "tape_exp"
    entity: str | None = None
    mode: str = "auto"  # wandb: auto (online where a key is present) | online | offline
    timeout: int = 20  # wandb: seconds to wait for the server before going on offline
    tags: list[str] = field(default_factory=list)  # wandb: besides model, task and scale
    notes: str | None = None  # wandb; null: model, task, scale and seed


@dataclass
class DebugConfig:
    """A shortened run, or only its plan; ``debug=`` also shows tracebacks and starts afresh."""

    name: str = "none"
    max_steps: int | None = None  # optimizer steps instead of the task's
    evaluation_batches: int | None = None  # stop the evaluation after as many
    overfit: bool = False  # every step sees the samples of step 0
    profiler: str | None = None  # simple | pytorch
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
    seed: int = 0
    # a run's folder, a .ckpt, or a task: its run of this model, scale and seed
    checkpoint: str | None = None
    runs: str = "runs"
    cache: str = "cache"  # tokens, tokenizers and times of attention, shared by all runs
    plugins: list[str] = field(default_factory=list)  # packages that bring encodings or tasks


@dataclass(frozen=True)
class Arch:
    """Sizes of a decoder. The task and the scale choose them, never the positional encoding."""

    layers: int
    width: int  # hidden size C
    heads: int  # H; the head dimension is C / H
    ffn: int  # inner size of SwiGLU
    vocab: int = 0  # set by the task
    # longest sequence the task shows the model, training or evaluation; set by the task
    max_length: int = 0
    train_length: int = 0  # longest sequence seen in training; set by the task
    # ids of the digits, in a task that writes numbers with their least-significant digit first; set
    # by the task
    digits: tuple[int, ...] = ()
    # K, heads of keys and values, each for H / K of the queries'; null: H
    kv_heads: int | None = None
    head_size: int | None = None  # d where it is not C / H
    tied: bool = False  # the head's matrix is the embedding's
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        at_least_one(
            "task.arch", layers=self.layers, width=self.width, heads=self.heads, ffn=self.ffn
        )
        at_least_one("task.arch", kv_heads=self.kv_heads, head_size=self.head_size)
        between("task.arch", 1, MOST_PARTS, layers=self.layers, heads=self.heads)
        between("task.arch", 1, LARGEST_SIZE, width=self.width, ffn=self.ffn)
        between("task.arch", 1, LARGEST_SIZE, head_size=self.head_size or 1)
        between("task.arch", 0, LARGEST_SIZE, vocab=self.vocab)
        if not 0 < self.norm_eps <= 1:
            raise ConfigError(
                f"task.arch.norm_eps={self.norm_eps} must be above 0 and at most 1; it keeps "
                "norms from dividing by 0, as task.arch.norm_eps=1e-5 does."
            )
        if self.heads % self.key_heads:
            divisors = (k for k in range(self.key_heads, 0, -1) if self.heads % k == 0)
            raise ConfigError(
                f"task.arch.heads={self.heads} is not divisible by "
                f"task.arch.kv_heads={self.kv_heads}; task.arch.kv_heads={next(divisors)} would do."
            )
        if self.head_size is None and self.width % self.heads:
            fitting = max(self.width // self.heads, 1) * self.heads
            raise ConfigError(
                f"task.arch.width={self.width} is not divisible by task.arch.heads={self.heads}; "
                f"task.arch.width={fitting + fitting % (2 * self.heads)} would be."
            )
        if self.head_size is not None and self.head_size % 2:
            raise ConfigError(
                f"task.arch.head_size={self.head_size} must be even; {self.head_size + 1} would do."
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"the head dimension task.arch.width / task.arch.heads = {self.head_dim} must be "
                f"even; task.arch.width={self.heads * (self.head_dim + 1)} would do."
            )

    @property
    def head_dim(self) -> int:
        """d, as a rule C / H."""
        return self.head_size or self.width // self.heads

    @property
    def key_heads(self) -> int:
        """K, as a rule H."""
        return self.kv_heads or self.heads

    @property
    def matrix_bytes(self) -> int:
        """Bytes of all matrices in fp32, 4 (2 V C + layers (2 (H + K) d C + 3 C F)), before the
        task sets V without those of the vocabulary.
        """
        attention = 2 * (self.heads + self.key_heads) * self.head_dim * self.width
        blocks = self.layers * (attention + 3 * self.width * self.ffn)
        return 4 * (blocks + (1 if self.tied else 2) * self.vocab * self.width)


@dataclass(frozen=True)
class AttentionConfig:
    """How a layer attends: keys of ``model`` beside those of the encoding's own constructor.

    With n the number of keys that a query sees, itself included:

    - ``ssmax`` multiplies its logits by s · ln n, s learned per layer and head (Nakanishi,
      "Scalable-Softmax Is Superior for Attention", 2025),
    - ``qk_norm`` divides queries and keys, before they are rotated, by their root mean square over
      the channels of a head, and multiplies them by a gain per channel that all heads share, as
      Qwen3 does; OLMo 2 normalises over all heads at once.
    """

    window: int | None = None  # tokens that a query sees, itself included; null: all
    sinks: int = 0  # the first tokens, which every query sees besides
    ssmax: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        at_least_one("model", window=self.window)
        between("model", 0, math.inf, sinks=self.sinks)
        if self.sinks and self.window is None:
            raise ConfigError(
                f"model.sinks={self.sinks} has no effect, since every query sees all tokens before "
                "it; set model.window, or leave it out."
            )

    def check_length(self, longest: int) -> None:
        """Raise :class:`ConfigError` where the window hides nothing in rows of so many tokens."""
        if self.window is not None and self.window + self.sinks >= longest:
            raise ConfigError(
                f"model.window={self.window} with model.sinks={self.sinks} hides nothing, since no "
                f"row of this task is longer than {longest} tokens; lower model.window, or leave "
                "it out."
            )


@dataclass(frozen=True)
class Optim:
    """AdamW and its schedule: linear warm-up, plateau, decay. Fractions are of ``max_steps``."""

    batch: int  # rows of the global batch, whatever the number of devices
    max_steps: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01  # matrices only: norms, biases and scalars are exempt
    clip: float = 1.0  # gradient norm
    warmup: float = 0.02
    # the last part of training, over which the rate falls; 1 - warmup: no plateau
    decay: float = 0.0
    decay_shape: str = "linear"  # linear | cosine
    final_lr: float = 0.0  # fraction of lr where the decay ends
    # the learning rate of the positional encoding's parameters, as a multiple of lr
    position_lr: float = 1.0

    def __post_init__(self) -> None:
        at_least_one("task.optim", batch=self.batch, max_steps=self.max_steps)
        positive("task.optim", lr=self.lr, position_lr=self.position_lr, eps=self.eps)
        between("task.optim", 1, MOST_STEPS, batch=self.batch, max_steps=self.max_steps)
        positive("task.optim", clip=self.clip)
        between("task.optim", 0, HIGHEST_RATE, lr=self.lr, position_lr=self.position_lr)
        between("task.optim", 0, math.inf, weight_decay=self.weight_decay)
        between("task.optim", 0, 1, final_lr=self.final_lr)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"task.optim.betas={list(self.betas)} must be two numbers from 0 to below 1, as in "
                "task.optim.betas=[0.9,0.999]."
            )
        if not (self.warmup >= 0 and self.decay >= 0 and self.warmup + self.decay <= 1 + 1e-9):
            raise ConfigError(
                f"task.optim.warmup={self.warmup} and task.optim.decay={self.decay} are fractions "
                "of the run: neither negative, their sum at most 1."
            )
        one_of("task.optim.decay_shape", self.decay_shape, ("linear", "cosine"))


def _value_of(section: Any, key: str) -> Any:
    """The value as it is written, interpolations and all; None where there is none."""
    return _raw(section._get_node(key)) if key in list(section) else None


def _raw(node: Any) -> Any:
    """What a node holds, interpolations as they are written."""
    return node._value() if hasattr(node, "_value") else node


def fields_of(cls: Any) -> list[str]:
    """The keys of a section whose schema is a dataclass."""
    return [one.name for one in fields(cls)]


def check_sections(cfg: "DictConfig") -> None:
    """Raise where a section, its name or a key of the top is missing, or is not of its kind."""
    from omegaconf import DictConfig

    for section in SECTIONS:
        node: Any = cfg._get_node(section) if section in list(cfg) else None
        if not isinstance(node, DictConfig) or node._is_none():
            raise ConfigError(
                f"{section} is missing or no section of keys; choose one with {section}=<a YAML of "
                f"conf/{section}>."
            )
        value: Any = _value_of(node, "name")
        if not isinstance(value, str):
            shown = "null" if value is None else value
            raise ConfigError(f"{section}.name={shown} must be a word, as in {section}.name=mine.")
    known = {"": fields_of(Config), "trainer": fields_of(TrainerConfig)}
    known |= {"logger": fields_of(LoggerConfig), "debug": fields_of(DebugConfig)}
    known |= {"peft": ["name"]} if _value_of(cfg.peft, "name") == "none" else {}
    for section, keys in known.items():
        for key in cfg[section] if section else cfg:
            word = f"{section}.{key!s}".lstrip(".")
            if key not in keys and word != "hydra":
                raise ConfigError(f"{word}{did_you_mean(str(key), keys)} Leave it out.")
    for key in ("seed", "checkpoint", "runs", "cache"):
        if key not in list(cfg):
            raise ConfigError(f"{key} is missing: every run needs it, so leave out ~{key}.")
        if _value_of(cfg, key) == "":
            raise ConfigError(f"{key}='' is empty; name a place, or leave {key} out.")


def check(cfg: "DictConfig") -> None:
    """Check what needs no torch: the choices and signs of the fixed sections."""
    check_sections(cfg)
    one_of("trainer.progress", cfg.trainer.progress, ("auto", "rich", "lines", "none"))
    one_of("trainer.strategy", cfg.trainer.strategy, ("auto", "ddp", "fsdp"))
    one_of(
        "trainer.attention",
        cfg.trainer.attention,
        ("auto", "reference", "sdpa", "flex", "flash", "triton", "fla"),
    )
    one_of("trainer.accelerator", cfg.trainer.accelerator, ("auto", "cpu", "gpu"))
    if cfg.trainer.precision == "16-mixed":
        raise ConfigError(
            "trainer.precision=16-mixed would clip gradients that are still scaled up for fp16: a "
            "fused AdamW takes the scale off only in its step. trainer.precision=bf16-mixed needs "
            "no scale; a GPU without bf16 trains in 32-true."
        )
    one_of(
        "trainer.precision",
        cfg.trainer.precision,
        ("auto", "32-true", "bf16-mixed", "bf16-true"),
    )
    one_of("logger.name", cfg.logger.name, ("wandb", "csv", "tensorboard", "none"))
    one_of("logger.mode", cfg.logger.mode, ("auto", "online", "offline"))
    _check_logger(cfg)
    if cfg.logger.name == "wandb" and (wrong := set(cfg.logger.project) & set("/\\#?%:")):
        raise ConfigError(
            f"logger.project={cfg.logger.project} holds {' '.join(sorted(wrong))}, which W&B takes "
            "in no project's name; leave it out."
        )
    if long := [tag for tag in cfg.logger.tags if not 0 < len(tag) <= LONGEST_TAG]:
        raise ConfigError(
            f"logger.tags={long[0]} has {len(long[0])} characters; W&B's tags have 1 to "
            f"{LONGEST_TAG}."
        )
    check_names(cfg)
    between("", 0, math.inf, seed=cfg.seed)
    for group in ("scale", "debug"):
        one_of(f"{group}.name", cfg[group].name, names_in(group))
    if not isinstance(begin := cfg.task.get("init_from"), str | None):
        raise ConfigError(
            f"task.init_from={begin} must be a task, a run's folder or a .ckpt, as in "
            "task.init_from=c4."
        )
    _check_scale(cfg)
    _check_finite(cfg, "")
    _check_sources(cfg.task, "task")
    _check_tokenizer(cfg)
    counts = ["devices", "nodes", "heartbeat", "rendezvous"]
    counts += ["log_every", "validate_every", "checkpoint_every"]
    at_least_one("trainer", **{key: cfg.trainer[key] for key in counts})
    if cfg.trainer.micro_batch is not None and cfg.trainer.micro_batch < 1:
        raise ConfigError(
            f"trainer.micro_batch={cfg.trainer.micro_batch} must be at least 1, or null."
        )
    between("trainer", 0, MOST_WORKERS, workers=cfg.trainer.workers)
    at_least_one("logger", timeout=cfg.logger.timeout)
    shortened = ("max_steps", "evaluation_batches")
    at_least_one("debug", **{key: cfg.debug[key] for key in shortened})
    if cfg.debug.profiler is not None:
        one_of("debug.profiler", cfg.debug.profiler, ("simple", "pytorch"))
    shortening = [key for key, value in cfg.debug.items() if key != "name" and value]
    if cfg.debug.name == "none" and shortening:
        raise ConfigError(
            f"debug.{shortening[0]} has an effect only beside debug=one_batch, debug=overfit, "
            "debug=profiler or debug=plan: add one of them."
        )
    unread = [key for key in shortening if key not in ("plan", "max_steps")]
    if cfg.debug.name == "plan" and unread:
        raise ConfigError(
            f"debug.{unread[0]} has no effect beside debug=plan, which runs nothing; leave it out."
        )
    if cfg.trainer.frozen_bf16 and (
        cfg.trainer.precision != "bf16-mixed" or cfg.trainer.strategy == "fsdp"
    ):
        raise ConfigError(
            "trainer.frozen_bf16=true needs trainer.precision=bf16-mixed and whole weights on "
            "every device, as trainer.strategy=ddp has them."
        )
    sharded = cfg.trainer.strategy == "fsdp"
    if cfg.trainer.compile and cfg.trainer.checkpoint_activations and sharded:
        raise ConfigError(
            "trainer.compile=true has no effect where weights are sharded "
            "(trainer.strategy=fsdp) and activations are computed again: torch.compile skips "
            "such a pass. Set it or trainer.checkpoint_activations to false."
        )


def _check_logger(cfg: "DictConfig") -> None:
    """Refuse a key that only W&B reads, beside another logger."""
    default = LoggerConfig()
    for key, value in cfg.logger.items() if cfg.logger.name != "wandb" else ():
        if key != "name" and value != getattr(default, str(key)):
            raise ConfigError(
                f"logger.{key} has no effect beside logger={cfg.logger.name}; set logger=wandb, or "
                "leave it out."
            )


def _check_tokenizer(cfg: "DictConfig") -> None:
    """Refuse a key that the kind of tokenizer does not read, unless the scale's YAML has it."""
    from omegaconf import OmegaConf

    node = cfg.task.get("tokenizer")
    if node is None:
        return
    scale = OmegaConf.load(CONF / "scale" / f"{cfg.scale.name}.yaml")
    of_scale: Any = OmegaConf.select(scale, "language.tokenizer") or {}
    shared: Any = OmegaConf.load(CONF / "task" / "shared" / "language.yaml")
    default = {key: _value_of(shared.tokenizer, key) for key in TOKENIZERS_READ} | dict(of_scale)
    for key, kinds in TOKENIZERS_READ.items():
        value = node.get(key)
        if key in node and node.get("kind", "bpe") not in kinds and value != default.get(key):
            raise ConfigError(
                f"task.tokenizer.{key}={value} is not read, since task.tokenizer.kind={node.kind}; "
                f"add task.tokenizer.kind={kinds[0]}, or leave it out."
            )


def _check_scale(cfg: "DictConfig") -> None:
    """Refuse a key of the scale that is changed and that the task does not read.

    ``scale.text`` may be: one word for all tasks of a sweep or of the paper's artifacts. So may
    ``scale.language.…`` for a task that reads any of it: a run that it begins from may read it.
    """
    from omegaconf import OmegaConf

    read = OmegaConf.to_yaml(cfg.task, resolve=False)
    written = OmegaConf.load(CONF / "scale" / f"{cfg.scale.name}.yaml")
    before = dict(_leaves(written, "scale"))
    for key, value in _leaves(cfg.scale, "scale"):
        family = ".".join(key.split(".")[:2])
        same = key == "scale.text" or value == before.get(key)
        if not same and f"${{{family}" not in read:
            raise ConfigError(
                f"{key}={value} changes nothing: task={cfg.task.name} reads no {key}; leave it out."
            )


def _leaves(node: Any, key: str) -> "Iterator[tuple[str, Any]]":
    """Every dotted key below a section, with its value as it is written."""
    from omegaconf import DictConfig

    if not isinstance(node, DictConfig) or node._is_none():
        yield key, _raw(node)
        return
    for name in list(node):
        yield from _leaves(node._get_node(name), f"{key}.{name!s}")


def _check_finite(node: Any, key: str) -> None:
    """Refuse a number that is none: it could not be written into the run's record."""
    from omegaconf import DictConfig, ListConfig

    if isinstance(node, DictConfig | ListConfig) and not node._is_none():
        names: Any = list(node) if isinstance(node, DictConfig) else range(len(node))
        for name in names:
            _check_finite(node._get_node(name), f"{key}.{name}" if key else str(name))
        return
    value = _raw(node)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} must be a finite number.")


def _check_sources(node: Any, key: str) -> None:
    """Refuse what describes a text, or another set of data, and what its source does not read."""
    from omegaconf import DictConfig, OmegaConf

    from tape_exp.settings.files import inherited

    if not isinstance(node, DictConfig) or node._is_none():
        return
    if "source" in node:
        folder = CONF / ("task" if key == "task" else "text")  # where texts inherit from each other
        paths = sorted(folder.glob("[!.]*.yaml"), key=lambda path: len(path.stem))
        own = [path for path in paths if str(node.get("name")).startswith(path.stem)]
        yamls = [inherited(path) for path in own[-1:] or paths]
        for part, sources in READ_BY.items():
            value = _value_of(node, part)
            written = [_value_of(yaml, part) for yaml in yamls]
            if node.source in sources or value is None or value in written:
                continue
            advice = (
                "scale.text=" if OmegaConf.is_interpolation(node, "source") else f"{key}.source="
            )
            raise ConfigError(
                f"{key}.{part}={value} is not read, since {key}.source={node.source}; add "
                f"{advice}{sources[0]}."
            )
    for name, child in node.items():
        _check_sources(child, f"{key}.{name!s}")
