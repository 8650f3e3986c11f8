"""Trunk and recurrent MTP depths over whole sequences.

All MTP depths reuse one module (FastMTP, 2509.18362), as the engine does when it drafts. Depth 1 runs on every row and
is an ordinary causal layer. Depth d > 1 of row t continues from depth d-1 of the same row: it reads the depth-1 keys of
rows 0..t (what draft prefill wrote) and the keys of its own depths 2..d (what the decode passes wrote), and sits at
position t + d - 1. Parameter names are those of Hugging Face; `model.layers[num_hidden_layers]` is the MTP module.

Shape legend: B sequences, T rows, S keys, D width, H heads, V value width, C vocabulary.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtplab.model.config import ModelConfig
from mtplab.training.layers import Block, IndexParts, MtpBlock, Projected, RmsNorm, linear
from mtplab.training.selection import causal_mask, index_loss, top_mask


class Mode(enum.Enum):
    """How attention chooses its rows."""

    DENSE = "dense"  # all rows; indexers idle
    IMITATE = "imitate"  # all rows; indexers are compared with attention
    SPARSE = "sparse"  # the rows the indexers choose; indexers are compared with attention over them


EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
Observer = Callable[[int, Tensor, Tensor], None]
"""Called in IMITATE and SPARSE mode with layer, attention [B, T, S] (mean over heads) and indexer scores [B, T, S]."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """logits [B, T, C] of the trunk; of each depth [B', T, C] with B' = B, or B/2 for depths > 1 if halved.

    `index_loss` is the mean over layers, zero in DENSE mode.
    """

    logits: Tensor
    depths: tuple[Tensor, ...]
    index_loss: Tensor

    def losses(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Cross-entropy of the trunk and of each depth, for tokens [B, T + depths + 1].

        Row t of the trunk predicts token t+1, row t of depth d token t+1+d.
        """
        rows = self.logits.shape[1]

        def loss(logits: Tensor, ahead: int) -> Tensor:
            target = tokens[: logits.shape[0], ahead : rows + ahead]
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())

        return loss(self.logits, 1), tuple(loss(logits, ahead) for ahead, logits in enumerate(self.depths, start=2))


