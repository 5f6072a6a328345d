"""Adapting a model to a longer context: what is trained, and what its positions become."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import nn

from tape_exp.machine.seeding import seed_for
from tape_exp.models.block import Block
from tape_exp.models.decoder import Decoder
from tape_exp.models.positions.nope import NoPE
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.rope_scaling import Theta
from tape_exp.models.shifted_sparse import sparse_in_training
from tape_exp.settings.construct import arguments_model, locate
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import AttentionConfig, Count, Positive

Part = Literal["everything", "positions", "embedding", "head", "norms"]
Matrix = Literal["q", "k", "v", "o", "gate", "up", "down"]
PATTERNS: dict[Part, str] = {  # as patterns of parameter names
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
    # of tape_exp.models.shifted_sparse in training; null: full attention
    sparse_groups: Count | None = None
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
        """Return the ``model`` section with the new theta and interpolation, or without positions.

        Raises:
            ConfigError: the encoding has no such thing.
        """
        if self.drop:
            return self._without_positions(model)
        adapted = dict(model)
        if self.theta is not None:
            if "theta" not in model:
                raise ConfigError(f"peft.theta={self.theta} {_not_rotary(model)}; use model=rope.")
            adapted["theta"] = self.theta
        if self.interpolation != 1:
            adapted["scaling"] = self._interpolated(model)
        return adapted

    def _without_positions(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return the section of NoPE, with the keys of attention that RoPE's has."""
        if _class_of(model) is not RoPE:
            raise ConfigError(f"peft={self.name} drops RoPE; use model=rope.")
        nope = {"name": "nope", "_target_": f"{NoPE.__module__}.{NoPE.__qualname__}"}
        return selected(model, AttentionConfig.__dataclass_fields__) | nope

    def _interpolated(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return the key ``scaling`` of a rotary encoding, with positions that are interpolated."""
        cls = _class_of(model)
        scaling: dict[str, Any] = model.get("scaling") or {}
        method = scaling.get("method", "none")
        reason = ""
        if cls is None or "scaling" not in arguments_model(cls).model_fields:
            reason = _not_rotary(model)
        elif method != "none":
            reason = f"and model.scaling.method={method} both stretch positions"
        if reason:
            key = f"peft.interpolation={self.interpolation}"
            raise ConfigError(f"{key} {reason}; set peft.interpolation=1.")
        return scaling | {"method": "linear", "factor": self.interpolation, "when": "always"}

    def apply(self, decoder: Decoder, seed: int) -> None:
        """Insert the adapters, and mark what is trained; what is idle stays frozen."""
        idle = {name for name, p in decoder.named_parameters() if not p.requires_grad}
        names = [name for name, _ in decoder.named_parameters()]
        if self.lora is not None:
            self.lora.insert(decoder, seed)
        else:
            decoder.requires_grad_(False)
        for part in self.train:
            chosen = [name for name in names if re.search(PATTERNS[part], name)]
            if not chosen:
                raise ConfigError(f"peft.train has {part}, and this model has no such parameters.")
            for name in chosen:
                decoder.get_parameter(name).requires_grad_(name not in idle)
        if self.sparse_groups is not None:
            for block in decoder.blocks():
                self._attend_sparsely(block, self.sparse_groups)

    def _attend_sparsely(self, block: Block, groups: int) -> None:
        """Let a block attend within groups while it trains."""
        plain = type(block.position) is RoPE and block.window is None
        scaled = block.ssmax is not None or block.temperature is not None
        if not plain or scaled:
            raise ConfigError(
                f"peft.sparse_groups={groups} needs positions in queries and keys only, and no "
                "window or scaled logits: model=rope."
            )
        block.attend = partial(sparse_in_training, block, groups)


def _class_of(model: dict[str, Any]) -> Any:
    """Return the encoding of a section ``model``; None where layers have several."""
    return None if "layers" in model else locate(model["_target_"], "model")


def _not_rotary(model: dict[str, Any]) -> str:
    return f"is for rotary encodings, and model={model['name']} is none"


def selected(section: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return those of some keys that a section has, with their values.

    >>> selected({"theta": 500.0, "name": "rope"}, ["theta", "scaling"])
    {'theta': 500.0}
    """
    return {key: section[key] for key in keys if key in section}


def trained(decoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and value of every parameter that is trained."""
    for name, parameter in decoder.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def merge(decoder: Decoder) -> None:
    """Add the low-rank products to the weights in place, which leaves a plain decoder. Weights that
    were frozen in bf16 take the precision of what is added, which bf16 would round away.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in [*decoder.named_modules()]:
        if isinstance(module, BaseTunerLayer):
            base = module.get_base_layer()
            adapter = decoder.get_parameter(f"{name}.lora_A.default.weight")
            base.weight.data = base.weight.data.to(adapter.dtype)
            module.merge()
            decoder.set_submodule(name, base)
    vars(decoder).pop("peft_config", None)


def freeze_in_bf16(decoder: Decoder) -> None:
    """Keep the frozen matrices in bf16; under autocast their products are bf16 anyway."""
    for module in decoder.modules():
        if isinstance(module, nn.Linear) and not module.weight.requires_grad:
            module.weight.data = module.weight.data.bfloat16()


def without_autocast(decoder: nn.Module) -> torch.autocast:
    """Compute in fp32; in bf16 where frozen matrices are, whose products with fp32 fail."""
    weights = [*decoder.parameters()]
    in_bf16 = any(weight.dtype == torch.bfloat16 for weight in weights)
    return torch.autocast(weights[0].device.type, torch.bfloat16, enabled=in_bf16)
