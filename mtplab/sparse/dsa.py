"""`sparse=dsa`: DeepSeek sparse attention. I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s]); the best k are attended."""

from __future__ import annotations

import torch
from torch import Tensor

from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.layers import Projected


class DsaSelector:
    """Lightning indexer of DeepSeek-V3.2; `top_k` rows shared by all heads of a layer."""

    needs_index = True

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def select(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor:
        scores = self.score(projected, memory, layer, context)
        return top_positions(scores, context.visible, self.top_k)

    def score(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor:
        """Index scores [T, S] of every position, visible or not."""
        assert projected.index_query is not None and projected.index_weight is not None
        query, keys = projected.index_query, memory.index_keys(layer, context)
        groups = query.reshape(keys.shape[0], -1, query.shape[-1])  # one group if all rows share the keys
        scores = torch.relu(torch.bmm(groups, keys.transpose(1, 2))).view(*query.shape[:2], -1)
        return torch.bmm(projected.index_weight.unsqueeze(1), scores).squeeze(1)


def top_positions(scores: Tensor, visible: Tensor, top_k: int) -> Tensor:
    """The `top_k` best visible positions [T, top_k] int64, -1 where fewer are visible.

    scores [T, S] float; visible [T, S] int64 holds each position where it may be seen, else -1. Ties are frequent (ReLU
    gives exact zeros), so the rank is one integer: the order-preserving bits of the float32 score, then the position;
    the newer position wins. torch.topk alone breaks ties by memory layout, which differs between batches.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # -0.0 would rank below 0.0
    ordered = torch.bitwise_xor(bits, torch.bitwise_and(bits >> 31, 0x7FFFFFFF)).to(torch.int64)
    span = scores.shape[-1]
    rank = torch.where(visible >= 0, ordered * span + visible, torch.iinfo(torch.int64).min)
    best = rank.topk(min(top_k, span), dim=-1, sorted=True).values
    return torch.where(best > torch.iinfo(torch.int64).min, best.remainder(span), -1)
