"""Storage of KV rows: device pool with the hot buffer behind it, host pool, indexer keys.

Every pool ends in a sink row of zeros: -1 is mapped to it inside the graph, so a masked read gets zeros and a masked
write (of zeros) changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mtplab.memory.layout import MemoryLayout


class PagedPool:
    """Device rows per layer: [pool_rows | max_requests * hot_size hot rows | sink], shared slot numbering."""

    def __init__(self, layout: MemoryLayout) -> None:
        rows = layout.pool_rows + layout.max_requests * layout.hot_size + 1
        self.sink = rows - 1
        self.hot_base = layout.pool_rows
        self.layers = [_zeros(rows, layout.row_width, layout) for _ in range(layout.layers)]


class HostPool:
    """Host rows per layer [source_rows + 1, row_width], the last one the sink; pinned where a GPU reads them."""

    def __init__(self, layout: MemoryLayout) -> None:
        rows = layout.source_rows + 1
        self.sink = rows - 1
        pinned = layout.device.type == "cuda"
        self.layers = [
            torch.zeros(rows, layout.row_width, dtype=layout.dtype, pin_memory=pinned) for _ in range(layout.layers)
        ]


class IndexKeys:
    """Indexer keys per layer [source_rows + 1, index_width]; they stay on the device, addressed by source slot."""

    def __init__(self, layout: MemoryLayout) -> None:
        self.sink = layout.source_rows
        self.layers = [_zeros(layout.source_rows + 1, layout.index_width, layout) for _ in range(layout.layers)]


class HotBuffer:
    """Tags and LRU order of the hot rows per layer (each layer is its own index group).

    tags int32 [max_requests + 1, hot_size] host row held by a hot row, -1 = empty; lru int16 [max_requests + 1,
    hot_size] hot rows oldest first. The last state row belongs to padded requests and is never loaded.
    """

    def __init__(self, layout: MemoryLayout) -> None:
        shape = (layout.max_requests + 1, layout.hot_size)
        self.tags = [torch.full(shape, -1, dtype=torch.int32, device=layout.device) for _ in range(layout.layers)]
        order = torch.arange(layout.hot_size, dtype=torch.int16, device=layout.device)
        self.lru = [order.repeat(shape[0], 1) for _ in range(layout.layers)]

    def clear(self, state: int) -> None:
        """Forget the hot rows of one state row; its request has finished and its host rows will be reused (I6)."""
        for tags in self.tags:
            tags[state].fill_(-1)


def _zeros(rows: int, width: int, layout: MemoryLayout) -> Tensor:
    return torch.zeros(rows, width, dtype=layout.dtype, device=layout.device)


def masked_write(pool: Tensor, slots: Tensor, values: Tensor) -> None:
    """pool[slots] = values where slots >= 0; the sink row (last) takes zeros for the rest."""
    live = slots >= 0
    target = torch.where(live, slots, pool.shape[0] - 1)
    pool.index_copy_(0, target, torch.where(live.unsqueeze(1), values, 0))
