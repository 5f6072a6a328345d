"""The interface of a positional encoding, and its default: none (NoPE)."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.kernels.causal import Piecewise
from tape_exp.models.kernels.update import Update
from tape_exp.models.rows import RowBias
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch

Past = dict[str, Tensor]  # what tokens leave to later ones, kept by a cache
Features = dict[str, Tensor]  # what tokens bring: name -> (B, T, …)
State = Tensor | Update | None  # what a layer hands to the next: a state, or one yet to be made


class PositionEncoding(nn.Module):
    """NoPE, no positional encoding at all: order is seen only through the causal mask (Kazemnejad
    et al., 2023). It is also the interface of every other encoding.

    Every layer of the decoder owns one instance, so that trainable parts are per layer. A subclass
    overrides only what differs:

    - ``positions``: the position of every token (RandPE samples here),
    - ``position_ids`` and ``embed``: an embedding that is added to the input, of positions
      (sinusoidal, learned) or of ids that the tokens decide on (abacus, coupling),
    - ``initial_state``: what the stack carries from layer to layer (RoPE: rotations; TAPE: E;
      others: None),
    - ``rotate``: queries and keys before the dot product (RoPE, xPos, TAPE), by what tokens bring
      where they choose the angles (Selective RoPE, RePo); they may become wider (PoPE),
    - ``bias``: added to the scaled logits (ALiBi, T5, FIRE, Kerple),
    - ``bias_by_distance`` and ``slopes``: the same bias in the forms that fused kernels read, where
      it depends on the distance only (ALiBi, T5, Kerple),
    - ``piecewise``: the same bias as lines between bends, where it is a function of one number
      (FIRE),
    - ``contextual_bias``: a bias that queries and keys decide on (CoPE, DAPE, PaTH, Wall); it is a
      tensor of all pairs, which our kernel cannot read, unless the next hooks say otherwise,
    - ``rows_at_once`` and ``contextual_rows``: the same of long rows, a block of queries at a time,
      so that what is kept for the backward pass grows with the length and not with its square
      (PaTH),
    - ``key_bias``: what is added to the logits of a key, whatever the query (FoX),
    - ``features``: what else tokens bring to ``rotate``, to these biases (PaTH) or to
      ``accumulated``,
    - ``path``: what a contextual bias is made of, where fla's kernels know it (PaTH),
    - ``later_keys``, with ``changes_keys``: keys that each token changes for those after it (PaTH),
    - ``carried`` and ``update``: what attention averages besides the values, and the state of the
      next layer (TAPE),
    - ``enter``: ``rotate`` and ``carried`` together, where one kernel does both and makes the state
      that the layer before left to it (TAPE),
    - ``accumulated``: what ``update`` reads instead of such an average, from the features of all
      tokens so far (tape_householder),
    - ``init_weights``: the first values of its parameters,
    - ``matrices``: the state as the matrices that ``rotate`` multiplies by, for analysis,
    - ``counted_operations``: what a layer adds to the counts of table flops.

    ``positions``, ``position_ids``, ``embed`` and ``initial_state`` are asked of the first layer's
    instance, of a pattern of layers that of each kind. Shape suffixes: B
    batch (1 where all rows agree), T tokens, S tokens that keys belong to, cached ones included, H
    heads, K heads of keys and values, C width, D head dimension, E carried channels; of a state, M
    blocks of L rows and R columns. Positions, angles and phases are fp32, under every autocast.
    """

    # Whether logits depend on the positions themselves, not only on the distances between them.
    absolute_positions = False
    # Whether `positions` gives 0 … T-1, which is what makes a bias by distance a table to look up.
    consecutive = True
    # The number of positions, where a table holds them (learned).
    reach: int | None = None
    # Whether the initial state depends on the length of the row, which its last position tells.
    by_length = False
    # Why the logits of step 0 are not RoPE's at the same theta and scaling, in a clause; None where
    # they are, so that a model which was trained with RoPE can go on with it.
    unlike_rope: str | None = "it does not turn queries and keys as RoPE does"
    # Whether it is told which tokens are digits: a ceiling for encodings that must find this out.
    knows_digits = False
    # Whether `later_keys` changes the keys, which a cache then keeps in fp32.
    changes_keys = False
    # The output of the block that `update` reads: "attention" or "mlp".
    context = "attention"
    # The parameters that only `update` uses: they are idle in the last layer, whose state nobody
    # reads.
    update_parameters: tuple[str, ...] = ()
    # The parameters that only `embed` uses: only the first layer has them.
    embedding_parameters: tuple[str, ...] = ()
    # Whether a fused kernel may compute `rotate` and `update`, where there is one; the decoder sets
    # it, False with trainer.attention=reference.
    fused = True

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.arch = arch

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialise this layer's parameters: matrices N(0, 0.02), vectors as constructed."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def positions(
        self, batch: int, length: int, device: torch.device, sampler: RowSampler | None = None
    ) -> Tensor:
        """Positions, (1, T) or (B, T) fp32: 0 … T-1. ``sampler`` is for encodings that sample."""
        return torch.arange(length, device=device, dtype=torch.float32)[None]

    def position_ids(self, tokens_BS: Tensor, sampler: RowSampler | None = None) -> Tensor | None:
        """What ``embed`` reads instead of positions, where the tokens decide on it: (B, S) int64.

        ``tokens_BS`` are all tokens so far, -1 where they are padding; an id depends on no later
        token. ``sampler`` is for encodings that sample: what it gives to a row is the same at every
        step of cached decoding. Without one nothing is sampled.
        """
        return None

    def embed(self, ids_BT: Tensor) -> Tensor | None:
        """What is added to the embedding of the tokens, from ``position_ids`` or else positions:
        (B, T, C), with 1 for B where all rows agree.
        """
        return None

    def initial_state(self, positions_BT: Tensor) -> Tensor | None:
        """The state that the first layer sees, fp32."""
        return None

    def rotate(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: Tensor | None, features: Features | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotate q (B, T, H, D) and k (B, T, K, D), in their dtype; k may become (B, T, H, D), and
        the D of both another one. ``features`` are what :meth:`features` gave.
        """
        return q_BTHD, k_BTKD

    def matrices(self, state: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """The matrices e of queries and those of keys, each (B, T, H, M, L, R) with 1 for B or H
        where all agree.

        With them, and M pairs of channels (m, m + d/2) for q_m and k_m, ``rotate`` makes the logit
        of i and j Σ_m q_{i,m}ᵀ e_{i,m} e_{j,m}ᵀ k_{j,m} / √d: eq. (f_attn) of the TAPE paper. None
        where there is no state.
        """
        return None

    def bias(self, q_positions_BT: Tensor, k_positions_BS: Tensor) -> Tensor | None:
        """What is added to the scaled logits before the mask: fp32, broadcast to (B, H, T, S)."""
        return None

    def features(self, x_BTC: Tensor, state: Tensor | None, past: Past) -> Features:
        """What tokens bring to ``rotate``, ``contextual_bias``, ``key_bias`` and ``accumulated``.

        x is what queries and keys are made of, and 0 for padding. ``past`` is what the tokens
        before these left, and where these leave what later ones need of all so far: a few tensors
        whose size does not grow with the tokens. At the beginning of a row it is empty.
        """
        return {}

    def contextual_bias(
        self, q_BTHD: Tensor, k_BSKD: Tensor, features: Features, bias: Tensor | None
    ) -> Tensor | None:
        """What is added to the scaled logits instead of ``bias`` where queries, keys and features
        decide on it: (B, H, T, S).

        The T queries are the last of the S tokens; ``features`` are theirs, (B, T, …). Keys of
        earlier tokens come from a cache, as ``later_keys`` gave them. Pairs that the causal mask
        hides may hold anything finite, and a pair depends on no token after its query.
        """
        return bias

    def rows_at_once(self, length: int) -> int:
        """For how many of ``length`` queries at a time the contextual bias is made; the length
        itself where it is made for all at once, and ``contextual_rows`` is not called.
        """
        return length

    def contextual_rows(self, q_BTHD: Tensor, k_BSKD: Tensor, features: Features) -> RowBias:
        """``contextual_bias`` by blocks of ``rows_at_once`` queries."""
        raise NotImplementedError(f"{type(self).__name__} makes its bias for all queries at once.")

    def path(self, features: Features) -> tuple[Tensor, Tensor] | None:
        """w (B, T, K, D) and β (B, T, K), fp32, where ``contextual_bias`` is what the matrices
        I - β w wᵀ between query and key make of the logits.
        """
        return None

    def key_bias(self, features: Features) -> Tensor | None:
        """What is added to the scaled logits of these tokens as keys, besides any other bias, from
        the same features: (B, T, H).

        What depends only on the query would cancel in the softmax: so a sum from key to query, c_i
        - c_j, needs nothing but -c_j. Attention reads differences within a row, and where the
        numbers grow with the tokens they are fp64, so that none of these loses bits. A cache keeps
        it like a key.
        """
        return None

    def later_keys(self, k_BSKD: Tensor, features: Features) -> Tensor:
        """The keys as tokens after these find them, from the same as ``contextual_bias``."""
        return k_BSKD

    def bias_by_distance(self, length: int, device: torch.device) -> Tensor | None:
        """(H, length): the bias at distances 0 … length - 1, which fused kernels look up; None
        where the bias depends on anything but the distance. It replaces ``bias`` and
        ``contextual_bias``.
        """
        return None

    def piecewise(self, length: int, device: torch.device) -> Piecewise | None:
        """The bias of tokens at 0 … length - 1 as lines between bends, which our kernel reads; None
        where it is no such function. It replaces ``bias`` and ``contextual_bias``.
        """
        return None

    def slopes(self) -> Tensor | None:
        """(H,) where ``bias_by_distance`` is -slope · distance, for kernels; else None."""
        return None

    def carried(self, state: Tensor | None) -> Tensor | None:
        """What attention averages besides the values: (B, S, H, E)."""
        return None

    def enter(
        self, q_BTHD: Tensor, k_BTKD: Tensor, state: State, features: Features, keeps: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What :meth:`rotate` gives, the state, and what :meth:`carried` gives of it; the last two
        are not read unless the layer ``keeps`` them.
        """
        assert not isinstance(state, Update)
        q_BTHD, k_BTKD = self.rotate(q_BTHD, k_BTKD, state, features)
        return q_BTHD, k_BTKD, state, self.carried(state) if keeps else None

    def accumulated(self, features: Features, past: Past) -> Tensor | None:
        """The ``attended`` of the tokens where nothing is carried, from their features and from
        ``past``, which is that of ``features``.
        """
        return None

    def update(self, state: Tensor | None, attended: Tensor | None, x_BTC: Tensor) -> State:
        """The next layer's state, from its average (B, T, H, E) and the output :attr:`context`."""
        return state

    def counted_operations(self, length: int) -> tuple[int, int]:
        """(MACs, further FLOPs) that one layer adds to a forward pass of batch 1, as table flops of
        the TAPE paper counts. That table was made from the paper's public code, so these are the
        operations of that code, not of this one.
        """
        return 0, 0


def overrides(position: PositionEncoding, hook: str) -> bool:
    """Whether the encoding has a hook of its own; what it returns may depend on anything."""
    return getattr(type(position), hook) is not getattr(PositionEncoding, hook)


class RelativeBias(PositionEncoding, ABC):
    """The base of encodings whose bias depends only on distance; a subclass gives :meth:`at`."""

    @abstractmethod
    def at(self, distance: Tensor) -> Tensor:
        """The bias of every head at each distance (fp32, any shape): (H, *shape)."""

    def bias(self, q_positions_BT: Tensor, k_positions_BS: Tensor) -> Tensor:
        """(B, H, T, S)."""
        return self.at(distances(q_positions_BT, k_positions_BS).squeeze(1)).transpose(0, 1)

    def bias_by_distance(self, length: int, device: torch.device) -> Tensor:
        """(H, length)."""
        return self.at(torch.arange(length, device=device, dtype=torch.float32))


def check_reach(position: PositionEncoding, positions_BT: Tensor) -> None:
    """Raise :class:`ConfigError` where positions lie outside of the encoding's table, if any."""
    if position.reach is None or not positions_BT.numel() or positions_BT.is_meta:
        return
    first, last = (int(end) for end in positions_BT.aminmax())
    if first < 0 or last >= position.reach:
        asked, more = (first, "") if first < 0 else (last, f"; model.length={last + 1} would do")
        raise ConfigError(
            f"model.length={position.reach} is the number of positions that are learned, 0 to "
            f"{position.reach - 1}, and position {asked} is asked for{more}."
        )


def for_heads(x_BTKD: Tensor, heads: int) -> Tensor:
    """(B, T, heads, D): each key head repeated for the query heads that it serves."""
    groups = heads // x_BTKD.shape[2]
    return x_BTKD.repeat_interleave(groups, 2) if groups > 1 else x_BTKD


def distances(q_positions_BT: Tensor, k_positions_BS: Tensor) -> Tensor:
    """(B, 1, T, S): how far each key is before the query; 0 for later keys, which are masked."""
    return (q_positions_BT[:, None, :, None] - k_positions_BS[:, None, None, :]).clamp(min=0)
