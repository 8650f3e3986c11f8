"""How close each emitted token was to another: the logit margin and the selection gap of the forward that emitted it.

Recorded on the plain greedy arm only (eager, one row per request), to tell a float32 near-tie from a real divergence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mtplab.engine.request import Scheduled
from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.layers import Projected
from mtplab.sparse.dsa import DsaSelector
from mtplab.sparse.selector import Selector


class GapSelector:
    """A DSA selector that notes, per row, the relative gap between the last selected and the first unselected score."""

    needs_index = True

    def __init__(self, inner: DsaSelector) -> None:
        self._inner = inner
        self.gaps: list[Tensor] = []

    def select(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor:
        scores = self._inner.score(projected, memory, layer, context)
        self.gaps.append(selection_gap(scores, context.visible, self._inner.top_k))
        return self._inner.select(projected, memory, layer, context)


def selection_gap(scores: Tensor, visible: Tensor, top_k: int) -> Tensor:
    """(s_k - s_{k+1}) / |s_k| per row [T]; inf where at most `top_k` positions are visible. Exact ties do not count as
    near: their order is fixed by position.
    """
    seen = scores.masked_fill(visible < 0, -torch.inf)
    if seen.shape[1] <= top_k:
        return torch.full(seen.shape[:1], torch.inf, dtype=scores.dtype)
    best = seen.topk(top_k + 1, dim=-1).values
    last, following = best[:, top_k - 1], best[:, top_k]
    gap = (last - following) / last.abs().clamp(min=torch.finfo(scores.dtype).tiny)
    open_end = torch.isinf(following) | (last == following)
    return torch.where(open_end, torch.inf, gap)


class MarginProbe:
    """Appends margin and gap to each request that emits a token in this step."""

    def __init__(self, selector: Selector) -> None:
        self._gaps = selector.gaps if isinstance(selector, GapSelector) else []

    def record(self, batch: Sequence[Scheduled], logits: Tensor) -> None:
        best = logits.topk(2, dim=-1).values
        margins = (best[:, 0] - best[:, 1]).tolist()
        gaps = torch.stack(self._gaps).amin(0).tolist() if self._gaps else [float("inf")] * len(margins)
        self._gaps.clear()
        row = 0
        for item in batch:
            row += item.rows
            if item.final:
                item.request.margins.append(margins[row - 1])
                item.request.select_gaps.append(gaps[row - 1])
