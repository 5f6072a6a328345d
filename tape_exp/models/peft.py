"""Adapting a model to a longer context: what is trained, and what its positions become."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from tape_exp.machine.seeding import seed_for
from tape_exp.models.attention import attend
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.base import for_heads
from tape_exp.models.positions.nope import NoPE
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.models.scores import Scores
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import AttentionConfig, Count, Positive

Part = Literal["everything", "positions", "embedding", "head", "norms"]
Matrix = Literal["q", "k", "v", "o", "gate", "up", "down"]
PARTS: dict[Part, str] = {  # as patterns of parameter names
    "everything": "",
    "positions": r"\.position\.",
    "embedding": r"^embedding\.",
    "head": r"^head\.",
    "norms": r"norm\.weight$",
}


@dataclass(frozen=True)
class Lora:
    """LoRA (Hu et al., 2021), by peft: W + α/r B A with W frozen, A Kaiming uniform and B = 0."""

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    targets: tuple[Matrix, ...] = ("q", "k", "v", "o")  # of every block

    def insert(self, decoder: Decoder, seed: int) -> None:
        """Put the adapters in place and freeze all else; the logits do not change."""
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]
            lora_dropout=self.dropout,
            target_modules=rf"layers\.\d+\.({'|'.join(self.targets)})",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "lora"))
            inject_adapter_in_model(config, decoder)


@dataclass(frozen=True)
class Adaptation:
    """A method of section 4.3 (context window extension) as a choice of parts; one YAML each in
    ``conf/peft``. The first logits are those of the base model, trained with RoPE, under RoPE with
    the new ``theta`` and ``interpolation``, or, where positions are dropped, without RoPE. A model
    with another encoding must begin as RoPE (:func:`~tape_exp.models.sections.begins_as_rope`).

    ``drop`` trains on without any positional encoding (DroPE, Gelberg et al., "Extending the
    Context of Pretrained LLMs by Dropping Their Positional Embeddings", 2025), without its QK norm
    and its temperature of logits at longer contexts.
    """

    name: str  # of the YAML
    base: str = "rope"  # the model whose runs checkpoint=<task> means
    lora: Lora | None = None
    train: tuple[Part, ...] = ()  # further parts, TAPE's update among the positions
    # positions are divided by it (Chen et al., 2023), as in the public code
    interpolation: Annotated[float, Ge(1)] = 1.0
    theta: Theta | None = None  # base of RoPE's frequencies (Liu et al., 2023); null: the model's
    lr: Annotated[float, Gt(0)] | None = None  # null: task.optim.lr
    sparse_groups: Count | None = None  # of shifted_sparse in training; null: full attention
    drop: bool = False

    def __post_init__(self) -> None:
        if not self.train and self.lora is None:
            raise ConfigError(
                f"peft={self.name} trains nothing: give peft.lora, or peft.train=[norms]."
            )
        if "everything" in self.train and self.lora is not None:
            raise ConfigError("peft.train=[everything] leaves no base for LoRA: peft.lora=null.")
        if self.drop and (self.interpolation != 1 or self.theta is not None):
            key = "interpolation" if self.interpolation != 1 else "theta"
            raise ConfigError(f"peft.{key} has no effect with peft.drop=true; leave it out.")

    @property
    def partial(self) -> bool:
        """Whether some of the base is frozen, so that a checkpoint holds only what is trained."""
        return "everything" not in self.train

    def positions(self, model: dict[str, Any]) -> dict[str, Any]:
        """The ``model`` section with the new theta and interpolation, or without positions."""
        cls: Any = None if "layers" in model else locate(model["_target_"], "model")
        if self.drop:
            if cls is not RoPE:
                raise ConfigError(f"peft={self.name} drops RoPE; use model=rope.")
            attention = selected(model, AttentionConfig.__dataclass_fields__)
            return attention | {
                "name": "nope",
                "_target_": f"{NoPE.__module__}.{NoPE.__qualname__}",
            }
        adapted = dict(model)
        wrong = f"is for rotary encodings, and model={model['name']} is none"
        if self.theta is not None:
            if "theta" not in model:
                raise ConfigError(f"peft.theta={self.theta} {wrong}; use model=rope.")
            adapted["theta"] = self.theta
        if self.interpolation != 1:
            scaling = model.get("scaling") or {}
            if cls is not None and "scaling" in arguments_model(cls).model_fields:
                method = scaling.get("method", "none")
                both = f"and model.scaling.method={method} both stretch positions"
                wrong = "" if method == "none" else both
            if wrong:
                key = f"peft.interpolation={self.interpolation}"
                raise ConfigError(f"{key} {wrong}; set peft.interpolation=1.")
            stretched = {"method": "linear", "factor": self.interpolation, "when": "always"}
            adapted["scaling"] = scaling | stretched
        return adapted

    def apply(self, decoder: Decoder, seed: int) -> None:
        """Insert the adapters, and mark what is trained; what is idle stays frozen."""
        idle = {name for name, p in decoder.named_parameters() if not p.requires_grad}
        names = [name for name, _ in decoder.named_parameters()]
        if self.lora is not None:
            self.lora.insert(decoder, seed)
        else:
            decoder.requires_grad_(False)
        for part in self.train:
            chosen = [name for name in names if re.search(PARTS[part], name)]
            if not chosen:
                raise ConfigError(f"peft.train has {part}, and this model has no such parameters.")
            for name in chosen:
                decoder.get_parameter(name).requires_grad_(name not in idle)
        if self.sparse_groups is not None:
            for block in decoder.blocks():
                plain = type(block.position) is RoPE and block.window is None
                scaled = block.ssmax is not None or block.temperature is not None
                if not plain or scaled:
                    raise ConfigError(
                        f"peft.sparse_groups={self.sparse_groups} needs positions in queries and "
                        "keys only, and no window or scaled logits: model=rope."
                    )
                block.attend = partial(sparse_in_training, block, self.sparse_groups)


def selected(section: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Those of some keys that a section has."""
    return {key: section[key] for key in keys if key in section}


def sparse_in_training(
    block: Block, groups: int, scores: Scores, v: Tensor, carried: Tensor | None, backend: str
) -> tuple[Tensor, Tensor | None]:
    """:func:`shifted_sparse` while the block trains, full attention at evaluation."""
    if not block.training:
        return attend(scores, v, carried, backend)
    q = scores.q.transpose(1, 2)
    k = scores.k.transpose(1, 2)
    return shifted_sparse(q, k, v, groups, backend), None


def shifted_sparse(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, groups: int, backend: str = "auto"
) -> Tensor:
    """Shifted sparse attention (LongLoRA, Chen et al., 2023), (B, T, H, D): causal attention within
    groups of G = T / groups tokens.

    The first half of the heads attends within [0, G), [G, 2G), …, the second half within groups
    that begin G/2 later. Deliberately different from the public code, whose shift is cyclic, so
    that a row's first G/2 tokens see its last: here both ends are groups of their own.
    """
    T, H = q_BTHD.shape[1:3]
    G = T // groups
    if T % (2 * groups):
        raise ConfigError(
            f"task.train_length={T} does not divide into peft.sparse_groups={groups} groups of an "
            f"even length; task.train_length={max(T // (2 * groups), 1) * 2 * groups} does."
        )

    def within(heads: slice, first: int, last: int, size: int) -> Tensor:
        """Attention of these heads within groups of this size of the tokens from ``first`` to
        ``last``.
        """
        q, k, v = (x[:, first:last, heads].unflatten(1, (-1, size)).flatten(0, 1) for x in qkv)
        values, _ = attend(Scores(q.transpose(1, 2), k.transpose(1, 2)), v, backend=backend)
        return values.unflatten(0, (len(q_BTHD), -1)).flatten(1, 2)

    qkv = q_BTHD, for_heads(k_BTKD, H), for_heads(v_BTKD, H)
    straight = slice(H - H // 2)
    shifted = slice(H - H // 2, H)
    half = G // 2
    stretches = [within(shifted, 0, half, half)]
    if half < T - half:
        stretches.append(within(shifted, half, T - half, G))
    stretches.append(within(shifted, T - half, T, half))
    return torch.cat([within(straight, 0, T, G), torch.cat(stretches, 1)], 2)


def trained(decoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Name and value of every parameter that is trained."""
    return ((name, p) for name, p in decoder.named_parameters() if p.requires_grad)


def merge(decoder: Decoder) -> None:
    """Add the low-rank products to the weights in place, which leaves a plain decoder."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in [*decoder.named_modules()]:
        if isinstance(module, BaseTunerLayer):
            module.merge()
            decoder.set_submodule(name, module.get_base_layer())
    vars(decoder).pop("peft_config", None)


def freeze_in_bf16(decoder: Decoder) -> None:
    """Keep the frozen matrices in bf16; under autocast their products are bf16 anyway."""
    for module in decoder.modules():
        if isinstance(module, nn.Linear) and not module.weight.requires_grad:
            module.weight.data = module.weight.data.bfloat16()


def without_autocast(decoder: nn.Module) -> torch.autocast:
    """A block in fp32; in bf16 where frozen matrices are, whose products with fp32 fail."""
    weights = [*decoder.parameters()]
    in_bf16 = any(weight.dtype == torch.bfloat16 for weight in weights)
    return torch.autocast(weights[0].device.type, torch.bfloat16, enabled=in_bf16)
