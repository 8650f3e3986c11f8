"""One decoder layer in training form: whole sequences, keys and values expanded per head, Hugging Face names.

The engine's form (`mtplab/model/layers.py`) absorbs the latent up-projections and works row by row; both compute the
same function. Sources: DeepSeek-V2 (2405.04434) for MLA, DeepSeek-V3.2 for the lightning indexer.

Shape legend: B sequences, T rows, S keys, D width, H heads, N nope, R rope, V value, J index heads, I index width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtplab.model.config import ModelConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., T, R] in half-split order; cos, sin [T, R/2]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `rotate` for x whose rotary pairs are interleaved, as MLA stores them; the result is half-split."""
    return rotate(torch.cat([x[..., 0::2], x[..., 1::2]], -1), cos, sin)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class IndexParts:
    """The lightning indexer's view of each row: query [B, J, T, I], key [B, 1, T, I], weight [B, T, J] (scaled)."""

    query: Tensor
    key: Tensor
    weight: Tensor

    def scores(self, key: Tensor) -> Tensor:
        """[B, T, S]: sum over index heads of weight times ReLU(query . key), for key [B, 1, S, I]."""
        return torch.einsum("bjts,btj->bts", F.relu(self.query @ key.transpose(-1, -2)), self.weight)

    def own_scores(self, key: Tensor) -> Tensor:
        """[B, T, 1]: the score of each row for its own key [B, 1, T, I] alone."""
        return torch.einsum("bjt,btj->bt", F.relu((self.query * key).sum(-1)), self.weight).unsqueeze(-1)


class Indexer(nn.Module):
    """DSA lightning indexer: a few small heads score every earlier row; attention reads the best `index_topk`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._heads, self._rope = config.index_n_heads, config.qk_rope_head_dim
        self.wq_b = linear(config.q_lora_rank, config.index_n_heads * config.index_head_dim)
        self.wk = linear(config.hidden_size, config.index_head_dim)
        self.k_norm = nn.LayerNorm(config.index_head_dim, eps=1e-6)
        self.weights_proj = linear(config.hidden_size, config.index_n_heads)

    def forward(self, x: Tensor, latent_query: Tensor, cos: Tensor, sin: Tensor) -> IndexParts:
        """x [B, T, D] normed input, latent_query [B, T, q_lora_rank]."""
        rope = self._rope
        query = self.wq_b(latent_query).unflatten(-1, (self._heads, -1)).transpose(1, 2)
        key = self.k_norm(self.wk(x)).unsqueeze(1)
        query = torch.cat([rotate(query[..., :rope], cos, sin), query[..., rope:]], -1)
        key = torch.cat([rotate(key[..., :rope], cos, sin), key[..., rope:]], -1)
        scale = (self._heads * key.shape[-1]) ** -0.5
        return IndexParts(query, key, self.weights_proj(x) * scale)


@dataclass(frozen=True, slots=True)
class Projected:
    """Per-head query, key [B, H, T, N+R] and value [B, H, T, V]; latent_query [B, T, q_lora_rank] is the indexer's."""

    query: Tensor
    key: Tensor
    value: Tensor
    latent_query: Tensor


class Attention(nn.Module):
    """Multi-head latent attention with its indexer. Only the projections live here: which rows are read is the
    network's business, because MTP depths after the first read rows of several passes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads, eps = config.num_attention_heads, config.rms_norm_eps
        self._config = config
        self.q_a_proj = linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RmsNorm(config.q_lora_rank, eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, config.row_width)
        self.kv_a_layernorm = RmsNorm(config.kv_lora_rank, eps)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size)
        self.indexer = Indexer(config)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> Projected:
        """x [B, T, D], already normed."""
        c = self._config
        latent_query = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_b_proj(latent_query).unflatten(-1, (c.num_attention_heads, -1)).transpose(1, 2)
        latent, rope_key = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        expanded = (
            self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (c.num_attention_heads, -1)).transpose(1, 2)
        )
        key, value = expanded.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        shared = rotate_pairs(rope_key.unsqueeze(1), cos, sin).expand(-1, c.num_attention_heads, -1, -1)
        query_nope, query_rope = query.split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        query = torch.cat([query_nope, rotate_pairs(query_rope, cos, sin)], -1)
        return Projected(query, torch.cat([key, shared], -1), value, latent_query)

    def output(self, attended: Tensor) -> Tensor:
        """attended [B, H, T, V] -> [B, T, D]."""
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residual, MLP: hidden [B, T, D], attended [B, H, T, V]."""
        hidden = hidden + self.self_attn.output(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class SharedHead(nn.Module):
    """The MTP module's own output norm; the output matrix itself is the trunk's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class MtpBlock(Block):
    """DeepSeek-V3 MTP module (2412.19437): a block over eh_proj [enorm(embedding); hnorm(previous hidden state)]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.enorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = SharedHead(config)

    def merge(self, embedded: Tensor, previous: Tensor) -> Tensor:
        return self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(previous)], -1))
