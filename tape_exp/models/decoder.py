"""The one decoder: Llama-2 compatible, with the positional encoding as a part.

Shape suffixes: B batch, T tokens, C width, H heads, D head dimension, V vocabulary. Keys and values
may have K < H heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.utils.checkpoint import checkpoint

from tape_exp.machine.seeding import RowSampler, generator_for
from tape_exp.models.attention import OnDemand, attend, to_compile
from tape_exp.models.cache import Cache
from tape_exp.models.layers import Kinds, LayerKind, whose_positions
from tape_exp.models.positions.base import (
    Past,
    PositionEncoding,
    check_reach,
    for_heads,
    overrides,
    precise,
)
from tape_exp.models.window import Window
from tape_exp.settings.schema import Arch, AttentionConfig


class Decoder(nn.Module):
    """Pre-norm transformer: RMSNorm, causal attention, SwiGLU, no biases; the head is untied unless
    ``arch`` says so.

    Args:
        arch: sizes.
        position: makes the positional encoding of one layer from ``arch``; called once per layer.
            Or the kinds of the layers: layer l has kind l modulo their number, and a kind's first
            layer is asked for what comes before the layers, such as the initial state.
        seed: of the initial weights. Each parameter has a generator of its own, named after it, so
            that models that differ only in their positional encoding begin with the same backbone.
        backend: of :func:`~tape_exp.models.attention.attend`.
        blank: leave the backbone's matrices unset, since loaded weights will follow: a large model
            is then made at once.
    """

    def __init__(
        self,
        arch: Arch,
        position: Kinds,
        seed: int = 0,
        backend: str = "auto",
        blank: bool = False,
    ) -> None:
        super().__init__()
        self.arch = arch
        self.make_position = position
        # In training: compute each block's activations again in the backward pass, instead of
        # keeping them.
        self.recompute = False
        self._compiled: Callable[..., Tensor] | None = None
        # skip_init of an embedding would import torch._dynamo: 4 s and 150 MB.
        self.embedding = nn.Embedding.from_pretrained(
            torch.empty(arch.vocab, arch.width), freeze=False
        )
        pattern = [LayerKind(position)] if callable(position) else position
        chosen = [pattern[layer % len(pattern)] for layer in range(arch.layers)]
        self.kinds = list(dict.fromkeys(chosen))
        blocks = [
            Block(arch, kind.position(arch), backend, layer, kind.attention, self.kinds.index(kind))
            for layer, kind in enumerate(chosen)
        ]
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(arch.width, eps=arch.norm_eps)
        self.head = matrix(arch.width, arch.vocab)
        if arch.tied:
            self.head.weight = self.embedding.weight
        for chain in range(len(self.kinds)):
            self._mark_ends([block for block in blocks if block.chain == chain])
        self._positions_of = whose_positions([block.position for block in self.firsts()])
        self.init_weights(seed, blank)

    def _mark_ends(self, blocks: list["Block"]) -> None:
        """Take from the layers of a kind what only its first or all but its last have."""
        blocks[0].begins = True
        # Only the first layer's encoding is asked for what is added to the input.
        for block in blocks[1:]:
            for name in block.position.embedding_parameters:
                delattr(block.position, name)
        # Nobody reads the state after the last layer. The parameters of its update stay, since
        # published counts include them, but they are idle.
        last = blocks[-1]
        last.updates_state = False
        for name, parameter in last.position.named_parameters():
            parameter.requires_grad = name not in last.position.update_parameters

    def init_weights(self, seed: int, blank: bool = False) -> None:
        """Every matrix N(0, 0.02), norms 1, positional encodings by their own ``init_weights``;
        with ``blank`` only the positional encodings.

        | part                  | initial value                                         |
        |-----------------------|-------------------------------------------------------|
        | embedding, head       | N(0, 0.02)                                            |
        | attention, SwiGLU     | N(0, 0.02)                                            |
        | norms                 | 1                                                     |
        | learned, Abacus       | N(0, 0.02)                                            |
        | TAPE                  | P = W2 = 0, W1 and W_x random: step 0 is RoPE         |
        | FIRE, T5, Kerple      | see their files                                       |
        """
        for name, module in self.named_modules():
            generator = generator_for(seed, "init", name)
            if isinstance(module, PositionEncoding):
                module.init_weights(generator)
            elif blank or ".position." in name or (self.arch.tied and module is self.head):
                continue
            elif isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02, generator=generator)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        sampler: RowSampler | None = None,
        cache: Cache | None = None,
        last_only: bool = False,
        logits_at: Tensor | None = None,
        labels_BT: Tensor | None = None,
        watch: "Watch | None" = None,
    ) -> Tensor:
        """Logits (B, T, V), or the negative log-likelihood of ``labels_BT`` (B, T).

        Args:
            tokens_BT: token ids; with a cache, those that follow the cached ones.
            positions_BT: positions instead of the encoding's own, (1, T) or (B, T); fp64 makes the
                angles fp64.
            sampler: for encodings that sample positions.
            cache: keys, values and states of earlier tokens, extended by these; it brings its own
                positions.
            last_only: only the logits of the last token, (B, 1, V).
            logits_at: only the logits of these tokens, (N, V); N numbers, each row · T + place.
            labels_BT: next tokens to score, without holding all logits at once; 0 is returned where
                they are negative.
            watch: called by every layer with what its attention is made of; see
                :func:`~tape_exp.models.trace.trace`.
        """
        B, T = tokens_BT.shape
        known_BS, consecutive = tokens_BT, self.consecutive
        if cache is not None:
            positions_BT = cache.next_positions(T)
            known_BS, sampler = cache.read(tokens_BT), cache.sampler
        elif positions_BT is not None:
            if not positions_BT.is_floating_point():
                positions_BT = positions_BT.float()
            for block in self.firsts():
                check_reach(block.position, positions_BT)
            consecutive = False
        else:
            positions_BT = self.positions(B, T, tokens_BT.device, sampler)
        every_id = [block.position.position_ids(known_BS, sampler) for block in self.firsts()]
        ids = tuple(None if ids_BS is None else ids_BS[:, -T:] for ids_BS in every_id)
        where = Where(positions_BT, consecutive, cache, watch, ids)
        states = self.initial_states(positions_BT, cache)
        plain = cache is None and watch is None
        compute = self._compiled if self._compiled is not None and plain else self._compute
        found = compute(tokens_BT, states, where, last_only, logits_at, labels_BT)
        if cache is not None:
            cache.length += T
        return found

    def _compute(
        self,
        tokens_BT: Tensor,
        states: list[Tensor | None],
        where: "Where",
        last_only: bool,
        logits_at: Tensor | None,
        labels_BT: Tensor | None,
    ) -> Tensor:
        """All of a forward pass that is a function of tokens, states and places: one graph."""
        x_BTC = self.embedding(tokens_BT)
        recompute = self.recompute and self.training and torch.is_grad_enabled()
        states = list(states)
        for layer in self.blocks():
            state = states[layer.chain]
            if recompute:
                x_BTC, state = checkpoint(layer, x_BTC, state, where, use_reentrant=False)
            else:
                x_BTC, state = layer(x_BTC, state, where)
            states[layer.chain] = state
        if last_only:
            x_BTC = x_BTC[:, -1:]
        if logits_at is not None:
            x_BTC = x_BTC.flatten(0, 1)[logits_at]
        x_BTC = self.norm(x_BTC)
        return self.head(x_BTC) if labels_BT is None else token_nll(x_BTC, self.head, labels_BT)

    def compile(self, **options: Any) -> None:
        """Let torch.compile make kernels of a forward pass; ``options`` are its own.

        Left out are positions and initial state, which may be sampled on the CPU, and passes with a
        cache, whose lengths all differ.
        """
        to_compile()
        self._compiled = torch.compile(self._compute, **options)

    def positions(
        self, rows: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """The positions that the encoding gives to the tokens: (1, T) or (rows, T), fp32."""
        whose = self.firsts()[self._positions_of].position
        return whose.positions(rows, length, device, sampler)

    def initial_states(
        self, positions_BT: Tensor, cache: Cache | None = None
    ) -> list[Tensor | None]:
        """The state that the first layer of each kind sees."""
        return [initial_state(block.position, positions_BT, cache) for block in self.firsts()]

    @property
    def consecutive(self) -> bool:
        """Whether the encoding's positions are 0 … T-1."""
        return all(block.position.consecutive for block in self.firsts())

    @property
    def reach(self) -> int | None:
        """The number of positions, where a table holds them."""
        reaches = (block.position.reach for block in self.firsts())
        return min((reach for reach in reaches if reach is not None), default=None)

    def firsts(self) -> list["Block"]:
        """The first layer of each kind, in order."""
        return [block for block in self.blocks() if block.begins]

    def blocks(self) -> list["Block"]:
        """The layers, with their type."""
        return [cast(Block, layer) for layer in self.layers]

    def parameter_count(self) -> int:
        """All parameters, trainable or not."""
        return sum(p.numel() for p in self.parameters())

    def positional_count(self) -> int:
        """The parameters of the positional encodings of all layers."""
        return sum(p.numel() for name, p in self.named_parameters() if ".position." in name)

    def flops_per_token(self, length: int) -> float:
        """Floating-point operations per token of one training step (forward and backward) at this
        length.

        3 times those of the forward pass, but for a frozen parameter 4, since it needs no gradient
        of its own.
        """
        frozen = sum(p.numel() for p in self.matrices() if not p.requires_grad)
        return 3 * self.forward_flops_per_token(length) - 2 * frozen

    def forward_flops_per_token(self, length: int) -> float:
        """2 for each parameter of the matrices (embedding look-ups are free), and 2 · layers · H ·
        d · length for causal attention, whose average query sees half of the keys.
        """
        attention = 2 * self.arch.layers * self.arch.heads * self.arch.head_dim * length
        return 2 * sum(p.numel() for p in self.matrices()) + attention

    def matrices(self) -> list[nn.Parameter]:
        """All parameters but an embedding that is only looked up."""
        embedding, head = self.embedding.weight, self.head.weight
        return [p for p in self.parameters() if p is not embedding or p is head]


