"""Contract of a selector: which rows a query attends to. Where the rows live (the tier) is not its business."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.layers import Projected


class Selector(Protocol):
    """`select` returns logical positions [T, N] int64: distinct, causal for their own row, -1 = unused (I8)."""

    needs_index: bool

    def select(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor: ...
