"""The decoder as a model of transformers: ``from_pretrained``, ``generate``.

``import tape_exp.models.hf`` registers the type ``tape_exp`` with the auto classes of transformers,
so that ``AutoConfig`` and ``AutoModelForCausalLM`` load exported models.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils import can_return_tuple

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.decoder import Decoder
from tape_exp.models.generation import Cache, new_cache
from tape_exp.models.head import ALL_LOGITS, LastLogits
from tape_exp.models.layers import kinds_of
from tape_exp.models.llama import sizes
from tape_exp.models.positions.base import PositionEncoding, construct
from tape_exp.settings.schema import Arch


class TapeExpConfig(PretrainedConfig):
    """The ``config.json`` of a decoder that is not a Llama: the keys of
    :class:`~tape_exp.settings.schema.Arch`, and the section ``model`` of a run's config.
    """

    model_type = "tape_exp"

    def __init__(
        self, arch: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **others: Any
    ) -> None:
        self.arch = arch
        self.model = model
        if arch is not None:  # transformers also makes an empty config, to compare with
            others |= sizes(Arch(**arch))
        super().__init__(**others)


class TapeExpForCausalLM(PreTrainedModel, GenerationMixin):
    """A :class:`Decoder`, taken as it is or made, behind the interface of transformers.

    Batches may be padded on either side, as ``attention_mask`` says. ``generate`` decodes greedily
    or samples, with the decoder's own cache; encodings that sample positions draw the same ones
    every time.
    """

    config_class = TapeExpConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    _no_split_modules = ["Block"]  # noqa: RUF012
    _tied_weights_keys = {"decoder.head.weight": "decoder.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: TapeExpConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        if decoder is None:
            decoder = Decoder(Arch(**config.arch or {}), kinds_of(config.model or {}))
        self.decoder = decoder
        for tensor in (*self.decoder.parameters(), *self.decoder.buffers()):
            tensor._is_hf_initialized = tensor.device.type != "meta"  # type: ignore[attr-defined]
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the encoding does what a checkpoint lacks, such as ALiBi's slopes."""
        if not isinstance(module, PositionEncoding):
            super()._init_weights(module)
            return
        with torch.device("cpu"):
            (kind,) = (x.kind for x in self.decoder.blocks() if x.position is module)
            fresh = construct(self.decoder.kinds[kind].position, module.arch, 0, "missing")
            fresh.init_weights(torch.Generator().manual_seed(0))
        made = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if not getattr(tensor, "_is_hf_initialized", False):
                tensor.copy_(made[name])

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Take another embedding, as ``resize_token_embeddings`` does, and note its size."""
        self.decoder.embedding = value
        self.config.arch = {**self.config.arch, "vocab": value.num_embeddings}
        self.decoder.arch = Arch(**self.config.arch)

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.decoder.head = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Any = None,
        planned: Cache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V) of so many last positions, 0: all, or of their indices; and the
        mean cross-entropy of ``labels`` (B, T), shifted here, where -100 does not count.
        ``planned`` are the random positions of all tokens of :meth:`generate` without a cache.
        """
        unknown = [key for key, value in others.items() if value is not None and value is not False]
        if unknown or input_ids is None:
            raise ValueError(f"TapeExpForCausalLM has no {(*unknown, 'inputs_embeds')[0]}.")
        self.decoder.recompute = self.gradient_checkpointing
        cache = past_key_values
        padding_B = padding(attention_mask) if cache is None else None
        sampler = None
        lengths_B = None
        if planned is not None:
            cache = Cache(planned.positions_BS, planned.padding_B, planned.sampler)
        elif padding_B is not None:
            rows, length = input_ids.shape
            cache = new_cache(self.decoder, length, padding_B, rows, RowSampler(0, "positions"))
        elif cache is None:
            sampler = RowSampler(0, "positions")
            lengths_B = None if attention_mask is None else attention_mask.sum(1)
        chosen = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        output = LastLogits() if chosen == slice(-1, None) else ALL_LOGITS
        logits_BTV = self.decoder(
            input_ids, lengths_B=lengths_B, cache=cache, sampler=sampler, output=output
        )[:, chosen]
        loss = None
        if labels is not None:
            more = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
            loss = self.loss_function(logits_BTV, labels, self.decoder.arch.vocab, **more)
        return CausalLMOutputWithPast(loss, logits_BTV, past_key_values)  # type: ignore[arg-type]

    def _prepare_cache_for_generation(
        self, config: Any, words: dict[str, Any], mode: Any, batch_size: int, length: int
    ) -> Any:
        """Make the decoder's cache, with the positions and padding of all tokens that will come."""
        mask = words.get("attention_mask")
        if mode not in ("greedy_search", "sample") or config.is_assistant:
            raise ValueError(
                f"TapeExpForCausalLM does no {mode.value}: set num_beams=1, no assistant_model."
            )
        if mask is not None and not bool(mask[:, -1].all()):
            raise ValueError("prompts are padded on the left: set tokenizer.padding_side='left'.")
        cached = config.use_cache is not False
        if cached or self.decoder.random is not None:
            rows = batch_size * config.num_return_sequences
            draw = RowSampler(0, "positions")
            made = new_cache(self.decoder, length + 1, padding(mask), rows, draw)
            words["past_key_values" if cached else "planned"] = made


def padding(mask_BT: Tensor | None) -> Tensor | None:
    """Return how many tokens of padding each row begins with, (B,); None where no row does. Padding
    at the end needs no hiding: causal attention does not see it.
    """
    if mask_BT is None:
        return None
    real = mask_BT.bool()
    T = real.shape[1]
    first = real.int().argmax(1)
    last = T - 1 - real.flip(1).int().argmax(1)
    if not torch.equal(last - first + 1, real.sum(1)):
        raise ValueError("attention_mask hides tokens in the middle of a row.")
    return first if bool(first.any()) else None


AutoConfig.register(TapeExpConfig.model_type, TapeExpConfig, exist_ok=True)
AutoModelForCausalLM.register(TapeExpConfig, TapeExpForCausalLM, exist_ok=True)
