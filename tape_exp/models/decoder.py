"""The one decoder: Llama-2 compatible, with the positional encoding as a part.

Shape suffixes: B batch, T tokens, C width, H heads, D head dimension, V vocabulary. Keys and values
may have K < H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tape_exp.machine.seeding import RowSampler, generator_for
from tape_exp.models.block import Block, ForwardContext, Watch, matrix
from tape_exp.models.compilation import prepare_to_compile
from tape_exp.models.head import ALL_LOGITS, Logits
from tape_exp.models.layers import Kinds, LayerKind
from tape_exp.models.places import Places
from tape_exp.models.positions.base import PositionEncoding, construct
from tape_exp.models.random_positions import random_positions
from tape_exp.settings.schema import Arch

if TYPE_CHECKING:
    from tape_exp.models.generation import Cache


class Decoder(nn.Module):
    """Pre-norm transformer: RMSNorm, causal attention, SwiGLU. Matrices have no biases, and
    the head is untied, unless ``arch`` says so.

    Args:
        arch: sizes.
        kinds: a pattern: layer l has entry l modulo their number. Or what makes the positional
            encoding of every layer from ``arch``.
        seed: of the initial weights. Each module has a generator of its own, named after it, so
            that models with different encodings begin with the same backbone.
        backend: of :func:`~tape_exp.models.attention.attend`.
        blank: leave the backbone's matrices unset, since loaded weights will follow.
    """

    def __init__(
        self, arch: Arch, kinds: Kinds, seed: int = 0, backend: str = "auto", blank: bool = False
    ) -> None:
        super().__init__()
        self.arch = arch
        self.pattern = [LayerKind(kinds)] if callable(kinds) else list(kinds)
        self.adaptation: Any = None  # of peft=, which has been applied
        self.recompute = False  # in training, a block's activations in its backward pass
        self._run: Callable[..., Any] = run_block  # in training
        # skip_init of an embedding would import torch._dynamo: 4 s and 150 MB.
        self.embedding = nn.Embedding.from_pretrained(
            torch.empty(arch.vocab, arch.width), freeze=False
        )
        kind_of_layer = [self.pattern[layer % len(self.pattern)] for layer in range(arch.layers)]
        self.kinds = list(dict.fromkeys(kind_of_layer))
        self.layers = nn.ModuleList()
        for layer, kind in enumerate(kind_of_layer):
            encoding = construct(kind.position, arch, seed, f"layers.{layer}.position")
            number = self.kinds.index(kind)
            self.layers.append(Block(arch, encoding, backend, layer, kind.attention, number))
        self.norm = nn.RMSNorm(arch.width, eps=arch.norm_eps)
        self.head = matrix(arch.width, arch.vocab)
        if arch.tied:
            self.head.weight = self.embedding.weight
        self.random = random_positions(self.kinds, arch)
        if self.random is not None:
            for block in self.blocks():
                block.position.require(self.random.range)
        for number in range(len(self.kinds)):
            hand_on_state([block for block in self.blocks() if block.kind == number])
        self.init_weights(seed, blank)

    def init_weights(self, seed: int, blank: bool = False) -> None:
        """Draw matrices from N(0, 0.02), set norms to 1 and biases to 0, and let encodings do as
        they say; if ``blank`` only encodings.
        """
        for name, module in self.named_modules():
            generator = generator_for(seed, "init", name)
            if isinstance(module, PositionEncoding):
                module.init_weights(generator)
                module.require_weights()
            elif blank or ".position." in name or (self.arch.tied and module is self.head):
                continue
            elif isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02, generator=generator)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
        sampler: RowSampler | None = None,
        cache: "Cache | None" = None,
        output: Logits = ALL_LOGITS,
        watch: Watch | None = None,
    ) -> Tensor:
        """Return what ``output`` computes of these tokens: by default their logits, (B, T, V).

        All passes enter here, whatever they return: the hooks of FSDP are on this method.

        Args:
            tokens_BT: token ids; with a cache, those that follow the cached ones.
            positions_BT: positions instead of 0 … T-1, (1, T) or (B, T); fp64 makes angles fp64.
            lengths_B: how many tokens each row has where padding follows them. Only encodings that
                read the length of a row ask; nothing else looks at what follows.
            sampler: for encodings that sample positions.
            cache: what layers keep of earlier tokens, extended by these, and all positions.
            output: one of the classes in :mod:`tape_exp.models.head`.
            watch: see :data:`~tape_exp.models.block.Watch`.
        """
        places, computed_BT = self._places(tokens_BT, positions_BT, lengths_B, sampler, cache)
        context = ForwardContext(places, cache if self.cacheable else None, watch)
        states = [position.start(places) for position in self.encodings()]
        x_BTC = self.embedding(computed_BT)
        run = self._block_runner(compilable=cache is None and watch is None)
        for block in self.blocks():  # calls embed, rotate, carry, bias and update
            x_BTC, states[block.kind] = run(block, x_BTC, states[block.kind], context)
        if cache is not None:
            cache.length += tokens_BT.shape[1]
            x_BTC = x_BTC[:, -tokens_BT.shape[1] :]  # without those that are computed once more
        x_BTC = self.norm(output.select(x_BTC))
        return output.compute(x_BTC, self.head)

    def _block_runner(self, compilable: bool) -> Callable[..., Any]:
        """Return what runs a block: compiled where it may be, and with its activations recomputed
        in the backward pass where that is asked for.
        """
        run = self._run if self.training and compilable else run_block
        if self.recompute and self.training and torch.is_grad_enabled():
            run = partial(checkpoint, run, use_reentrant=False)
        return run

    def _places(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None,
        lengths_B: Tensor | None,
        sampler: RowSampler | None,
        cache: "Cache | None",
    ) -> tuple[Places, Tensor]:
        """Return where the tokens that are computed stand, and their ids; without a usable cache
        they are all tokens so far.
        """
        if cache is not None:
            return self._places_in_cache(tokens_BT, cache)
        consecutive = self.random is None and positions_BT is None
        if positions_BT is None:
            rows, length = tokens_BT.shape
            positions_BT = self.positions(rows, length, tokens_BT.device, sampler)
        elif not positions_BT.is_floating_point():
            positions_BT = positions_BT.float()
        if lengths_B is not None and self.reads_length:
            # Padding at the end stands where the last token does, and makes no row longer.
            last_B1 = (lengths_B.long() - 1)[:, None]
            positions_BT = positions_BT.expand(len(last_B1), -1)
            positions_BT = positions_BT.minimum(positions_BT.gather(1, last_B1))
            consecutive = False
        places = Places(tokens_BT, tokens_BT, positions_BT, consecutive, sampler=sampler)
        return places, tokens_BT

    def _places_in_cache(self, tokens_BT: Tensor, cache: "Cache") -> tuple[Places, Tensor]:
        tokens_BS = cache.append(tokens_BT)
        S = tokens_BS.shape[1]
        computed_BT = tokens_BT if self.cacheable else tokens_BS
        ids_BS = tokens_BS
        if cache.padding_B is not None:
            index_S = torch.arange(S, device=tokens_BS.device)
            ids_BS = tokens_BS.masked_fill(index_S < cache.padding_B[:, None], -1)
        places = Places(
            ids_BS[:, -computed_BT.shape[1] :],
            ids_BS,
            cache.positions_BS[:, :S],
            self.random is None,
            cache.padding_B,
            cache.positions_BS[:, -1:],
            cache.sampler,
        )
        return places, computed_BT

    def compile(self, **options: Any) -> None:
        """Let torch.compile make kernels of a block in training, where all of a kind share a graph
        but for the first and the last. In evaluation every length would be one of its own.
        """
        prepare_to_compile()
        self._run = torch.compile(run_block, **options)

    def positions(
        self, rows: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """Return positions of the tokens, fp32: 0 … T-1, (1, T), or (rows, T) where they are
        random.
        """
        for position in self.encodings():
            position.require(length)
        if self.random is not None:
            return self.random.sample(rows, length, device, sampler, self.training)
        return torch.arange(length, device=device, dtype=torch.float32)[None]

    @property
    def cacheable(self) -> bool:
        """Whether earlier tokens need not be computed again when one is added."""
        return all(position.cacheable for position in self.encodings())

    @property
    def reach(self) -> int | None:
        """The number of positions, where a table holds them."""
        reaches = [encoding.reach for encoding in self.encodings() if encoding.reach is not None]
        return min(reaches, default=None)

    @property
    def reads_length(self) -> bool:
        """Whether what a token sees depends on the length of its row."""
        return any(position.reads_length for position in self.encodings())

    def encodings(self) -> list[PositionEncoding]:
        """Return the encoding of the first layer of each kind, in order."""
        return [block.position for block in self.blocks() if block.is_first_of_kind]

    def blocks(self) -> list[Block]:
        return [cast(Block, layer) for layer in self.layers]

    def knows_digits(self) -> bool:
        """Say whether the encoding of any layer is told which tokens are digits."""
        return any(position.knows_digits for position in self.encodings())

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def positional_count(self) -> int:
        return sum(p.numel() for name, p in self.named_parameters() if ".position." in name)

    def flops_per_token(self, length: int) -> float:
        """Return floating-point operations per token of one training step at this length: 3 times
        those of the forward pass, but 4 for a frozen parameter, since it needs no gradient of its
        own.
        """
        frozen = sum(p.numel() for p in self.matrices() if not p.requires_grad)
        return 3 * self.forward_flops_per_token(length) - 2 * frozen

    def forward_flops_per_token(self, length: int) -> float:
        """Return the operations of a forward pass: 2 for each parameter of the matrices (embedding
        look-ups are free), and 2 · layers · H · d · length for causal attention, whose average
        query sees half of the keys.
        """
        attention = 2 * self.arch.layers * self.arch.heads * self.arch.head_dim * length
        return 2 * sum(p.numel() for p in self.matrices()) + attention

    def matrices(self) -> list[nn.Parameter]:
        """Return all parameters but an embedding that is only looked up."""
        embedding = self.embedding.weight
        head = self.head.weight
        return [p for p in self.parameters() if p is not embedding or p is head]


def hand_on_state(blocks: list[Block]) -> None:
    """Tell the blocks of a kind, in order, which of them makes the state that the others read."""
    blocks[0].is_first_of_kind = True
    for block in blocks[1:]:
        block.position.drop_embedding()
    blocks[-1].updates_state = False
    blocks[-1].position.freeze_update()


def run_block(
    block: Block, x_BTC: Tensor, state: Tensor | None, context: ForwardContext
) -> tuple[Tensor, Tensor | None]:
    """Return what is compiled: one block, whichever it is."""
    return block(x_BTC, state, context)