@dataclass(slots=True)
class _Pass:
    """One forward's settings, and the index losses it gathers."""

    mode: Mode
    observer: Observer | None
    index_losses: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Keys that depths > 1 read: per head key [B, H, T, N+R] and value [B, H, T, V], index key [B, 1, T, I] or None."""

    key: Tensor
    value: Tensor
    index_key: Tensor | None

    def first(self, count: int) -> _Rows:
        index_key = None if self.index_key is None else self.index_key[:count]
        return _Rows(self.key[:count], self.value[:count], index_key)


class Decoder(nn.Module):
    """The part of the names below `model.`; it has no forward of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        trunk = [Block(config) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList([*trunk, MtpBlock(config)])
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class TrainingNetwork(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, tied: bool = False) -> None:
        """`tied` makes embedding and output matrix one parameter (a checkpoint holds both all the same)."""
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        rope = config.qk_rope_head_dim
        inverse = 1.0 / (config.rope_theta ** (torch.arange(0, rope, 2, dtype=torch.float32) / rope))
        angles = torch.arange(config.max_position_embeddings, dtype=torch.float32)[:, None] * inverse
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @property
    def trunk(self) -> list[Block]:
        return [layer for layer in self.model.layers if isinstance(layer, Block) and not isinstance(layer, MtpBlock)]

    @property
    def mtp(self) -> MtpBlock:
        block = self.model.layers[-1]
        assert isinstance(block, MtpBlock)
        return block

    def forward(
        self, tokens: Tensor, depths: int, mode: Mode, halve: bool = False, observer: Observer | None = None
    ) -> Prediction:
        """tokens [B, T + depths + 1]; `halve` runs depths > 1 on the first half of the batch only (cost)."""
        run = _Pass(mode, observer)
        rows = tokens.shape[1] - depths - 1
        hidden = self.model.embed_tokens(tokens[:, :rows])
        for index, block in enumerate(self.trunk):
            hidden, _ = self._layer(index, block, hidden, run)
        hidden = self.model.norm(hidden)
        drafts = self._drafts(tokens, hidden, depths, halve, run)
        index = torch.stack(run.index_losses).mean() if run.index_losses else hidden.new_zeros(())
        return Prediction(self.lm_head(hidden), drafts, index)

    def _drafts(self, tokens: Tensor, carry: Tensor, depths: int, halve: bool, run: _Pass) -> tuple[Tensor, ...]:
        """Logits of each MTP depth; carry [B, T, D] is the trunk's normed output."""
        rows, block = carry.shape[1], self.mtp
        outputs: list[Tensor] = []
        prefill: _Rows | None = None
        own: list[_Rows] = []
        for depth in range(1, depths + 1):
            if depth == 2 and halve and prefill is not None:
                half = tokens.shape[0] // 2
                tokens, carry, prefill = tokens[:half], carry[:half], prefill.first(half)
            merged = block.merge(self.model.embed_tokens(tokens[:, depth : rows + depth]), carry)
            if prefill is None:
                hidden, prefill = self._layer(self.config.num_hidden_layers, block, merged, run)
            else:
                hidden = self._deeper(block, merged, prefill, own, run.mode)
            carry = block.shared_head.norm(hidden)
            outputs.append(self.lm_head(carry))
        return tuple(outputs)

    def _project(self, block: Block, hidden: Tensor, offset: int, indexed: bool) -> tuple[Projected, IndexParts | None]:
        """Projections of hidden [B, T, D] at positions offset, offset+1, ...; the indexer sees detached inputs."""
        rows = hidden.shape[1]
        cos, sin = self.cos[offset : offset + rows], self.sin[offset : offset + rows]
        x = block.input_layernorm(hidden)
        projected = block.self_attn.project(x, cos, sin)
        if not indexed:
            return projected, None
        return projected, block.self_attn.indexer(x.detach(), projected.latent_query.detach(), cos, sin)

    def _layer(self, index: int, block: Block, hidden: Tensor, run: _Pass) -> tuple[Tensor, _Rows]:
        """One causal layer over hidden [B, T, D]."""
        p, parts = self._project(block, hidden, 0, run.mode is not Mode.DENSE)
        if parts is None:
            attended = F.scaled_dot_product_attention(p.query, p.key, p.value, is_causal=True)
            return block.finish(hidden, attended), _Rows(p.key, p.value, None)
        scores = parts.scores(parts.key)
        mask = causal_mask(hidden.shape[1])
        if run.mode is Mode.SPARSE:
            mask = top_mask(scores.detach(), mask, self.config.index_topk)
        mask = mask.expand(scores.shape)
        weights = self._weights(p.query @ p.key.transpose(-1, -2), mask)
        mean = weights.detach().mean(1)
        run.index_losses.append(index_loss(mean, scores, mask))
        if run.observer is not None:
            run.observer(index, mean, scores.detach())
        return block.finish(hidden, weights @ p.value), _Rows(p.key, p.value, parts.key.detach())

    def _deeper(self, block: MtpBlock, hidden: Tensor, prefill: _Rows, own: list[_Rows], mode: Mode) -> Tensor:
        """A depth after the first: reads `prefill` causally, then its own chain, to which it adds its row."""
        rows = hidden.shape[1]
        p, parts = self._project(block, hidden, len(own) + 1, mode is Mode.SPARSE)
        own.append(_Rows(p.key, p.value, None if parts is None else parts.key))
        mask = causal_mask(rows, len(own))
        if parts is not None and prefill.index_key is not None:
            chain = [parts.own_scores(one.index_key) for one in own if one.index_key is not None]
            scores = torch.cat([parts.scores(prefill.index_key), *chain], -1).detach()
            mask = top_mask(scores, mask, self.config.index_topk)
        chain = [(p.query * one.key).sum(-1, keepdim=True) for one in own]
        weights = self._weights(torch.cat([p.query @ prefill.key.transpose(-1, -2), *chain], -1), mask)
        attended = weights[..., :rows] @ prefill.value
        for column, one in enumerate(own, start=rows):
            attended = attended + weights[..., column : column + 1] * one.value
        return block.finish(hidden, attended)

    def _weights(self, products: Tensor, mask: Tensor) -> Tensor:
        """Softmax of products [B, H, T, S] over mask [B, T, S] or [T, S]."""
        scaled = products * self.config.qk_head_dim**-0.5
        return torch.softmax(scaled.masked_fill(~mask.unsqueeze(-3), float("-inf")), -1)


def initialise(network: TrainingNetwork, seed: int) -> None:
    """Draw all matrices from `seed`: 1/sqrt(fan-in), output projections damped by depth, embeddings 0.05."""
    generator = torch.Generator().manual_seed(seed)
    damping = (2 * len(network.model.layers)) ** -0.5
    for name, parameter in network.named_parameters():
        if parameter.ndim != 2:
            continue
        scale = 0.05 if name in EMBEDDINGS else parameter.shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale *= damping
        nn.init.normal_(parameter, std=scale, generator=generator)