def token_nll(x_BTC: Tensor, head: nn.Module, labels_BT: Tensor) -> Tensor:
    """-log softmax(head(x)) at each label: (B, T) fp32, 0 where the label is negative."""
    # The logits of an evaluation batch together can take gigabytes. They are made and used in
    # pieces that fit into a CPU's cache, or that leave a GPU its memory.
    at_once = 512 if x_BTC.device.type == "cpu" else 8192
    nll = []
    for x, label in zip(
        x_BTC.flatten(0, 1).split(at_once), labels_BT.flatten().split(at_once), strict=True
    ):
        logits, counts = head(x).float(), label >= 0
        chosen = logits.gather(-1, label.clamp(min=0)[:, None])[:, 0]
        nll.append((logits.logsumexp(-1) - chosen) * counts)
    return torch.cat(nll).view(labels_BT.shape)


def for_products(x: Tensor) -> Tensor:
    """x in the dtype in which autocast multiplies, so that the matrices that read it share one
    copy; x itself without autocast.
    """
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def matrix(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias; :meth:`Decoder.init_weights` or a checkpoint gives its weights."""
    return skip_init(nn.Linear, inputs, outputs, bias=False, device=torch.get_default_device())


class Block(nn.Module):
    """Attention and SwiGLU, each after an RMSNorm, with a residual and the encoding's part."""

    def __init__(
        self,
        arch: Arch,
        position: PositionEncoding,
        backend: str,
        layer: int,
        attention: AttentionConfig,
        chain: int,
    ) -> None:
        super().__init__()
        C, queries, keys = arch.width, arch.heads * arch.head_dim, arch.key_heads * arch.head_dim
        self.layer = layer
        self.head_dim = arch.head_dim
        self.backend = backend
        self.chain = chain  # the number of its kind, whose layers share a state
        self.begins = False  # whether it is the first of them
        self.updates_state = True
        size = attention.window
        self.window = None if size is None else Window(size, attention.sinks)
        # Called instead of `attend`, with the same arguments (LongLoRA's sparse attention).
        self.attend: Callable[..., tuple[Tensor, Tensor | None]] | None = None
        self.attention_norm = nn.RMSNorm(C, eps=arch.norm_eps)
        self.q = matrix(C, queries)
        self.k = matrix(C, keys)
        self.v = matrix(C, keys)
        self.o = matrix(queries, C)
        self.mlp_norm = nn.RMSNorm(C, eps=arch.norm_eps)
        self.gate = matrix(C, arch.ffn)
        self.up = matrix(C, arch.ffn)
        self.down = matrix(arch.ffn, C)
        self.q_norm = nn.RMSNorm(arch.head_dim, arch.norm_eps) if attention.qk_norm else None
        self.k_norm = nn.RMSNorm(arch.head_dim, arch.norm_eps) if attention.qk_norm else None
        # Its factor is 1 on average over the rows of training.
        s = torch.full((arch.heads,), 1 / mean_log(arch.train_length)) if attention.ssmax else None
        self.ssmax = None if s is None else nn.Parameter(s)
        self.position = position
        position.fused = backend != "reference"

    def forward(
        self, x_BTC: Tensor, state: Tensor | None, where: "Where"
    ) -> tuple[Tensor, Tensor | None]:
        """The block's output and the position state for the next one."""
        if self.begins:
            # Here, not before the first block: where parameters are sharded, a block's own are
            # whole only in its own pass.
            ids_BT = where.ids[self.chain]
            ids_BT = where.positions_BT if ids_BT is None else ids_BT
            if (embedded := self.position.embed(ids_BT)) is not None:
                x_BTC = (x_BTC + embedded).to(x_BTC.dtype)
        normed = self.attention_norm(x_BTC)
        read = for_products(normed)
        q, k, v = (f(read).unflatten(-1, (-1, self.head_dim)) for f in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed_heads(self.q_norm, q), normed_heads(self.k_norm, k)
        past: Past = {} if where.cache is None else where.cache.past[self.layer]
        features = self.position.features(where.without_padding(normed), state, past)
        q, k = self.position.rotate(q, k, state, features)
        v = for_heads(v, k.shape[2])
        carried = self.position.carried(state) if self.updates_state else None
        key_bias = self.position.key_bias(features)
        if where.cache is not None:
            new = {"k": precise(k) if self.position.changes_keys else k, "v": v}
            more = {"carried": carried, "key_bias": key_bias}
            new |= {name: x for name, x in more.items() if x is not None}
            cached = where.cache.extend(self.layer, new)
            k, v, carried = cached["k"], cached["v"], cached.get("carried")
            key_bias = cached.get("key_bias")
        biases = self._biases(where, q, k, features)
        if key_bias is not None:
            biases["key_bias"] = key_bias
        if where.cache is not None:
            biases["padding"] = where.cache.padding_B
        if self.window is not None:
            biases["window"] = self.window
        if self.ssmax is not None:
            biases["scale"] = self._scale(where, k.shape[1])
        if where.watch is not None:
            where.watch(self, q, k, biases, state)
        values, attended = (self.attend or attend)(
            q, k.to(q.dtype), v, carried=carried, backend=self._backend(where), **biases
        )
        if where.cache is not None and self.position.changes_keys:
            k.copy_(self.position.later_keys(k, features))
        mixed = self.o(values.flatten(2))
        x_BTC = x_BTC + mixed
        normed = for_products(self.mlp_norm(x_BTC))
        mlp = self.down(F.silu(self.gate(normed)) * self.up(normed))
        if self.updates_state:
            context = mixed if self.position.context == "attention" else mlp
            if carried is None:
                attended = self.position.accumulated(features, past)
            state = self.position.update(state, attended, context)
        return x_BTC + mlp, state

    def _backend(self, where: "Where") -> str:
        """The backend that was asked for. fla's is for whole sequences: cached decoding, padded
        prompts and watched passes take the fastest other one, which is logged.
        """
        return "auto" if self.backend == "fla" and not where.whole else self.backend

    def _biases(
        self, where: "Where", q_BTHD: Tensor, k_BSKD: Tensor, features: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Keyword arguments of ``attend``: the bias by distance if it can be, else by pair."""
        S, position = k_BSKD.shape[1], self.position
        if where.consecutive:
            by_distance = position.bias_by_distance(S, where.positions_BT.device)
            if by_distance is not None:
                return {"by_distance": by_distance, "slopes": position.slopes()}
        keys = where.positions_BT if where.cache is None else where.cache.positions_BS[:, :S]
        if where.whole and overrides(position, "piecewise"):
            return {"bias": on_demand(position, where.positions_BT)}
        if self._backend(where) == "fla" and (path := position.path(features)) is not None:
            pairs = partial(position.contextual_bias, q_BTHD, k_BSKD, features, None)
            return {"bias": OnDemand(pairs, lambda: None, path)}
        bias = position.bias(where.positions_BT, keys)
        bias = position.contextual_bias(q_BTHD, k_BSKD, features, bias)
        return {"bias": bias}

    def _scale(self, where: "Where", S: int) -> Tensor:
        """s · ln n, (B or 1, T, H), for queries that see n of the S keys. A query that sees one
        key has nothing to choose from, so that ln 1 = 0 does no harm.
        """
        assert self.ssmax is not None
        before = torch.arange(S, device=self.ssmax.device)[None] + 1
        if where.cache is not None and where.cache.padding_B is not None:
            before = (before - where.cache.padding_B[:, None]).clamp(min=1)
        before = before[:, -where.positions_BT.shape[1] :]
        seen = before if self.window is None else self.window.count(before)
        s = precise(self.ssmax)
        return s * seen[..., None].to(s.dtype).log()


def normed_heads(norm: nn.RMSNorm, x_BTHD: Tensor) -> Tensor:
    """The norm over the channels of each head, computed in at least fp32; returned in x's dtype."""
    wide = precise(x_BTHD)
    weight = norm.weight.to(wide.dtype)
    return F.rms_norm(wide, norm.normalized_shape, weight, norm.eps).to(x_BTHD.dtype)


def mean_log(length: int) -> float:
    """The mean of ln n over n = 1 … length, at least 2; 5.9 for 1024."""
    length = max(length, 2)
    return math.lgamma(length + 1) / length


def initial_state(
    position: PositionEncoding, positions_BT: Tensor, cache: Cache | None
) -> Tensor | None:
    """The state that an encoding's first layer sees.

    Where it depends on the row's length, the last position that a cache may hold goes along, so
    that all steps see the same length.
    """
    if cache is None or not position.by_length:
        return position.initial_state(positions_BT)
    last_B1 = cache.positions_BS[:, -1:]
    state = position.initial_state(torch.cat([positions_BT, last_B1], 1))
    assert state is not None
    return state[:, :-1]


def on_demand(position: PositionEncoding, positions_BT: Tensor) -> OnDemand:
    """The bias of tokens at 0 … T - 1, of an encoding that has it in pieces too."""
    return OnDemand(
        partial(position.bias, positions_BT, positions_BT),
        partial(position.piecewise, positions_BT.shape[1], positions_BT.device),
    )


class Watch(Protocol):
    """Called by every block before it attends, with what its probabilities are made of."""

    def __call__(
        self,
        block: Block,
        q_BTHD: Tensor,
        k_BSHD: Tensor,
        biases: dict[str, Any],
        state: Tensor | None,
    ) -> None:
        """Take a block, its rotated queries and keys, its biases, and the state that they saw."""


@dataclass(frozen=True)
class Where:
    """The places of a forward pass's tokens: what every block needs besides its input."""

    positions_BT: Tensor  # noqa: N815
    consecutive: bool = False  # positions count tokens, so a bias by distance can be looked up
    cache: Cache | None = None
    watch: Watch | None = None
    # What `embed` reads in the first layer of each kind; None: positions.
    ids: tuple[Tensor | None, ...] = (None,)

    @property
    def whole(self) -> bool:
        """Whether these are all tokens so far, at 0 … T - 1, and nobody watches."""
        fresh = self.cache is None or (self.cache.length == 0 and self.cache.padding_B is None)
        return self.consecutive and fresh and self.watch is None

    def without_padding(self, x_BTC: Tensor) -> Tensor:
        """x of these tokens, zero where they are padding."""
        if self.cache is None or (real_BT := self.cache.real(x_BTC.shape[1])) is None:
            return x_BTC
        return x_BTC * real_BT[..., None]
