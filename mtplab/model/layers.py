"""The arithmetic of one decoder layer, split where the engines split it: before and after attention.

Shape legend: T rows, D width, H heads, L latent (`kv_lora_rank`), R rope, W = L + R row width, N selected rows.
Source: DeepSeek-V2 (2405.04434) for MLA with absorbed decode, DeepSeek-V3.2 for the lightning indexer.

On a small model an operator costs more than its arithmetic: what can be multiplied out once is multiplied out at load
(`mtplab.model.checkpoint`), and rotations and the KV norm work in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtplab.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * w over n entries, written x / hypot(|x|, sqrt(n eps)) * (sqrt(n) w).

    gain [n] = sqrt(n) w; floor [] = sqrt(n eps). Where a matrix follows, the gain is folded into it and `unit` remains.
    """

    gain: Tensor
    floor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return unit(x, self.floor) * self.gain


def unit(x: Tensor, floor: Tensor) -> Tensor:
    return x / length(x, floor)


def length(x: Tensor, floor: Tensor) -> Tensor:
    """sqrt(|x|^2 + floor^2) over the last dimension, kept as 1."""
    return torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Every matrix is stored [in, out] and carries the gain of the norm before it; projections of
    one input are stacked, so that one matmul serves them all. Rope entries are interleaved pairs, so that a rotation
    is one complex product.

    in_proj [D, W + q_lora (+ d + index heads)]: KV row, query latent, indexer key and head weights;
    q_proj [q_lora, H * W (+ index heads * d)]: scaled query in latent space (the key half of `kv_b_proj` absorbed),
    indexer query; o_proj [H * L, D] (the value half absorbed); gate_up [D, 2 * intermediate]; down [intermediate, D];
    floor, q_floor, kv_floor []: of the norms of hidden states, query latent, KV latent.
    """

    in_proj: Tensor
    q_proj: Tensor
    o_proj: Tensor
    gate_up: Tensor
    down: Tensor
    floor: Tensor
    q_floor: Tensor
    kv_floor: Tensor
    index_norm_weight: Tensor
    index_norm_bias: Tensor


@dataclass(frozen=True, slots=True)
class RopeTable:
    """turn [positions, 1, R / 2] complex: exp(i * position * frequency)."""

    turn: Tensor


def rope_table(config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device) -> RopeTable:
    dim = config.qk_rope_head_dim
    # float32 frequencies, as the released implementations have them, whatever the model's dtype
    inverse = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim))
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None, None] * inverse
    return RopeTable(torch.complex(angles.cos().to(dtype), angles.sin().to(dtype)))


def rotate(x: Tensor, turn: Tensor) -> None:
    """Rotate x [T, heads, R] (interleaved pairs) in place by turn [T, 1, R / 2]."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turn)


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


def project(w: LayerWeights, c: ModelConfig, hidden: Tensor, turn: Tensor, with_index: bool) -> Projected:
    """Everything before attention: norms, query, KV row, indexer projections of hidden [T, D]; turn [T, 1, R / 2]."""
    latent, width, heads = c.kv_lora_rank, c.row_width, c.num_attention_heads
    x = unit(hidden, w.floor) @ w.in_proj
    row, after = x[:, :width], width + c.q_lora_rank
    row[:, :latent].div_(length(row[:, :latent], w.kv_floor))
    rotate(row[:, None, latent:], turn)
    q = unit(x[:, width:after], w.q_floor) @ w.q_proj
    query = q[:, : heads * width].unflatten(1, (heads, width))
    rotate(query[..., latent:], turn)
    if not with_index:
        return Projected(query, row, None, None, None)
    size, rope = c.index_head_dim, c.qk_rope_head_dim
    key = F.layer_norm(x[:, after : after + size], (size,), w.index_norm_weight, w.index_norm_bias, 1e-6)
    rotate(key[:, None, :rope], turn)
    index_query = q[:, heads * width :].unflatten(1, (c.index_n_heads, size))
    rotate(index_query[..., :rope], turn)
    return Projected(query, row, index_query, key, x[:, after + size :])


def attend(query: Tensor, rows: Tensor, bias: Tensor, latent: int) -> Tensor:
    """Attention of query [T, H, W] over rows [T, N, W], or [1, N, W] where all T share them. Returns [T, H * L].

    bias [T, 1, N] is 0 where a slot is used and hugely negative elsewhere; a row with nothing selected attends
    uniformly to zero rows and so gives zeros.
    """
    tokens, heads, width = query.shape
    groups = query.reshape(rows.shape[0], -1, width)
    scores = torch.bmm(groups, rows.transpose(1, 2)).view(tokens, heads, -1).add_(bias)
    weights = torch.softmax(scores, -1).view(rows.shape[0], -1, rows.shape[1])
    return torch.bmm(weights, rows[..., :latent]).view(tokens, heads * latent)


def finish(w: LayerWeights, hidden: Tensor, attended: Tensor) -> Tensor:
    """Everything after attention: output projection, residual, dense SwiGLU MLP."""
    hidden = hidden + attended @ w.o_proj
    gate, up = (unit(hidden, w.floor) @ w.gate_up).chunk(2, -1)
    return hidden + (F.silu(gate) * up) @ w.down
