"""The arithmetic of one decoder layer, split where the engines split it: before and after attention.

Shape legend: T rows, D width, H heads, L latent (`kv_lora_rank`), R rope, W = L + R row width, N selected rows.
Source: DeepSeek-V2 (2405.04434) for MLA with absorbed decode, DeepSeek-V3.2 for the lightning indexer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtplab.model.checkpoint import LayerWeights
from mtplab.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin [positions, R], the sine carrying the sign of the half-split rotation."""

    cos: Tensor
    sin: Tensor


def rope_table(config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device) -> RopeTable:
    dim = config.qk_rope_head_dim
    # float32 frequencies, as the released implementations have them, whatever the model's dtype
    inverse = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim))
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * inverse
    cos, sin = angles.cos(), angles.sin()
    return RopeTable(torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., R] (half-split) by cos, sin broadcastable to it."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, config.rms_norm_eps)


@dataclass(frozen=True, slots=True)
class Projected:
    """What attention needs of each row: query [T, H, W] (scaled), row [T, W]; the indexer's parts are None without one.

    index_query [T, heads, d], index_key [T, d], index_weight [T, heads] (already scaled).
    """

    query: Tensor
    row: Tensor
    index_query: Tensor | None
    index_key: Tensor | None
    index_weight: Tensor | None


def project(w: LayerWeights, c: ModelConfig, hidden: Tensor, cos: Tensor, sin: Tensor, with_index: bool) -> Projected:
    """Everything before attention: norms, query, KV row and indexer projections of hidden [T, D]; cos, sin [T, 1, R]."""
    latent, rope, heads = c.kv_lora_rank, c.qk_rope_head_dim, c.num_attention_heads
    x = F.linear(rms_norm(hidden, w.input_norm, c), w.in_proj)
    widths = [c.q_lora_rank, latent, rope] + ([c.index_head_dim, c.index_n_heads] if with_index else [])
    parts = x.split(widths, -1)
    q = F.linear(rms_norm(parts[0], w.q_norm, c), w.q_proj)
    width = heads * c.qk_head_dim
    q_heads = q[:, :width].view(-1, heads, c.qk_head_dim)
    rotated = [q_heads[..., c.qk_nope_head_dim :], parts[2].unsqueeze(1)]
    if with_index:
        index_q = q[:, width:].view(-1, c.index_n_heads, c.index_head_dim)
        index_k = F.layer_norm(parts[3], (c.index_head_dim,), w.index_norm_weight, w.index_norm_bias, 1e-6)
        rotated += [index_q[..., :rope], index_k[:, None, :rope]]
    turned = rotate(torch.cat(rotated, 1), cos, sin)
    absorbed = torch.bmm(q_heads[..., : c.qk_nope_head_dim].transpose(0, 1), w.up_k).transpose(0, 1)
    query = torch.cat([absorbed, turned[:, :heads]], -1) * c.qk_head_dim**-0.5
    row = torch.cat([rms_norm(parts[1], w.kv_norm, c), turned[:, heads]], -1)
    if not with_index:
        return Projected(query, row, None, None, None)
    key = torch.cat([turned[:, -1], index_k[:, rope:]], -1)
    index_query = torch.cat([turned[:, heads + 1 : -1], index_q[..., rope:]], -1)
    return Projected(query, row, index_query, key, parts[4] * (c.index_n_heads * c.index_head_dim) ** -0.5)


def attend(w: LayerWeights, c: ModelConfig, query: Tensor, rows: Tensor, unused: Tensor) -> Tensor:
    """Attention of query [T, H, W] over its own selected rows [T, N, W]; unused [T, N] is True where the slot is empty.

    A row with nothing selected attends uniformly to zero rows and so gives zeros. Returns [T, H * v].
    """
    scores = torch.bmm(query, rows.transpose(1, 2))
    scores = scores.masked_fill(unused.unsqueeze(1), torch.finfo(scores.dtype).min)
    mixed = torch.bmm(torch.softmax(scores, -1), rows[..., : c.kv_lora_rank])
    return torch.bmm(mixed.transpose(0, 1), w.up_v).transpose(0, 1).flatten(1)


def finish(w: LayerWeights, c: ModelConfig, hidden: Tensor, attended: Tensor) -> Tensor:
    """Everything after attention: output projection, residual, dense SwiGLU MLP."""
    hidden = hidden + F.linear(attended, w.o_proj)
    gate, up = F.linear(rms_norm(hidden, w.post_norm, c), w.gate_up).chunk(2, -1)
    return hidden + F.linear(F.silu(gate) * up, w.down)
