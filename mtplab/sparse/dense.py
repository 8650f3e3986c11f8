"""`sparse=dense`: every row attends to all positions it may see."""

from __future__ import annotations

from torch import Tensor

from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.layers import Projected


class DenseSelector:
    """No score, no budget: N is the context size."""

    needs_index = False

    def select(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor:
        return context.visible
