"""Which rows attention reads, and how an indexer learns to choose them.

Source: DeepSeek-V3.2 (DSA): the indexer is trained by KL divergence from the attention it should imitate, first on the
frozen dense network, then together with it on the rows it selected.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE_BREAK = 1e-7  # per row: of equal scores the later row wins, so that no more than `budget` rows are kept


def causal_mask(rows: int, extra: int = 0) -> Tensor:
    """[T, T + extra]: row t reads rows 0..t, and all of its `extra` own keys."""
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    return torch.cat([mask, torch.ones(rows, extra, dtype=torch.bool)], -1)


def top_mask(scores: Tensor, allowed: Tensor, budget: int) -> Tensor:
    """[B, T, S]: of the `allowed` rows the `budget` with the best scores, all where there are no more."""
    order = torch.arange(scores.shape[-1], dtype=scores.dtype)
    ranked = (scores + TIE_BREAK * order).masked_fill(~allowed, float("-inf"))
    threshold = ranked.topk(min(budget, ranked.shape[-1]), -1).values[..., -1:]
    return allowed & (ranked >= threshold)


def index_loss(attention: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """KL(attention || softmax of the scores), both over `mask`, averaged over rows. attention, scores [B, T, S].

    `attention` is the mean over heads, and constant here: the indexer follows attention, never the other way round.
    """
    log_probability = torch.log_softmax(scores.masked_fill(~mask, float("-inf")), -1).masked_fill(~mask, 0)
    return (attention * (torch.log(attention + 1e-9) - log_probability)).sum(-1).mean()
